"""What is written below a folder, as the kernel tells it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from elastic_harness.cluster.files.folder_watch import FolderWatch

from pytest_elastic.loop import Loop
from tests.cluster_bench import ROOT
from tests.few_watches import needs_a_user_namespace, with_few_watches


class Watched:
    """A folder that is watched, what was told of it, and why files of it may be missed."""

    def __init__(self, folder: Path) -> None:
        self.told: list[tuple[str, str]] = []
        self.missed: list[str] = []
        self.loop = Loop()
        self.watch = FolderWatch(
            self.loop,
            str(folder),
            lambda path, how, _: self.told.append((path, how)),
            self.missed.append,
        )
        self.watch.start()


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    """Return a watched folder in which another one is."""
    (tmp_path / "old").mkdir()
    watched = Watched(tmp_path)
    yield watched
    watched.watch.close()
    watched.watch.close()
    watched.loop.close()


def test_every_file_is_told_once_it_is_closed_or_given_its_name(
    tmp_path: Path, watched: Watched
) -> None:
    """In folders that come later, too; what is only opened, read or removed is not."""
    (tmp_path / "newest.pt.1").write_text("x")
    os.replace(tmp_path / "newest.pt.1", tmp_path / "newest.pt")
    (tmp_path / "newest.pt").read_text()
    (tmp_path / "old" / "a.pt").write_text("x")
    watched.watch.read()
    assert watched.told == [
        ("newest.pt.1", "written"),
        ("newest.pt", "moved"),
        ("old/a.pt", "written"),
    ]
    watched.told.clear()
    (tmp_path / "step-10").mkdir()
    watched.watch.read()
    (tmp_path / "step-10" / "0.distcp").write_text("x")
    (tmp_path / "newest.pt").unlink()
    watched.watch.read()
    assert watched.told == [("step-10/0.distcp", "written")]
    assert watched.missed == []


def test_a_file_that_is_faster_than_the_watch_of_its_folder_is_told(
    tmp_path: Path, watched: Watched
) -> None:
    """A folder and what is in it come at the same moment."""
    (tmp_path / "step-10" / "inside").mkdir(parents=True)
    (tmp_path / "step-10" / "inside" / "0.distcp").write_text("x")
    watched.watch.read()
    assert watched.told == [("step-10/inside/0.distcp", "written")]


def test_a_folder_that_is_not_there_is_said_and_no_crash(tmp_path: Path) -> None:
    """Nothing is told of it."""
    watched = Watched(tmp_path / "none")
    (why,) = watched.missed
    assert why == f"{tmp_path}/none: No such file or directory"
    watched.watch.close()
    watched.loop.close()


def test_a_folder_that_is_gone_before_it_is_watched_is_not_missed(
    tmp_path: Path, watched: Watched
) -> None:
    """Nothing is left in it; under its new name it is found."""
    (tmp_path / "removed").mkdir()
    (tmp_path / "removed").rmdir()
    (tmp_path / "a-file-now").mkdir()
    (tmp_path / "a-file-now").rmdir()
    (tmp_path / "a-file-now").write_text("x")
    (tmp_path / "step-10.tmp").mkdir()
    (tmp_path / "step-10.tmp" / "0.distcp").write_text("x")
    os.rename(tmp_path / "step-10.tmp", tmp_path / "step-10")
    watched.watch.read()
    assert ("step-10/0.distcp", "moved") in watched.told
    assert watched.missed == []


def test_what_the_kernel_had_no_room_to_tell_is_said(tmp_path: Path, watched: Watched) -> None:
    """More was written at once than its queue holds."""
    room = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    for number in range(room // 2 + 1):  # each is created, and closed
        (tmp_path / f"{number}").touch()
    watched.watch.read()
    assert watched.missed == [
        "files were written faster than they were told of (fs.inotify.max_queued_events)"
    ]


@needs_a_user_namespace
def test_a_watch_that_the_kernel_has_no_room_for_is_said_once(tmp_path: Path) -> None:
    """What is watched is told all the same."""
    code = f"""
from pathlib import Path
from tests.unit.cluster.test_folder_watch import Watched
folder = Path({str(tmp_path)!r})
(folder / "one").mkdir()
watched = Watched(folder)
for name in ("two", "three"):
    (folder / name).mkdir()
(folder / "one" / "a.pt").write_text("x")
watched.watch.read()
print(watched.told, *watched.missed, sep="\\n")
"""
    done = subprocess.run(
        [*with_few_watches(2), sys.executable, "-c", code],
        check=True, capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    assert done.stdout.splitlines() == [
        "[('one/a.pt', 'written')]",
        f"{tmp_path}/two: no more inotify watches (fs.inotify.max_user_watches)",
    ]


def test_a_folder_that_the_job_cannot_enter_is_not_missed() -> None:
    """It has the same rights; where it may write unseen, that is said."""
    code = """
import os, tempfile
from pathlib import Path
from tests.unit.cluster.test_folder_watch import Watched
if os.geteuid() == 0:
    os.seteuid(65534)
with tempfile.TemporaryDirectory() as folder:
    os.mkdir(f"{folder}/closed", 0)
    assert Watched(Path(folder)).missed == []
    os.mkdir(f"{folder}/blind", 0o300)
    assert Watched(Path(folder)).missed == [f"{folder}/blind: Permission denied"]
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
