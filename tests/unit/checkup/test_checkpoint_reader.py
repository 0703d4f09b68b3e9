"""What is told of the files that torch.save writes, and of others."""

from __future__ import annotations

import argparse
import os
import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from elastic_harness.checkup.checkpoint_reader import CheckpointReader
from elastic_harness.checkup.saved_state import Part


@pytest.fixture(scope="module")
def reader() -> Iterator[CheckpointReader]:
    """Give the process that reads checkpoints."""
    reader = CheckpointReader()
    yield reader
    reader.close()


def told_of(saved: object, reader: CheckpointReader, folder: Path) -> Mapping[str, Part]:
    """Save something as torch does, and return what is told of it."""
    torch.save(saved, folder / "ck.pt")
    found = reader.read(str(folder / "ck.pt"))
    assert found is not None
    return found


class Settings:
    """A class of a script's own, which is not there to be loaded."""

    def __init__(self, scale: torch.Tensor) -> None:
        self.scale = scale
        self.users = [self, self]
        self.path = Path("somewhere")


def test_a_checkpoint_is_told_by_its_parts(reader: CheckpointReader, tmp_path: Path) -> None:
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
    found = told_of(saved, reader, tmp_path)
    # Weights, biases, and those, mean and variance of the normalization.
    numbers = 6 + 2 + 2 + 2 + 2 + 2
    assert {name: each["size"] for name, each in found.items()} == {
        "model": numbers,
        "whole numbers of model": 1,  # the batches that it has seen
        "whole": numbers,
        "whole numbers of whole": 1,
        "extra.ema": 5,
        "settings": 2,
        "settings.users": 2,
        "whole numbers of ck.pt": 3,  # what stands beside those
        "turn": 2,
        "extra.step": 1,
        "epoch": 1,
    }
    assert found["extra.ema"]["norm"] == pytest.approx(5**0.5)
    digests = found["extra.ema"]["digest"], found["model"]["digest"]
    saved["extra"]["ema"]["w"][0] = 2.0
    found = told_of(saved, reader, tmp_path)
    assert found["extra.ema"]["digest"] != digests[0]
    assert found["model"]["digest"] == digests[1]


def test_what_is_no_checkpoint_is_not_told(reader: CheckpointReader, tmp_path: Path) -> None:
    """Half a file, none, one without tensors, and one that takes too long to read."""
    path = tmp_path / "ck.pt"
    assert reader.read(str(path)) == {}
    path.write_text("half a file")
    assert reader.read(str(path)) == {}
    torch.save({"of": "words", "huge": 10**400, "too": [1] * 1001, "no": [1, "x"]}, path)
    assert reader.read(str(path)) == {}
    torch.save({"w": torch.ones(2)}, path)
    assert reader.read(str(path))
    os.truncate(path, (1 << 30) + 1)
    assert reader.read(str(path)) == {}


def test_a_folder_is_told_as_one(reader: CheckpointReader, tmp_path: Path) -> None:
    """As Hugging Face has it."""
    torch.save({"w": torch.ones(2)}, tmp_path / "model.bin")
    torch.save({"state": {0: {"m": torch.ones(3)}}}, tmp_path / "optimizer.pt")
    (tmp_path / "trainer_state.json").write_text("{}")
    found = reader.read(str(tmp_path))
    assert found is not None
    sizes = {name: each["size"] for name, each in found.items()}
    assert sizes == {"model.bin": 2, "optimizer.pt state": 3}


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_folder_of_torch_distributed_checkpoint_is_told(
    reader: CheckpointReader, tmp_path: Path
) -> None:
    """Its shards by themselves are not."""
    from torch.distributed.checkpoint import state_dict_saver

    saved = {"model": {"w": torch.ones(4)}, "best": 0.5, "name": "x"}
    state_dict_saver.save(saved, checkpoint_id=tmp_path / "ck", no_dist=True)
    torch.save({"ema": torch.ones(3)}, tmp_path / "ck" / "extra.pt")
    found = reader.read(str(tmp_path / "ck"))
    sizes = {name: each["size"] for name, each in (found or {}).items()}
    assert sizes == {"model": 4, "best": 1, "extra.pt": 3}
    (tmp_path / "ck" / ".metadata").write_text("torn")
    assert list(reader.read(str(tmp_path / "ck")) or {}) == ["extra.pt"]
    assert not list(tmp_path.glob("*.pt")), "what is made on the way goes"


