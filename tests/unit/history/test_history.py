from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from elastic_harness.history.events import (
    FaultFired,
    RunClosed,
    RunEnded,
    StepCompleted,
    WorkerHello,
)
from elastic_harness.history.history import History

from pytest_elastic.errors import UsageError
from pytest_elastic.events.model import Record
from tests.unit.history.story import Story


def test_records_are_numbered_from_one_in_the_order_of_their_coming() -> None:
    """`history[seq]` is the record with that number."""
    history = Story().round(1, ["n1", "n2"]).history
    assert [entry.seq for entry in history] == [1, 2, 3]
    assert history[2].event.kind == "worker_hello"
    with pytest.raises(IndexError, match="no record has the number 0"):
        history[0]


def test_the_file_is_in_step_with_every_record(tmp_path: Path) -> None:
    """What is on disk at any moment is all that is known, and reads back the same."""
    path = tmp_path / "history.jsonl"
    history = History(str(path))
    for number, record in enumerate(Story().round(1, ["n1"]).steps(1, 1, 3).records, start=1):
        history.append(record)
        lines = path.read_text().splitlines()
        assert len(lines) == number
        assert json.loads(lines[-1])["seq"] == number
    history.close()
    assert History.load(path).records == history.records


def test_a_torn_last_line_costs_that_record_only(tmp_path: Path) -> None:
    """A harness that was killed while writing leaves a history that can be judged."""
    path = tmp_path / "history.jsonl"
    history = History(str(path))
    for record in Story().round(1, ["n1", "n2"]).records:
        history.append(record)
    history.close()
    whole = path.read_bytes()
    for cut in range(1, 60):
        path.write_bytes(whole[:-cut])
        read = History.load(path)
        assert len(read) == 2
        assert read.damage == "line 3 is torn, or no record: it is judged up to record 2"


def _replaced(whole: bytes) -> bytes:
    return whole.replace(b'"rank":1,', b'"rank":0,')


def _without_a_line(whole: bytes) -> bytes:
    lines = whole.splitlines(keepends=True)
    return b"".join([*lines[:1], *lines[2:]])


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_replaced, "its lines were changed after they were written: it is judged up to record 3"),
        (_without_a_line, "record 3 stands where record 2 should: it is judged up to record 1"),
        (lambda whole: whole.replace(b"worker_hello", b"\xff", 1), "line 2 is torn, or no record"),
    ],
)
def test_a_file_that_was_changed_is_read_up_to_there_and_says_so(
    tmp_path: Path, damage: Callable[[bytes], bytes], said: str
) -> None:
    """A verdict on a file that somebody has edited is no verdict on the run."""
    path = tmp_path / "history.jsonl"
    history = History(str(path))
    for record in Story().round(1, ["n1", "n2"]).records:
        history.append(record)
    closed = RunClosed(digest=history.digest)
    history.append(Record(at=0.0, source="engine", node="", run_id="", event=closed))
    history.close()
    assert not History.load(path).damage
    path.write_bytes(damage(path.read_bytes()))
    assert History.load(path).damage.startswith(said)


def test_a_history_of_another_version_is_refused(tmp_path: Path) -> None:
    """It cannot say what was to hold: a clear refusal, and no verdict."""
    path = tmp_path / "history.jsonl"
    history = History(str(path))
    for record in Story(format=1).round(1, ["n1"]).records:
        history.append(record)
    history.close()
    with pytest.raises(UsageError, match="is a history of format 1: format 2 is expected"):
        History.load(path)
    path.write_text("{}\n")
    with pytest.raises(UsageError, match="is no history: format 2 is expected"):
        History.load(path)


def test_queries_return_entries_in_order() -> None:
    """By kind, first, last, by node, by time."""
    story = Story().round(1, ["n1", "n2"]).fault("crash")
    after = story.at
    history = story.steps(1, 1, 2).end(launchers=()).history
    assert [entry.node for entry in history.of_kind(WorkerHello)] == ["n1", "n2"]
    first, last = history.first(StepCompleted), history.last(StepCompleted)
    assert first is not None
    assert last is not None
    assert (first.event.step, last.event.step) == (1, 2)
    assert history.last(FaultFired) is not None
    assert list(history.by_node()) == ["n1", "n2"]
    kinds = {entry.event.kind for entry in history.between(after, story.at)}
    assert kinds == {
        *("step_completed", "resume_observed", "run_ended", "output_read", "survivors_sought")
    }
    assert history.first(RunEnded) == history.last(RunEnded)


def test_what_was_run_is_known_from_the_first_record() -> None:
    """Relative times count from there."""
    history = Story().wait(5.0).round(1, ["n1"]).history
    assert history.run is not None
    assert history.run.event.launcher == "pytest-elastic"
    assert history.start == history[1].at
    assert History().run is None
    assert History().start == 0.0


def test_a_full_disk_is_said_once_and_costs_the_file_only() -> None:
    """It is not a defect of the harness, and the run can still be ended and judged."""
    history = History("/dev/full")
    first, second = Story().round(1, ["n1"]).records[:2]
    with pytest.raises(UsageError, match="cannot write /dev/full: No space left on device"):
        history.append(first)
    history.append(second)
    assert [entry.record for entry in history] == [first, second]
