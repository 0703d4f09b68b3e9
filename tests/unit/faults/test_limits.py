"""Too little processor, memory, processes, files: proven by the kernel's counters."""

from __future__ import annotations

import pytest
from elastic_harness.cluster.disks.policy import DiskCounters

from tests.unit.faults.bench import World


def test_a_limit_is_proven_when_the_kernel_has_counted_that_it_was_met() -> None:
    """What was counted before does not count."""
    world = World()
    world.budget.count("n2", throttled=7)
    world.fire("cpu_limit", {"node": "n2", "share": "20%"})
    world.pass_time(3)
    assert world.budget.limits == {"n2": {"cpu": 0.2}}
    assert world.story == ["in force, needs job"]
    world.budget.count("n2", throttled=9)
    world.pass_time(0.5)
    assert world.story[-1] == "proved: throttled in so many periods: n2 2"
    world.heal()
    world.heal()
    world.pass_time(0.5)
    assert world.budget.limits == {}
    assert world.story[-1] == "undone"


@pytest.mark.parametrize("after_s", [0.3, 3.0])
@pytest.mark.parametrize(
    ("fault", "counted"),
    [
        ("cpu_limit", "throttled"),
        ("memory_limit", "memory_hits"),
        ("process_limit", "processes_refused"),
        ("disk_full", "refused_full"),
    ],
)
def test_a_node_that_goes_says_nothing_of_the_others(
    fault: str, counted: str, after_s: float
) -> None:
    """The fault acts on those that are up, and on none once all are gone."""
    more = {"size": "5kB"} if fault == "memory_limit" else {}
    for lost in (["n2"], ["n1", "n2"]):
        world = World()
        for node in ("n1", "n2"):
            world.budget.count(node, processes=5)
        world.fire(fault, {"node": ["n1", "n2"], **more})
        world.pass_time(after_s)
        for node in lost:
            world.lose(node)
        world.pass_time(3)
        if fault == "disk_full":
            world.cluster.disks.counts = DiskCounters(by_owner={"x": {counted: 1}})
        else:
            world.budget.count("n1", **{counted: 1})
        world.pass_time(2)
        if lost == ["n2"]:
            assert world.story[-1].startswith("proved")
            assert world.story[-1].endswith(": n1 1")
        else:
            assert world.story[-1] == "failed: n1, n2: no such node is up any more"


def test_a_limit_that_nobody_meets_is_no_fault() -> None:
    """An idle node does not notice."""
    world = World()
    world.fire("cpu_limit", "n2")
    world.pass_time(31)
    assert world.story[-1] == "failed: no process on n2 wanted more than 20% of a processor"


def test_a_limit_that_is_healed_looks_once_more() -> None:
    """It may have been met since the last look."""
    world = World()
    world.fire("process_limit", "n2")
    world.pass_time(1)
    world.budget.count("n2", processes_refused=1)
    world.heal()
    world.pass_time(0.5)
    assert world.story[-2:] == ["proved: refused so many processes: n2 1", "undone"]


def test_a_limit_that_is_met_at_once_and_healed_is_proven() -> None:
    """A job may have met it, said so and had it healed before anything else was read."""
    for action, counted in (("process_limit", "processes_refused"), ("cpu_limit", "throttled")):
        world = World()
        world.fire(action, "n2")
        while "in force, needs job" not in world.story:
            if "n2" in world.budget.limits:
                world.budget.count("n2", **{counted: 3})
            world.pass_time(0.01)
        world.heal()
        world.pass_time(0.5)
        assert world.story[-2].endswith(": n2 3"), (action, world.story)


def test_processes_that_come_and_go_are_not_counted() -> None:
    """A thread that was there at the first look would leave room for itself for ever."""
    world = World()
    world.budget.count("n2", processes=6)
    world.fire("process_limit", {"node": "n2", "free": 2})
    world.pass_time(0.2)
    world.budget.count("n2", processes=5)
    world.pass_time(0.1)
    world.budget.count("n2", processes=6)
    world.pass_time(0.5)
    assert world.budget.limits == {"n2": {"process": 7}}


