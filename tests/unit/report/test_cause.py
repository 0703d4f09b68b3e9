"""Which worker failed first by itself, what it said, and where the others stand."""

from __future__ import annotations

import re

import pytest
from elastic_harness.history.events import (
    FaultFired,
    LastLinesSeen,
    ProcessStarted,
    StackSeen,
    WorkerEnded,
    WorkerRaised,
)
from elastic_harness.history.history import History
from elastic_harness.report.cause import failed_first, first_failure, lines_of, where_ranks_stand
from elastic_harness.report.failure_screen import failure_screen
from elastic_harness.report.last_words import lines_about

from pytest_elastic.events.model import WorkerExited
from tests.unit.history.story import Story

PEER = "[tcp/pair.cc:553] Connection closed by peer [10.77.0.1]:47005"
IN_USE = "[Errno 98] Address already in use"


def raised(
    story: Story, rank: int, error: str, message: str, *, round: int = 1, thread: str = ""
) -> Story:
    """Let a worker raise."""
    pid = story.pids[round, rank]
    frames = ("/usr/lib/python3.11/socket.py:5 in bind", "/me/train.py:14 in serve")
    event = WorkerRaised(
        pid=pid, rank=rank, error=error, message=message, frames=frames, thread=thread
    )
    return story.tell("worker", f"n{rank + 1}", event)


def exited(story: Story, rank: int, code: int, *, round: int = 1, cause: str = "failed") -> Story:
    """Let a launcher say how a worker ended."""
    event = WorkerExited(
        round=round,
        local_rank=0,
        rank=rank,
        pid=7,
        exit_code=code,
        signal=max(-code, 0),
        cause=cause,
    )
    return story.tell("agent", f"n{rank + 1}", event)


def three() -> Story:
    """Three nodes with one worker each."""
    return Story(nodes=3).round(1, ["n1", "n2", "n3"])


def first(history: History) -> tuple[int, str]:
    """Return the rank that failed first, and what is said of it."""
    failed = failed_first(history)
    assert failed is not None
    return failed.rank, str(failed)


def test_who_raised_comes_before_who_only_noticed() -> None:
    """Also when a victim of the broken collective was reported before."""
    story = three()
    raised(story, 0, "RuntimeError", PEER)
    raised(story, 2, "OSError", IN_USE)
    exited(story, 0, 1)
    exited(story, 2, 1)
    history = story.gone(1).end("failed").history
    assert first(history) == (2, f"rank 2 on n3, exit code 1: OSError: {IN_USE}")


def test_among_those_who_failed_by_themselves_time_decides() -> None:
    """The second OSError may be a consequence, the first is none."""
    story = three()
    raised(story, 1, "OSError", "disk")
    raised(story, 0, "KeyError", "'x'")
    history = story.gone(1).end("failed").history
    assert first(history)[0] == 1


@pytest.mark.parametrize("fault", ["kill", "raise"])
@pytest.mark.parametrize("target", ["rank 1 (n2, pid {pid})", "n2", "rank 1"])
def test_whom_a_fault_has_ended_has_not_failed_by_itself(fault: str, target: str) -> None:
    """Nor have ranks that noticed that; a rank that fails of it in another way has."""
    story = three()
    hit = target.format(pid=story.pids[1, 1])
    story.tell("fault", "", FaultFired(id="f", fault=fault, targets=(hit,)))
    raised(story, 1, "RuntimeError", "injected")
    exited(story, 1, 1)
    raised(story, 0, "RuntimeError", PEER)
    exited(story, 0, 1)
    assert failed_first(story.gone(1).history) is None
    raised(story.round(2, ["n1", "n2", "n3"]), 2, "KeyError", "'step'", round=2)
    assert first(story.history) == (2, "rank 2 on n3: KeyError: 'step'")


def test_a_fault_that_ends_nobody_excuses_nobody() -> None:
    """A full disk is what the fault does; the OSError is what the script makes of it."""
    story = three().fault("full", "disk_full", "n2")
    raised(story, 1, "OSError", "[Errno 28] No space left on device")
    assert first(story.history)[0] == 1


def test_whom_the_launcher_stops_has_not_failed() -> None:
    """A round that ends because another node comes."""
    story = three()
    for rank in range(3):
        exited(story, rank, -15, cause="stopped")
    assert failed_first(story.gone(1).end("failed").history) is None


def test_what_is_raised_while_a_run_is_taken_down_is_its_doing() -> None:
    """At the limit all are killed, one after the other."""
    story = three().end("limit")
    raised(story, 1, "RuntimeError", "anything")
    assert failed_first(story.history) is None