def test_a_number_by_a_name_of_its_own_is_a_part(reader: CheckpointReader, tmp_path: Path) -> None:
    """The best loss, patience; not what a process is, nor how an object of torch was made."""
    saved = {
        "best": -1.5,
        "stop": {"patience": 3, "is_over": False, "deep": {"x": 1, "best_of": {"loss": 0.5}}},
        "schedule": {"last_epoch": 2, "_step_count": 3},
        "restarts": 2,
        "run": {"resumed_at": 20, "pid": 7, "timesteps": 90},
        "args": {"start_epoch": 2, "from_epoch": 2},
        "elapsed_s": 12,
        "loss": np.float64(0.25),
        "bad": np.int64(2),
        "lost": float("nan"),
    }
    found = told_of(saved, reader, tmp_path)
    assert {name: each["norm"] for name, each in found.items()} == {
        "best": 1.5,
        "stop.patience": 3.0,
        "stop.is_over": 0.0,
        "stop.deep.best_of.loss": 0.5,
        "schedule.last_epoch": 2.0,
        "run.timesteps": 90.0,
        "loss": 0.25,
        "bad": 2.0,
        "lost": None,
    }
    assert all(each["is_number"] for each in found.values())


class Stopping:
    """A class of a script's own that decides when to end."""

    __slots__ = ("best", "odd")

    def __init__(self) -> None:
        self.best, self.odd = 0.5, "x"


class Odd:
    """A class of a script's own whose state is no dict."""

    def __getstate__(self) -> tuple[int, str]:
        return (1, "x")

    def __setstate__(self, state: object) -> None:
        """Forget it."""


def test_numbers_of_lists_and_objects_are_parts(reader: CheckpointReader, tmp_path: Path) -> None:
    """Of classes of the script, and of argparse; states of random numbers are not."""
    saved = {
        "stop": [0.5, 3],
        "pair": (1, 2),
        "args": argparse.Namespace(lr=0.1, start_epoch=2, name="x"),
        "stopping": Stopping(),
        "odd": Odd(),
        "deep": {"er": {"args": argparse.Namespace(best=1)}},
        "rng": [1, 2],
        "none": [],
        "local_rank": 1,
        "vocabulary": {f"word {number}": number for number in range(1001)},
    }
    found = told_of(saved, reader, tmp_path)
    assert {name: each["size"] for name, each in found.items()} == {
        "stop": 2,
        "pair": 2,
        "args.lr": 1,
        "stopping.best": 1,
    }
    assert all(each["is_number"] for each in found.values())


def test_files_of_numpy_and_pickle_are_told(reader: CheckpointReader, tmp_path: Path) -> None:
    """Without what was pickled into an array, and without states of random numbers."""
    arrays: dict[str, Any] = {
        "w": np.ones((2, 3), np.float32),
        "best": np.float64(0.5),
        "seen": np.arange(3),
        "key": np.ones(4, np.uint32),
        "of_objects": np.array(Odd(), dtype=object),
    }
    told = {"w": 6, "best": 1, "whole numbers of seen": 3}
    np.savez(tmp_path / "ck.npz", **arrays)
    np.save(tmp_path / "ck.npy", arrays["w"])
    (tmp_path / "ck.pkl").write_bytes(pickle.dumps({**arrays, "t": torch.ones(2)}))
    (tmp_path / "protocol.pickle").write_bytes(pickle.dumps({"net": arrays}, protocol=5))
    torch.save(arrays, tmp_path / "torch.pkl")
    for name, expected in {
        "ck.npz": told,
        "ck.npy": {"ck.npy": 6},
        "ck.pkl": {**told, "ck.pkl": 2},
        "protocol.pickle": {"net.w": 6, "net.best": 1, "whole numbers of net.seen": 3},
        "torch.pkl": told,
    }.items():
        found = reader.read(str(tmp_path / name))
        assert {part: each["size"] for part, each in (found or {}).items()} == expected, name


def test_a_process_that_has_ended_tells_nothing(tmp_path: Path) -> None:
    """And is no reason to fail."""
    reader = CheckpointReader()
    reader.close()
    assert reader.read(str(tmp_path)) is None
