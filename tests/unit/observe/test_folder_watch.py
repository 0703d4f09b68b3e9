"""What is written below a folder, as the kernel tells it."""

from __future__ import annotations

import os
from pathlib import Path

from elastic_harness.observe.folder_watch import FolderWatch

from pytest_elastic.loop import Loop


def test_every_file_is_told_once_it_is_closed_or_given_its_name(tmp_path: Path) -> None:
    """In folders that come later, too; what is only opened, read or removed is not."""
    (tmp_path / "old").mkdir()
    told: list[tuple[str, str]] = []
    loop = Loop()
    watch = FolderWatch(loop, str(tmp_path), lambda path, how: told.append((path, how)))
    assert watch.problem == ""
    (tmp_path / "newest.pt.1").write_text("x")
    os.replace(tmp_path / "newest.pt.1", tmp_path / "newest.pt")
    (tmp_path / "newest.pt").read_text()
    (tmp_path / "old" / "a.pt").write_text("x")
    watch.read()
    assert told == [("newest.pt.1", "written"), ("newest.pt", "moved"), ("old/a.pt", "written")]
    told.clear()
    (tmp_path / "step-10").mkdir()
    watch.read()
    (tmp_path / "step-10" / "0.distcp").write_text("x")
    (tmp_path / "newest.pt").unlink()
    watch.read()
    assert told == [("step-10/0.distcp", "written")]
    watch.close()
    watch.close()
    loop.close()


def test_a_file_that_is_faster_than_the_watch_of_its_folder_is_told(tmp_path: Path) -> None:
    """A folder and what is in it come at the same moment."""
    told: list[tuple[str, str]] = []
    loop = Loop()
    watch = FolderWatch(loop, str(tmp_path), lambda path, how: told.append((path, how)))
    (tmp_path / "step-10" / "inside").mkdir(parents=True)
    (tmp_path / "step-10" / "inside" / "0.distcp").write_text("x")
    watch.read()
    assert told == [("step-10/inside/0.distcp", "written")]
    watch.close()
    loop.close()


def test_a_folder_that_is_not_there_is_a_problem_and_no_crash(tmp_path: Path) -> None:
    """It is said, and nothing is told."""
    loop = Loop()
    told: list[object] = []
    watch = FolderWatch(loop, str(tmp_path / "none"), lambda *what: told.append(what))
    assert "No such file or directory" in watch.problem
    watch.close()
    loop.close()