def test_who_vanishes_without_a_word_comes_before_who_noticed() -> None:
    """As a worker does that crashes, under a launcher that states no events."""
    story = three().gone(1, 1)
    raised(story, 0, "RuntimeError", PEER)
    assert first(story.gone(1, 0, 2).history) == (
        1,
        f"rank 1 on n2 was gone first (pid {story.pids[1, 1]})",
    )
    raised(story.round(2, ["n1", "n2", "n3"]), 2, "KeyError", "'x'", round=2)
    assert first(story.history) == (2, "rank 2 on n3: KeyError: 'x'")


def test_how_a_worker_ended_is_told_where_only_the_kernel_knows() -> None:
    """One that goes down in order, with an exit code, has failed all the same."""
    story = three().gone(1, 1)
    story.tell("cluster", "n2", WorkerEnded(pid=story.pids[1, 1], rank=1, exit_code=-11))
    raised(story, 0, "RuntimeError", PEER)
    assert first(story.gone(1, 0, 2).history) == (1, "rank 1 on n2, SIGSEGV")
    story = three().finish(1)
    for rank, code in enumerate((0, 0, 3)):
        ended = WorkerEnded(pid=story.pids[1, rank], rank=rank, exit_code=code)
        story.tell("cluster", f"n{rank + 1}", ended)
    assert first(story.end("failed").history) == (2, "rank 2 on n3, exit code 3")


def test_without_a_launcher_that_tells_who_was_gone_first_is_the_best_guess() -> None:
    """A script that refuses its arguments ends in order, whatever its exit code."""
    story = three().finish(1)
    assert first(story.end("failed").history)[0] == 0
    assert failed_first(three().finish(1).end("succeeded").history) is None
    assert first(three().steps(1, 1, 2).step(1, 2, 3).finish(1).end("failed").history)[0] == 0


def test_a_launcher_that_fails_when_all_workers_are_done_is_named_itself() -> None:
    """They ended in order after as many steps: none of them has failed."""
    launcher = ProcessStarted(pid=7, role="launcher", argv=("l",))
    story = three().tell("cluster", "n2", launcher).steps(1, 1, 3).finish(1)
    story.launcher_exits({"n2": 2, "n3": 1})
    history = story.end("failed", launchers=("n1",)).history
    assert failed_first(history) is None
    assert first_failure(history) == "the launcher of n2, exit code 2"


def test_a_thread_is_named_if_nobody_has_failed_otherwise() -> None:
    """Its process lives, and may be what all others wait for."""
    story = three()
    raised(story, 1, "OSError", "disk", thread="saver")
    assert first(story.history) == (1, "rank 1 on n2, thread saver: OSError: disk")
    raised(story, 2, "KeyError", "1")
    assert first(story.history)[0] == 2


def test_the_last_lines_stand_below_without_what_is_said_already() -> None:
    """At most six, and nothing that could move the cursor."""
    story = three()
    raised(story, 1, "OSError", IN_USE)
    failed = failed_first(story.history)
    assert failed is not None
    assert lines_of(story.history, failed) == ["at /me/train.py:14 in serve"]
    lines = ("Traceback (most recent call last):", *"1234567", f"OSError: {IN_USE}", "\x1b[2Jx")
    seen = LastLinesSeen(pid=failed.pid, rank=1, file="launcher.log", lines=lines)
    history = story.tell("worker", "n2", seen).history
    assert lines_of(history, failed) == ["3", "4", "5", "6", "7", " [2Jx"]


# --- lines of a log ----------------------------------------------------------------------------

LOG = """\
[agent n1] round 1
loading
[rank0]: Traceback (most recent call last):
[rank1]: Traceback (most recent call last):
[rank1]:   File "train.py", line 14, in serve
[rank0]:   File "train.py", line 41, in step
[rank1]: OSError: in use
[rank0]: RuntimeError: Connection closed by peer
[agent n1] round 1 ended
"""


@pytest.mark.parametrize(
    ("text", "error", "message", "lines"),
    [
        (
            LOG,
            "OSError",
            "in use",
            [
                "Traceback (most recent call last):",
                '  File "train.py", line 14, in serve',
                "OSError: in use",
            ],
        ),
        ("a\nusage: x\nx: error: no\n[agent n1] over\n", "", "", ["a", "usage: x", "x: error: no"]),
        ("[default1]:usage: x\n[default1]:  -h\n", "", "", ["usage: x", "  -h"]),
        ("[default1]:[rank1]: my.Error: two\nlines\nmore\n", "my.Error", "two\nlines", None),
        ("x: error: no\n" + "=" * 72 + "\nthe job failed: x\n", "", "", ["x: error: no"]),
        (
            "=====\nlast\nTraceback (most recent call last):\n"
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
            + "=" * 60
            + "\ntrain.py FAILED\n",
            "",
            "",
            ["=====", "last"],
        ),
        ("never printed\n", "OSError", "x", ["never printed"]),
        ("", "OSError", "x", []),
    ],
)
def test_lines_about_an_exception_are_its_traceback(
    text: str, error: str, message: str, lines: list[str] | None
) -> None:
    """Of that rank, without the launcher's; all that was printed last where there is none."""
    own = re.compile(r"\[agent")
    found = lines_about(text, 1, own_lines=own, error=error, message=message)
    assert list(found) == (["my.Error: two", "lines"] if lines is None else lines)


