"""What checkpoints hold: told of any file of torch's, and compared with the undisturbed runs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from elastic_harness.checkup.measured import Checkpoints, measure
from elastic_harness.checkup.saved_state import Part, SavedStates, what_differs
from elastic_harness.history.events import FileWritten

from tests.unit.checkup.undisturbed import undisturbed


def part(digest: str, *sketch: float, size: int = 4, norm: float = 2.0) -> Part:
    """Return a part of a checkpoint."""
    return {"digest": digest, "size": size, "norm": norm, "sketch": list(sketch)}


MODEL = part("m", 1.0, 1.0, size=100)
ALIKE = {"model": MODEL, "ema": part("e", 1.0, 0.0)}


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (ALIKE, ""),
        ({**ALIKE, "ema": part("f", 1.0, 0.5)}, "another 'ema', by 0.25 (relative)"),
        ({**ALIKE, "ema": part("f", 1.0, 0.0000001)}, ""),  # rounding
        ({**ALIKE, "ema": part("f", 1.0, 0.0, size=5)}, "another 'ema'"),
        ({**ALIKE, "ema": part("f", norm=0.0)}, "another 'ema'"),  # nan has no sketch
        ({"model": MODEL}, "no 'ema'"),
        ({**ALIKE, "more": part("x", 1.0)}, ""),
        # Of another step: then everything is another one.
        ({"model": part("n", 1.0, 1.1, size=100), "ema": part("f", 1.0, 0.5)}, ""),
        # The largest part says which step it is of, whatever a small one that stays the same says.
        ({"model": part("n", 1.0, 1.1, size=100), "ema": ALIKE["ema"]}, ""),
        ({"model": part("n", 1.0, 1.0000001, size=100), "ema": part("f", 9.0, 0.0)}, "another"),
    ],
)
def test_a_part_differs_where_the_step_is_the_same(found: Mapping[str, Part], said: str) -> None:
    """Averaged weights that were not loaded are nowhere else to be seen."""
    differ = what_differs(ALIKE, ALIKE, found, tolerance=1e-6)
    assert differ == said or (said == "another" and differ.startswith("another 'ema'"))


def test_what_differs_without_a_fault_is_not_compared() -> None:
    """A time, or what was drawn by chance."""
    other = {**ALIKE, "ema": part("g", 0.0, 1.0)}
    found = {**ALIKE, "ema": part("f", 1.0, 0.5)}
    assert what_differs(ALIKE, other, found, tolerance=1e-6) == ""
    assert what_differs({}, {}, found, tolerance=1e-6) == ""
    both = {"model": part("x", 1.0)}
    assert what_differs(both, {"model": part("y", 1.0)}, found, tolerance=1e-6) == ""


@pytest.fixture(scope="module")
def reader() -> Iterator[SavedStates]:
    """Give the process that reads checkpoints."""
    reader = SavedStates()
    yield reader
    reader.close()


def told_of(
    reader: SavedStates,
    folder: Path,
    path: str,
    pattern: str,
    *,
    after: int = 12,
    is_global: bool = True,
) -> Mapping[str, Part] | None:
    """Return what is told of a checkpoint that a run of twelve steps wrote last, after a step."""
    story = undisturbed(steps=after)
    story.tell("cluster", "", FileWritten(path=path, how="moved", size=4000))
    seen = measure(undisturbed().history, "succeeded", "", "train.py")
    checkpoints = Checkpoints(written=pattern, named=pattern, steps=(6, 12))
    seen = replace(seen, checkpoints=checkpoints, is_global=is_global)
    return reader.last_of(story.history, seen, str(folder))


class Settings:
    """A class of a script's own, which is not there to be loaded."""

    def __init__(self, scale: torch.Tensor) -> None:
        self.scale = scale
        self.users = [self, self]
        self.path = Path("somewhere")


def test_a_checkpoint_is_told_by_its_parts(reader: SavedStates, tmp_path: Path) -> None:
    """Whatever classes are pickled in it; states of random numbers are left out."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    saved: dict[str, Any] = {
        "model": model.state_dict(),
        "whole": model,
        "extra": {"ema": {"w": torch.ones(5)}, "step": 3},
        "settings": Settings(torch.full((2,), 7.0)),
        "rng": torch.get_rng_state(),
        "mean": torch.tensor([1, 2, 3]),
        "turn": {"z": torch.ones(2, dtype=torch.cfloat)},
        "epoch": 3,
    }
    torch.save(saved, tmp_path / "ck.pt")
    found = told_of(reader, tmp_path, "ck.pt", "ck.pt")
    assert found is not None
    sizes = {name: each["size"] for name, each in found.items()}
    assert sizes == {
        # Weights, biases, and those, mean, variance and count of the normalization.
        "model": 6 + 2 + 2 + 2 + 2 + 2 + 1,
        "whole": 6 + 2 + 2 + 2 + 2 + 2 + 1,
        "extra.ema": 5,
        "settings": 2,
        "ck.pt": 3,
        "turn": 2,
    }
    assert found["extra.ema"]["norm"] == pytest.approx(5**0.5)


def test_what_is_no_checkpoint_is_not_told(reader: SavedStates, tmp_path: Path) -> None:
    """Nor one that was written at another step, unless steps are not known."""
    (tmp_path / "ck.pt").write_text("half a file")
    assert told_of(reader, tmp_path, "ck.pt", "ck.pt") is None
    assert told_of(reader, tmp_path, "gone.pt", "gone.pt") is None
    assert told_of(reader, tmp_path, "other.pt", "ck.pt") is None
    torch.save({"w": torch.ones(2)}, tmp_path / "ck.pt")
    assert told_of(reader, tmp_path, "ck.pt", "ck.pt", after=10) is not None  # seen late
    assert told_of(reader, tmp_path, "ck.pt", "ck.pt", after=9) is None
    assert told_of(reader, tmp_path, "ck.pt", "ck.pt", after=9, is_global=False) is not None
    with open(tmp_path / "ck.pt", "r+b") as file:
        os.truncate(file.fileno(), (1 << 30) + 1)
    assert told_of(reader, tmp_path, "ck.pt", "ck.pt") is None


def test_a_folder_for_each_checkpoint_is_told_as_one(reader: SavedStates, tmp_path: Path) -> None:
    """As Hugging Face has it; shards of torch.distributed.checkpoint are left out."""
    folder = tmp_path / "checkpoint-12"
    folder.mkdir()
    torch.save({"w": torch.ones(2)}, folder / "model.bin")
    torch.save({"state": {0: {"m": torch.ones(3)}}}, folder / "optimizer.pt")
    torch.save(torch.ones(4), folder / "__0_0.distcp")
    (folder / "trainer_state.json").write_text("{}")
    found = told_of(reader, tmp_path, "checkpoint-12/model.bin", "checkpoint-*/model.bin")
    assert found is not None
    sizes = {name: each["size"] for name, each in found.items()}
    assert sizes == {"model.bin": 2, "optimizer.pt state": 3}


def test_a_process_that_ended_tells_nothing(tmp_path: Path) -> None:
    """And is no reason to fail."""
    reader = SavedStates()
    reader.close()
    assert told_of(reader, tmp_path, "ck.pt", "ck.pt") is None
