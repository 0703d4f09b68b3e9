"""The mark of a job as a file: what is read again, and what is nobody's."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from pytest_elastic.rendezvous.consensus.records import KnownJob
from pytest_elastic.rendezvous.registries import mark_file
from pytest_elastic.rendezvous.registries.mark_file import MarkFile
from tests.unit.rendezvous.samples import record_of

BASE = record_of(2, "n1", "n2")
JOB = KnownJob(record=record_of(3, "n1", "n2"), base=BASE, number=3, restarts_used=1)

SOON_S = 60.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return where marks are to be; it is not there yet."""
    return tmp_path / "marks"


def mark_in(folder: Path, run_id: str = "job", endpoint: str = "10.0.0.1:29400") -> MarkFile:
    """Return the mark of a run, as an agent that has just started sees it."""
    return MarkFile(lambda: str(folder), run_id, endpoint)


def leave(marks: MarkFile, job: KnownJob) -> None:
    """Write a mark, and wait until it is there."""
    marks.write(job)
    assert marks.wait(SOON_S)


def file_in(folder: Path) -> Path:
    """Return the one file."""
    (path,) = folder.iterdir()
    return path


def test_what_was_written_is_read_by_the_next_agent_of_this_run_and_endpoint_only(
    folder: Path,
) -> None:
    """Nodes that share a machine, and jobs that follow each other, do not take each other's."""
    assert mark_in(folder).read() is None
    since = time.clock_gettime(time.CLOCK_BOOTTIME)
    leave(mark_in(folder), JOB)
    mark = mark_in(folder).read()
    assert mark is not None
    assert mark.job == JOB
    assert since - 0.001 <= mark.renewed_at <= time.clock_gettime(time.CLOCK_BOOTTIME)
    assert mark_in(folder, run_id="other").read() is None
    assert mark_in(folder, endpoint="10.0.0.2:29400").read() is None
    assert folder.stat().st_mode & 0o777 == 0o700
    assert file_in(folder).stat().st_mode & 0o777 == 0o600


def test_it_is_renewed_in_place_written_anew_when_the_job_has_changed_and_removed(
    folder: Path,
) -> None:
    """Once a beat only a time is written; a file that somebody has removed comes back."""
    marks = mark_in(folder)
    was_ours = [marks.is_ours]
    leave(marks, JOB)
    was_ours.append(marks.is_ours)
    first, place = marks.read(), file_in(folder).stat().st_ino
    leave(marks, JOB)
    second = marks.read()
    assert first is not None
    assert second is not None
    assert second.renewed_at >= first.renewed_at
    assert file_in(folder).stat().st_ino == place
    newer = replace(JOB, number=4)
    leave(marks, newer)
    third = marks.read()
    assert third is not None
    assert third.job == newer
    file_in(folder).unlink()
    leave(marks, newer)
    assert marks.read() is not None
    marks.remove()
    assert marks.wait(SOON_S)
    assert not folder.exists()
    assert [*was_ours, marks.is_ours] == [False, True, False]


def test_marks_that_are_a_day_old_are_cleared_away(folder: Path) -> None:
    """Those of killed jobs, when another leaves its first one; a link is as old as itself."""
    leave(mark_in(folder, run_id="runs"), JOB)
    kept = {*folder.iterdir(), folder / "link"}
    target = folder.parent / "target"
    for path, hours in ((target, 25), (folder / "old.mark", 25), (folder / "new.mark", 23)):
        path.touch()
        at = time.time() - hours * 3600
        os.utime(path, (at, at))
    (folder / "link").symlink_to(target)
    leave(mark_in(folder), JOB)
    assert not (folder / "old.mark").exists()
    assert kept | {folder / "new.mark"} < {*folder.iterdir()}
    assert mark_in(folder, run_id="runs").read() is not None
    assert mark_in(folder).read() is not None


def test_what_a_killed_writer_has_left_is_written_over(folder: Path) -> None:
    """Another process may have its number now."""
    leave(mark_in(folder), JOB)
    path = file_in(folder)
    path.rename(f"{path}.{os.getpid()}")
    with open(f"{path}.{os.getpid()}", "ab") as file:
        file.write(b"and more")
    leave(mark_in(folder), JOB)
    assert mark_in(folder).read() is not None


