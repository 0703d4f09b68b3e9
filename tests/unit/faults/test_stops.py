"""Several faults that stop the same process or node: it goes on when the last one is healed."""

from __future__ import annotations

import pytest
from elastic_harness.cluster.process import ProcessRef
from elastic_harness.faults.workers.stops import Stops

from tests.unit.faults.bench import World

PROCESS = ProcessRef(node="n2", pid=1002, start_time=7)
ELSEWHERE = ProcessRef(node="n3", pid=1003, start_time=7)
OTHER = ProcessRef(node="n2", pid=1003, start_time=7)


def test_a_process_goes_on_with_its_last_owner() -> None:
    """In whichever order they leave; twice is harmless."""
    stops = Stops()
    for owner in ("a", "b", "a"):
        stops.stop(owner, PROCESS)
    stops.stop("a", OTHER)
    assert stops.release("a") == (OTHER,)
    assert stops.release("a") == ()
    assert stops.release("b") == (PROCESS,)
    assert stops.release("b") == ()


def test_a_process_is_the_same_with_and_without_its_start_time() -> None:
    """One of another start time has the pid of one that is gone."""
    stops = Stops()
    stops.stop("a", PROCESS)
    stops.stop("b", ProcessRef(node="n2", pid=PROCESS.pid))
    assert stops.release("a") == ()
    stops.stop("c", ProcessRef(node="n2", pid=PROCESS.pid, start_time=8))
    assert stops.release("b") == ()
    assert stops.release("c") == (ProcessRef(node="n2", pid=PROCESS.pid, start_time=8),)


def test_who_stops_a_process_is_known() -> None:
    """Also where its node is paused; of a process that had its number, nothing is."""
    stops = Stops()
    assert stops.owners_of(PROCESS) == ()
    stops.stop("b", PROCESS)
    assert stops.owners_of(PROCESS) == ("b",)
    stops.pause("a", "n2")
    assert stops.owners_of(PROCESS) == ("a", "b")
    assert stops.owners_of(OTHER) == ("a",)
    assert stops.owners_of(ProcessRef(node="n2", pid=PROCESS.pid, start_time=8)) == ("a",)
    assert stops.owners_of(ELSEWHERE) == ()


def test_a_node_goes_on_with_its_last_owner() -> None:
    """A fault that has paused nothing resumes nothing."""
    stops = Stops()
    stops.pause("a", "n2")
    stops.pause("b", "n2")
    assert not stops.resume("stranger", "n2")
    assert not stops.resume("a", "n2")
    assert not stops.resume("a", "n2")
    assert stops.resume("b", "n2")
    assert not stops.resume("b", "n2")


def test_a_process_of_a_paused_node_goes_on_with_the_node() -> None:
    """One that is held by somebody else stays, and is to be stopped again if it has to be."""
    stops = Stops()
    stops.stop("hang", PROCESS)
    stops.stop("slow", OTHER)
    stops.pause("pause", "n2")
    assert stops.release("hang") == ()
    assert stops.resume("pause", "n2")
    assert stops.after_resume("n2") == ((PROCESS,), (OTHER,))
    assert stops.after_resume("n2") == ((), (OTHER,))
    assert stops.release("slow") == (OTHER,)


def test_a_node_that_is_paused_again_at_once_keeps_its_processes() -> None:
    """The answer to the order to resume it comes too late for anything to go on."""
    stops = Stops()
    stops.stop("hang", PROCESS)
    stops.pause("a", "n2")
    stops.release("hang")
    assert stops.resume("a", "n2")
    stops.pause("b", "n2")
    assert stops.after_resume("n2") == ((), ())
    assert stops.resume("b", "n2")
    assert stops.after_resume("n2") == ((PROCESS,), ())


def test_what_was_stopped_on_a_node_that_is_gone_is_forgotten() -> None:
    """Its next incarnation runs."""
    stops = Stops()
    stops.stop("hang", PROCESS)
    stops.stop("hang", ELSEWHERE)
    stops.pause("a", "n2")
    stops.forget("n2")
    assert not stops.resume("a", "n2")
    assert stops.release("hang") == (ELSEWHERE,)


@pytest.mark.parametrize("how", ["freezer", "signals"])
@pytest.mark.parametrize("first", ["x", "y"])
def test_two_pauses_of_a_node_last_as_long_as_the_longer(first: str, how: str) -> None:
    """Whichever is healed first."""
    world = World()
    world.cluster.is_paused_by_signals = how == "signals"
    for entry in ("x", "y"):
        world.fire("pause", {"node": "n2"}, entry_id=entry)
        world.pass_time(0.1)
    world.heal(first)
    world.pass_time(0.1)
    assert world.story[-1] == "undone"
    assert world.cluster.frozen == {"n2"}
    world.heal("y" if first == "x" else "x")
    world.pass_time(0.1)
    assert world.cluster.frozen == set()
    assert world.log.count("resume n2") == 1


STOPPING = {
    "pause": "rank 1",
    "hang": "rank 1",
    "slow": {"worker": "rank 1", "share": "90%"},
    "freeze_store": "rendezvous",
    "slow_store": {"which": "rendezvous", "share": "90%"},
}


@pytest.mark.parametrize("before", STOPPING)
@pytest.mark.parametrize("after", STOPPING)
def test_two_faults_that_stop_a_process_do_not_continue_it_for_each_other(
    before: str, after: str
) -> None:
    """All pairs: while the one that stays stops for good, the process stands."""
    world = World()
    world.endpoints["rendezvous"] = ("n2", 29400)
    world.cluster.sockets.serving["n2", 29400] = (1002,)
    world.fire(before, STOPPING[before], entry_id="x")
    world.pass_time(0.03)
    world.fire(after, STOPPING[after], entry_id="y")
    world.pass_time(3)
    world.heal("y")
    is_by_turns = before.startswith("slow")
    states = set()
    for _ in range(40):
        world.pass_time(0.013)
        states.add(world.processes[1002].state)
    assert states == ({"T", "S"} if is_by_turns else {"T"})
    world.heal("x")
    world.pass_time(1)
    assert world.processes[1002].state == "S"


@pytest.mark.parametrize("how", ["freezer", "signals"])
def test_a_worker_that_hangs_on_a_paused_node_hangs_on_when_that_goes_on(
    how: str,
) -> None:
    """And goes on with it when its own fault was healed meanwhile."""
    for is_healed_first in (False, True):
        world = World()
        world.cluster.is_paused_by_signals = how == "signals"
        world.fire("hang", "rank 1", entry_id="x")
        world.pass_time(0.1)
        world.fire("pause", {"node": "n2"}, entry_id="y")
        world.pass_time(0.1)
        if is_healed_first:
            world.heal("x")
            world.pass_time(0.1)
            assert world.processes[1002].state == "T"
        world.heal("y")
        world.pass_time(0.1)
        assert world.processes[1002].state == ("S" if is_healed_first else "T")
        world.heal("x")
        world.pass_time(0.1)
        assert world.processes[1002].state == "S"
