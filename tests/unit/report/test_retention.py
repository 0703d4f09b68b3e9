"""Old runs go, the newest stay, and nothing that is no run is touched."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from elastic_harness.report.run_directory import remove_old_runs

NOW = 1_000_000.0
HOUR = 3600.0


def make_run(folder: Path, name: str, *, age_h: float, size: int = 10) -> Path:
    """Make what a run leaves, of so many bytes, last written so many hours ago."""
    run = folder / name
    (run / "logs").mkdir(parents=True)
    (run / "plan.json").touch()
    (run / "history.jsonl").write_bytes(b"x" * size)
    for file in ("plan.json", "history.jsonl"):
        os.utime(run / file, (NOW - age_h * HOUR,) * 2)
    return run


@pytest.mark.parametrize(
    ("newest", "max_bytes", "left"),
    [
        (0, 0, "abcd"),
        (3, 0, "abc"),
        (1, 0, "ab"),  # b was written in the last hour
        (0, 25, "abc"),  # the two newest have 20 bytes; c is spared
        (0, 45, "abcd"),
    ],
)
def test_the_newest_stay(tmp_path: Path, newest: int, max_bytes: int, left: str) -> None:
    """By number and by size, but for what another session may still use and what is spared."""
    ages = {"a": 0.1, "b": 0.9, "c": 2.0, "d": 3.0}
    runs = {name: make_run(tmp_path, name, age_h=age) for name, age in ages.items()}
    spared = {str(runs["c"])} if max_bytes else ()
    removed = remove_old_runs(
        str(tmp_path), now=NOW, newest=newest, max_bytes=max_bytes, spared=spared
    )
    assert sorted(os.listdir(tmp_path)) == list(left)
    assert removed == 4 - len(left)


def test_what_is_no_run_stays(tmp_path: Path) -> None:
    """Pages, folders of others, and links, what they lead to included."""
    artifacts, elsewhere = tmp_path / "artifacts", tmp_path / "elsewhere"
    make_run(elsewhere, "run", age_h=50)
    artifacts.mkdir()
    (artifacts / "link").symlink_to(elsewhere / "run")
    (artifacts / "notes").mkdir()
    (artifacts / "notes" / "plan.json").touch()
    (artifacts / "index.html").touch()
    make_run(artifacts, "new", age_h=2)
    make_run(artifacts, "old", age_h=3)
    assert remove_old_runs(str(artifacts), now=NOW, newest=1, max_bytes=0) == 1
    assert sorted(os.listdir(artifacts)) == ["index.html", "link", "new", "notes"]
    assert (elsewhere / "run" / "plan.json").exists()


def test_a_folder_that_is_not_there_has_no_runs(tmp_path: Path) -> None:
    """As before the first session."""
    assert remove_old_runs(str(tmp_path / "none"), now=NOW, newest=1, max_bytes=1) == 0