def test_a_limit_follows_processes_that_end_before_any_was_refused() -> None:
    """What was about to end would leave room for ever; what is soon back is left its room."""
    world = World()
    world.budget.count("n2", processes=6)
    world.fire("process_limit", {"node": "n2", "free": 2})
    world.pass_time(0.8)
    assert world.budget.limits == {"n2": {"process": 8}}
    world.budget.count("n2", processes=3)
    world.pass_time(0.5)
    world.budget.count("n2", processes=6)
    world.pass_time(1.5)
    assert world.budget.limits == {"n2": {"process": 8}}
    world.budget.count("n2", processes=5)
    world.pass_time(2)
    assert world.budget.limits == {"n2": {"process": 7}}
    world.budget.count("n2", processes_refused=1)
    world.pass_time(0.5)
    world.budget.count("n2", processes=4)
    world.pass_time(3)
    assert world.budget.limits == {"n2": {"process": 7}}


def test_memory_is_limited_to_so_much_more_than_there_is() -> None:
    """Charges stay where they were made."""
    world = World()
    world.budget.count("n2", memory=1000)
    world.fire("memory_limit", {"node": "n2", "size": "5kB"})
    world.pass_time(0.3)
    assert world.budget.limits == {"n2": {"memory": 6000}}
    world.budget.count("n2", memory_kills=1)
    world.pass_time(0.3)
    assert world.story == ["in force, needs job"], "the machine itself may be short of memory"
    world.budget.count("n2", memory_hits=1)
    world.pass_time(0.3)
    assert world.story[-1] == "proved: met the limit so many times: n2 1"


def test_a_kill_for_memory_is_proven_by_the_kernel_and_its_limit_lifted() -> None:
    """That the worker is gone is not enough."""
    world = World()
    world.fire("oom", "rank 1")
    world.pass_time(0.3)
    assert world.processes[1002].orders[-1]["act"] == "eat"
    assert world.budget.limits == {}, "any process on the node could meet it"
    world.answer(1, "eat")
    world.pass_time(0.3)
    assert world.budget.limits == {"n2": {"memory": 128 << 20}}
    assert world.processes[1002].orders[-1] == {"do": "resume"}
    world.budget.count("n2", memory_kills=1)
    world.end(1, -9)
    world.pass_time(0.3)
    said = "killed by the kernel for lack of memory: rank 1 (n2, pid 1002) ended with SIGKILL"
    assert world.story[-1] == f"proved: {said}"
    assert world.budget.limits == {}
    world = World()
    world.fire("oom", "rank 1")
    world.answer(1, "eat")
    world.pass_time(0.3)
    world.end(1, -9)
    world.pass_time(0.3)
    assert world.story[-1].endswith("is gone, but not for lack of memory")
    assert world.budget.limits == {}


def test_files_are_limited_by_the_worker() -> None:
    """Proven when its script is refused one; and given back."""
    world = World()
    world.fire("file_limit", {"worker": "rank 1", "free": 2})
    told = [order.get("act", order["do"]) for order in world.processes[1002].orders]
    assert told == ["watch_files", "resume"], "it stands still until it is limited"
    assert world.story == ["in force, needs job"]
    world.answer(1, "watch_files", "ended", "open '/tmp/x'")
    world.pass_time(0.5)
    who = "rank 1 (n2, pid 1002)"
    said = f"{who} wanted `open '/tmp/x'` with all numbers below 11 in use"
    assert world.story[-1] == f"proved: {said}"
    world.heal()
    world.pass_time(0.1)
    assert world.budget.files == {}


def test_a_worker_that_waits_for_a_held_rank_is_let_go_on_to_be_limited() -> None:
    """It hears of the order in its next step, which may need the rank that is held."""
    world = World()
    world.cluster.numb = True
    world.fire("file_limit", "rank 1")
    assert world.story == ["in force, needs job"]
    assert world.budget.files == {}


def test_a_limit_on_files_that_nothing_meets_proves_nothing() -> None:
    """Neither in its time nor until it is healed; what was limited is said."""
    for after_s in (60.0, 2.0):
        world = World()
        world.fire("file_limit", "rank 1")
        world.pass_time(after_s)
        world.heal()
        world.pass_time(0.5)
        (failed,) = [each for each in world.story if each.startswith("failed")]
        assert "in force (rank 1 (n2, pid 1002) below 9), but nothing was refused" in failed


def test_a_worker_that_cannot_tell_is_not_limited() -> None:
    """Nobody could say whether it meets the limit."""
    world = World()
    world.processes[1002].has_probe = False
    world.fire("file_limit", "rank 1")
    assert "no probe that could see whether it is refused files" in world.story[-1]
    assert world.budget.files == {}