# --- where ranks stand -------------------------------------------------------------------------

SITE = "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
STEP = (f"{SITE}:3252 in all_reduce", "/me/train.py:41 in step", "/me/train.py:90 in <module>")
SAVE = ("/me/train.py:88 in save", "/me/train.py:91 in <module>")


def hung(story: Story, rank: int, *frames: str, source: str = "", reason: str = "") -> Story:
    """Let a rank be seen at the end."""
    pid = story.pids[1, rank]
    seen = StackSeen(pid=pid, rank=rank, frames=frames, source=source, reason=reason)
    return story.tell("worker", f"n{rank + 1}", seen)


def five() -> Story:
    """Five nodes with one worker each, at the limit."""
    names = [f"n{number}" for number in range(1, 6)]
    return Story(nodes=5).round(1, names).end("limit")


def test_who_is_missing_from_the_collective_comes_first() -> None:
    """The others stand together, with the call where its source is not known."""
    story = five()
    for rank in (0, 1, 2, 4):
        hung(story, rank, *STEP)
    hung(story, 3, *SAVE, source='with open(path, "w") as file:')
    assert where_ranks_stand(story.history) == [
        'rank 3 on n4, not in the collective: train.py:88 in save: with open(path, "w") as file:',
        "ranks 0-2, 4, in a collective: train.py:41 in step (all_reduce)",
    ]


def test_the_missing_come_first_also_where_they_are_many() -> None:
    """One has reached the collective, and waits for the four."""
    story = hung(five(), 0, *STEP)
    for rank in range(1, 5):
        hung(story, rank, *SAVE)
    assert where_ranks_stand(story.history) == [
        "ranks 1-4, not in the collective: train.py:88 in save",
        "rank 0 on n1, in a collective: train.py:41 in step (all_reduce)",
    ]


def test_who_does_not_answer_is_missing_too() -> None:
    """A frozen rank is the one that the others wait for."""
    story = five()
    for rank in range(4):
        hung(story, rank, *STEP, source="dist.all_reduce(loss)")
    hung(story, 4, reason="stopped (state T)")
    assert where_ranks_stand(story.history) == [
        "rank 4 on n5, not in the collective: stopped (state T)",
        "ranks 0-3, in a collective: train.py:41 in step: dist.all_reduce(loss)",
    ]


def test_without_a_collective_nobody_is_missing_from_it() -> None:
    """The few come before the many; many places are cut off."""
    story = five()
    for rank in range(5):
        hung(story, rank, *SAVE[min(rank, 1) :])
    assert where_ranks_stand(story.history) == [
        "rank 0 on n1: train.py:88 in save",
        "ranks 1-4: train.py:91 in <module>",
    ]
    many = Story(nodes=9).round(1, [f"n{number}" for number in range(1, 10)]).end("limit")
    for rank in range(9):
        hung(many, rank, f"/me/train.py:{rank} in f")
    assert where_ranks_stand(many.history)[5:] == [
        "rank 5 on n6: train.py:5 in f",
        "and 3 more places",
    ]


def test_who_is_held_by_the_harness_is_said_to_be() -> None:
    """Its stack ends in the probe."""
    story = hung(five(), 1, "/x/elastic_harness/observe/probe/elastic_probe.py:9 in _hold", *SAVE)
    assert where_ranks_stand(story.history) == [
        "rank 1 on n2: train.py:88 in save, held by the harness"
    ]


def test_a_long_path_leaves_room_for_the_lines_number() -> None:
    """Its end is what tells files apart."""
    story = three()
    raised(story, 1, "OSError", IN_USE)
    line = f'  File "/{"long/" * 20}me/train.py", line 14, in serve'
    seen = LastLinesSeen(pid=story.pids[1, 1], rank=1, file="launcher.log", lines=(line,))
    story.tell("worker", "n2", seen)
    text = failure_screen(story.history, [], run_directory="/x", command="y")
    assert '                 File "…/me/train.py", line 14, in serve\n' in text


def test_the_screen_shows_both_and_stays_a_screen() -> None:
    """With a title each."""
    story = three()
    raised(story, 1, "OSError", IN_USE)
    story.end("limit")
    hung(story, 0, *STEP)
    text = failure_screen(story.history, [], run_directory="/x", command="y")
    assert f"first failure  rank 1 on n2: OSError: {IN_USE}\n               at /me/" in text
    assert "where it hangs rank 0 on n1, in a collective: train.py:41 in step" in text
    noisy = failure_screen(
        story.history, [], run_directory="/x", command="y", last_words="ValueError: of another"
    )
    assert "of another" not in noisy
