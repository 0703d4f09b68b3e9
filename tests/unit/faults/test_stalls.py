"""Workers that crash in native code, hang or are slow: what is done, and what proves it."""

from __future__ import annotations

import signal

import pytest

from tests.unit.faults.bench import World


@pytest.mark.parametrize(
    ("action", "signum"), [("segfault", signal.SIGSEGV), ("abort", signal.SIGABRT)]
)
def test_a_native_crash_is_proven_by_the_word_before_it_and_the_end_after_it(
    action: str, signum: int
) -> None:
    """The worker says that it begins to, and then it is gone."""
    world = World()
    world.fire(action, "rank 1")
    assert world.processes[1002].orders == [{"do": "act", "act": action, "by": "x"}]
    assert world.story == ["in force, needs job"]
    world.answer(1, action)
    world.pass_time(1)
    assert len(world.story) == 1
    world.end(1, -signum)
    world.pass_time(1)
    name = signal.Signals(signum).name
    said = f"began to {action} as ordered: rank 1 (n2, pid 1002) ended with {name}"
    assert world.story[-1] == f"proved: {said}"


def test_a_worker_that_ends_before_it_obeys_proves_nothing() -> None:
    """It may have ended for any reason."""
    world = World()
    world.fire("segfault", "rank 1")
    world.end(1)
    world.pass_time(1)
    assert world.story[-1] == "failed: rank 1 (n2, pid 1002) ended before it could segfault"


def test_a_worker_that_takes_no_step_is_not_waited_for_for_ever() -> None:
    """Orders are obeyed between two steps."""
    world = World()
    world.fire("abort", "rank 1")
    world.pass_time(31)
    assert "took no step within 30 s in which it could abort" in world.story[-1]


def test_a_hang_by_signal_is_proven_by_the_kernel_and_healed_by_the_other_signal() -> None:
    """Twice is harmless."""
    world = World()
    world.fire("hang", "rank 1")
    world.pass_time(0.1)
    assert world.story == ["in force", "proved: state T: 1002"]
    world.heal()
    world.heal()
    world.pass_time(0.1)
    assert world.log == ["SIGSTOP 1002", "SIGCONT 1002"]
    assert world.story[-1] == "undone"


def test_a_hang_with_the_lock_is_proven_by_the_workers_word() -> None:
    """It is told to resume when it is healed."""
    world = World()
    world.fire("hang", {"worker": "rank 1", "how": "gil"})
    world.answer(1, "hold_gil")
    world.pass_time(0.1)
    assert world.story[-1] == "proved: rank 1 (n2, pid 1002) keeps the interpreter's lock"
    world.heal()
    world.pass_time(0.1)
    assert world.processes[1002].orders[-1] == {"do": "resume"}


def test_a_rank_that_stays_away_from_a_collective_is_proven_by_its_peers() -> None:
    """They live and complete no step any more."""
    world = World()
    world.fire("hang", {"worker": "rank 1", "how": "collective"})
    world.answer(1, "stand")
    for _ in range(3):
        world.processes[1001].steps += 1
        world.pass_time(0.5)
    assert len(world.story) == 1
    world.pass_time(1.5)
    assert world.story[-1] == "proved: rank 1 (n2, pid 1002) stays away; its 2 peers wait"


@pytest.mark.parametrize("stopped", [1, 2])
def test_a_peer_that_is_stopped_waits_for_nobody(stopped: int) -> None:
    """One that lives and makes no step is enough; where all are stopped, nothing is proven."""
    world = World()
    world.fire("hang", {"worker": "rank 1", "how": "collective"})
    world.answer(1, "stand")
    for pid in (1001, 1003)[:stopped]:
        world.processes[pid].state = "T"
    world.pass_time(2.5)
    expected = "every peer has ended or is stopped" if stopped == 2 else "its 2 peers wait"
    assert expected in world.story[-1]


def test_peers_that_go_on_show_that_nothing_waits_for_the_rank() -> None:
    """A job without collectives cannot hang in one."""
    world = World()
    world.fire("hang", {"worker": "rank 1", "how": "collective"})
    world.answer(1, "stand")
    for _ in range(50):
        world.processes[1001].steps += 1
        world.pass_time(0.5)
    assert "its peers go on completing steps" in world.story[-1]


def test_a_rank_without_peers_cannot_be_missed() -> None:
    """Said at once."""
    world = World(nodes=1)
    world.fire("hang", {"worker": "rank 0", "how": "collective"})
    assert "has no peer that could wait for it" in world.story[-1]


def test_a_slow_worker_runs_by_turns_until_it_is_healed() -> None:
    """Proven by three stops; after the heal it is left running."""
    world = World()
    world.fire("slow", {"worker": "rank 1", "share": "25%", "period": "100ms"})
    world.pass_time(1.02)
    assert world.log.count("SIGSTOP 1002") == 11
    assert world.story == [
        "in force, needs job",
        "proved: rank 1 (n2, pid 1002) stopped for 75% of the time",
    ]
    assert world.processes[1002].state == "T"
    world.heal()
    world.pass_time(1)
    assert world.processes[1002].state == "S"
    assert world.log.count("SIGSTOP 1002") == 11
    assert world.story[-1] == "undone"


def test_a_worker_that_ends_at_once_was_not_slow() -> None:
    """Two turns are no proof."""
    world = World()
    world.fire("slow", "rank 1")
    world.pass_time(0.15)
    world.end(1)
    world.pass_time(1)
    assert "stopped in 1 turns only before it ended" in world.story[-1]
