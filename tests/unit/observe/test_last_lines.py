"""What a worker printed last is taken when it is gone, before others write on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from elastic_harness.cluster.local_logs import LocalLogs
from elastic_harness.history.events import LastLinesSeen, WorkerFinished, WorkerGone, WorkerHello
from elastic_harness.observe.last_lines import LastLines

from pytest_elastic.events.model import WorkerExited
from tests.unit.history.story import Story


def told(story: Story, lines: LastLines) -> None:
    """Tell of everything that has happened."""
    for record in story.records:
        lines.see(record)


def crashed(rank: int = 0) -> Story:
    """One node, two workers; one fails."""
    story = Story(nodes=1, nproc=2).round(1, ["n1"])
    failed = WorkerExited(
        round=1, local_rank=rank, rank=rank, pid=7, exit_code=2, signal=0, cause="failed"
    )
    return story.tell("agent", "n1", failed).gone(1, rank)


def test_what_is_printed_later_is_not_its(tmp_path: Path) -> None:
    """By the launcher, and by the workers of the next round."""
    log = tmp_path / "n1" / "launcher.log"
    log.parent.mkdir()
    log.write_text("[agent n1] round 1\nusage: x\nx: error: no\n")
    lines = LastLines(LocalLogs(), str(tmp_path), r"\[agent")
    story = crashed()
    told(story, lines)
    log.write_text("[agent n1] round 2\nanother worker\n")
    expected = LastLinesSeen(
        pid=story.pids[1, 0], rank=0, file="launcher.log", lines=("usage: x", "x: error: no")
    )
    assert lines.of_first_failure(story.history) == ("n1", expected)


def test_the_first_sign_of_its_end_counts(tmp_path: Path) -> None:
    """Its launcher may have summed up before the kernel says that it is gone."""
    log = tmp_path / "n1" / "launcher.log"
    log.parent.mkdir()
    lines = LastLines(LocalLogs(), str(tmp_path), "")
    story = Story(nodes=1).round(1, ["n1"])
    pid = story.pids[1, 0]
    failed = WorkerExited(
        round=1, local_rank=0, rank=0, pid=7, exit_code=2, signal=0, cause="failed"
    )
    signs = (WorkerFinished(pid=pid, rank=0), failed, WorkerGone(pid=pid, rank=0))
    told(story, lines)
    for number, sign in enumerate(signs):
        story.tell("agent" if sign is failed else "worker", "n1", sign)
        log.write_text("".join(f"line {line}\n" for line in range(number + 1)))
        lines.see(story.records[-1])
    found = lines.of_first_failure(story.history)
    assert found is not None
    assert found[1].lines == ("line 0",)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_worker_with_a_file_of_its_own_is_read_there(tmp_path: Path, rank: int) -> None:
    """The newest of its local rank: earlier attempts have theirs."""
    lines = LastLines(LocalLogs(), str(tmp_path), "")
    for attempt in (0, 1):
        for local_rank in (0, 1):
            folder = tmp_path / "n1" / "workers" / "job" / f"attempt_{attempt}" / str(local_rank)
            folder.mkdir(parents=True)
            (folder / "stderr.log").write_text(f"attempt {attempt}, local rank {local_rank}\n")
            os.utime(folder / "stderr.log", (attempt, attempt))
    story = crashed(rank)
    told(story, lines)
    found = lines.of_first_failure(story.history)
    assert found is not None
    assert found[1].file == f"workers/job/attempt_1/{rank}/stderr.log"
    assert found[1].lines == (f"attempt 1, local rank {rank}",)


def test_nothing_is_said_without_a_failure_or_a_log(tmp_path: Path) -> None:
    """A run that went well adds nothing to its history."""
    lines = LastLines(LocalLogs(), str(tmp_path), "")
    story = Story(nodes=1).round(1, ["n1"]).finish(1)
    told(story, lines)
    assert lines.of_first_failure(story.history) is None
    told(crashed(), lines)
    assert lines.of_first_failure(crashed().history) is None


def test_a_pid_that_is_given_out_again_is_another_worker(tmp_path: Path) -> None:
    """Its end is yet to come."""
    log = tmp_path / "n1" / "launcher.log"
    log.parent.mkdir()
    log.write_text("old\n")
    lines = LastLines(LocalLogs(), str(tmp_path), "")
    story = crashed()
    told(story, lines)
    hello = next(record for record in story.records if isinstance(record.event, WorkerHello))
    lines.see(hello)
    assert lines.of_first_failure(story.history) is None
    log.write_text("new\n")
    gone = next(record for record in story.records if isinstance(record.event, WorkerGone))
    lines.see(gone)
    found = lines.of_first_failure(story.history)
    assert found is not None
    assert found[1].lines == ("new",)
