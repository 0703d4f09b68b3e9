from __future__ import annotations

import json
from pathlib import Path

import pytest
from elastic_harness.history.events import FaultFired, RunEnded, StepCompleted, WorkerHello
from elastic_harness.history.history import History

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
        assert len(History.load(path)) in (2, 3)


def test_queries_return_entries_in_order() -> None:
    """By kind, first, last, by node, by time."""
    story = Story().round(1, ["n1", "n2"]).fault("crash")
    after = story.at
    history = story.steps(1, 1, 2).end().history
    assert [entry.node for entry in history.of_kind(WorkerHello)] == ["n1", "n2"]
    first, last = history.first(StepCompleted), history.last(StepCompleted)
    assert first is not None
    assert last is not None
    assert (first.event.step, last.event.step) == (1, 2)
    assert history.last(FaultFired) is not None
    assert list(history.by_node()) == ["n1", "n2"]
    kinds = {entry.event.kind for entry in history.between(after, story.at)}
    assert kinds == {"step_completed", "resume_observed", "run_ended"}
    assert history.first(RunEnded) == history.last(RunEnded)


def test_what_was_run_is_known_from_the_first_record() -> None:
    """Relative times count from there."""
    history = Story().wait(5.0).round(1, ["n1"]).history
    assert history.run is not None
    assert history.run.event.launcher == "pytest-elastic"
    assert history.start == history[1].at
    assert History().run is None
    assert History().start == 0.0