def test_nothing_is_written_through_a_link(folder: Path) -> None:
    """It may lead anywhere."""
    leave(mark_in(folder), JOB)
    path, victim = file_in(folder), folder.parent / "victim"
    victim.write_text("mine")
    path.unlink()
    Path(f"{path}.{os.getpid()}").symlink_to(victim)
    leave(mark_in(folder), JOB)
    assert victim.read_text() == "mine"


def _garbage(folder: Path) -> None:
    file_in(folder).write_bytes(b"\xff\x00garbage")


def _other_words(folder: Path) -> None:
    path = file_in(folder)
    path.write_text(path.read_text().replace('"number": 3', '"number": "three"'))


def _of_another_format(folder: Path) -> None:
    path = file_in(folder)
    path.write_text(path.read_text().replace("mark 1", "mark 0"))


def _from_the_future(folder: Path) -> None:
    path = file_in(folder)
    path.write_text("9" * 15 + path.read_text()[15:])


def _endless(folder: Path) -> None:
    path = file_in(folder)
    path.write_text(path.read_text() + " " * 2_000_000)


def _a_link(folder: Path) -> None:
    path = file_in(folder)
    path.rename(folder / "elsewhere")
    path.symlink_to(folder / "elsewhere")


def _a_pipe(folder: Path) -> None:
    path = file_in(folder)
    path.unlink()
    os.mkfifo(path)


def _open_to_its_group(folder: Path) -> None:
    folder.chmod(0o770)


def _open_to_others(folder: Path) -> None:
    folder.chmod(0o707)


def _a_link_to_the_folder(folder: Path) -> None:
    folder.rename(folder.parent / "elsewhere")
    folder.symlink_to(folder.parent / "elsewhere")


def _another_users(folder: Path) -> None:
    os.chown(file_in(folder), 65534, -1)


def _in_another_users_folder(folder: Path) -> None:
    os.chown(folder, 65534, -1)


_only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.mark.parametrize(
    "spoil",
    [
        _garbage,
        _other_words,
        _of_another_format,
        _from_the_future,
        _endless,
        _a_link,
        _a_pipe,
        _open_to_its_group,
        _open_to_others,
        _a_link_to_the_folder,
        pytest.param(_another_users, marks=_only_root),
        pytest.param(_in_another_users_folder, marks=_only_root),
    ],
)
def test_what_is_not_plainly_ours_is_no_mark_and_harms_nobody(
    folder: Path, spoil: Callable[[Path], None]
) -> None:
    """Nor does writing over it."""
    leave(mark_in(folder), JOB)
    spoil(folder)
    assert mark_in(folder).read() is None
    leave(mark_in(folder), JOB)


def test_a_mark_of_another_boot_is_none(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time means nothing, and nobody of before is back within a lease of that."""
    boot = folder.parent / "boot_id"
    boot.write_text("before\n")
    monkeypatch.setattr(mark_file, "_BOOT_ID", str(boot))
    leave(mark_in(folder), JOB)
    assert mark_in(folder).read() is not None
    boot.write_text("after\n")
    assert mark_in(folder).read() is None


def test_a_folder_that_cannot_be_made_leaves_no_mark(tmp_path: Path) -> None:
    """The job goes on without one."""
    (tmp_path / "file").touch()
    marks = mark_in(tmp_path / "file" / "marks")
    leave(marks, JOB)
    assert marks.read() is None
    marks.remove()
    assert marks.wait(SOON_S)


def test_a_file_system_that_hangs_is_not_waited_for_and_the_newest_job_is_written_after(
    folder: Path,
) -> None:
    """A mark is renewed in an agent's event loop, once a beat; its time is not that of the thread.

    What could be in the queue is one that hangs and one behind it.
    """
    answers = threading.Event()

    def find() -> str:
        answers.wait(SOON_S)
        return str(folder)

    marks = MarkFile(find, "job", "10.0.0.1:29400")
    for number in range(3, 6):
        marks.write(replace(JOB, number=number))
    until = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert not marks.wait(0.01), "its folder is still looked for"
    assert mark_in(folder).read() is None
    answers.set()
    assert marks.wait(SOON_S)
    mark = mark_in(folder).read()
    assert mark is not None
    assert mark.job.number == 5
    assert mark.renewed_at <= until
