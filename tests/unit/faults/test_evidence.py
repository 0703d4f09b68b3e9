"""The boundaries of evidence: of two that are hit one is not enough, and one more cause is another.

What proves a fault is shown with its example (`examples.py`); here is where that begins and ends.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest
from elastic_harness.faults.evidence import Evidence
from elastic_harness.scenario.engine.messages import FaultProved

from tests.unit.faults.bench import World
from tests.unit.faults.causes import served

BOTH_NODES = {"node": ["n1", "n2"]}
BOTH_WORKERS = {"worker": ["rank 0", "rank 1"]}


def facts(world: World) -> dict[str, Any]:
    """Return the facts of the only evidence that there is."""
    (proved,) = [each for each in world.told if isinstance(each, FaultProved)]
    return dict(Evidence.of(proved.evidence).facts)


# --- of two that are hit, one is not enough ---------------------------------------------


def ignores(pid: int, *signums: int) -> Callable[[World], None]:
    """Let a process ignore signals."""

    def do(world: World) -> None:
        world.processes[pid].ignores = set(signums)

    return do


def stays(node: str) -> Callable[[World], None]:
    """Let no order end a node, or start it."""

    def do(world: World) -> None:
        world.cluster.numb_nodes.add(node)

    return do


@pytest.mark.parametrize(
    ("action", "value", "one_is_not_hit", "said"),
    [
        ("kill", BOTH_WORKERS, ignores(1002, signal.SIGKILL), "still alive after 5 s: rank 1 "),
        ("kill", BOTH_WORKERS, ignores(1001, signal.SIGKILL), "still alive after 5 s: rank 0 "),
        (
            "kill_agent",
            BOTH_NODES,
            ignores(501, signal.SIGKILL),
            "still alive after 5 s: the launcher on n1",
        ),
        ("leave", BOTH_NODES, ignores(501, signal.SIGTERM), "launcher on n1 had not ended 40 s"),
        ("crash", BOTH_NODES, stays("n1"), "still up: n1"),
        ("crash", BOTH_NODES, stays("n2"), "still up: n2"),
        ("power_cut", BOTH_NODES, stays("n2"), "still up: n2"),
        ("hang", BOTH_WORKERS, ignores(1002, signal.SIGSTOP), "not stopped: one of 1001, 1002"),
        ("pause", BOTH_WORKERS, ignores(1001, signal.SIGSTOP), "not stopped: one of 1001, 1002"),
        ("slow", BOTH_WORKERS, ignores(1002, signal.SIGSTOP), "0 times it was seen to run and"),
    ],
)
def test_a_fault_that_hits_one_of_two_is_not_proven(
    action: str, value: object, one_is_not_hit: Callable[[World], None], said: str
) -> None:
    """Whichever of them that is."""
    world = World()
    one_is_not_hit(world)
    world.fire(action, value)
    world.pass_time(60)
    assert world.story[-1].startswith("failed: ")
    assert said in world.story[-1]
    assert not any(each.startswith("proved") for each in world.story)


def test_a_store_with_two_holders_is_killed_when_both_are_gone() -> None:
    """A fork of it would go on serving."""
    world = World()
    served(world)
    world.cluster.sockets.serving["n1", 29400] = (1001, 501)
    ignores(501, signal.SIGKILL)(world)
    world.fire("kill_store", "rendezvous")
    world.pass_time(60)
    assert world.story[-1] == "failed: still alive after 5 s: process 501"


def test_a_store_with_two_holders_is_frozen_until_both_are_gone() -> None:
    """One that has ended leaves the other one stopped."""
    world = World()
    served(world)
    world.cluster.sockets.serving["n1", 29400] = (1001, 501)
    world.fire("freeze_store", "rendezvous")
    world.pass_time(1)
    world.end(0)
    world.pass_time(2)
    assert world.processes[501].state == "T"
    world.heal()
    world.pass_time(1)
    assert world.processes[501].state == "S"


def test_a_worker_that_stood_still_before_is_not_slowed_with_the_other() -> None:
    """It did not run before its turn."""
    world = World()
    world.processes[1002].state = "T"
    world.processes[1002].ignores = {signal.SIGCONT}
    world.fire("slow", BOTH_WORKERS)
    world.pass_time(60)
    assert "0 times it was seen to run and then to stop" in world.story[-1]


@pytest.mark.parametrize("action", ["replace", "reboot"])
def test_nodes_come_back_when_all_of_them_are_up(action: str) -> None:
    """Those that are not are named."""
    world = World()
    world.fire(action, {"node": ["n1", "n2"], "downtime": "2s"})
    world.pass_time(1)
    world.cluster.numb_nodes.add("n2")
    world.pass_time(60)
    assert world.story[-1] == "failed: did not come back: n2"
    world = World()
    world.broken.add("start")
    world.fire(action, {"node": ["n1", "n2"], "downtime": "2s"})
    world.pass_time(60)
    assert world.story[-1].startswith("failed: cannot start n1")


def test_a_replaced_node_dies_as_it_is_told() -> None:
    """A crash if nothing is said."""
    for by, how in (("crash", "crash n2"), ("power_cut", "power_cut n2")):
        world = World()
        world.fire("replace", {"node": "n2", "by": by})
        world.pass_time(1)
        assert world.log[0] == how


def test_a_preempted_pair_has_left_when_both_have() -> None:
    """Until then the power stays on, and no longer than the notice."""
    world = World()
    ignores(502, signal.SIGTERM)(world)
    world.fire("preempt", {**BOTH_NODES, "notice": "5s"})
    world.pass_time(4.9)
    assert world.story == ["in force, needs job"]
    assert "power_cut n1" not in world.log
    world.pass_time(0.3)
    assert world.story[-1] == "proved: n1, n2 gone, 5 s after SIGTERM"


@pytest.mark.parametrize("notice_s", [0.5, 5.0])
def test_a_node_that_left_has_power_until_the_notice_is_over(notice_s: float) -> None:
    """Other processes of it are not done; it is no longer than that, however short it is."""
    world = World()
    world.fire("preempt", {"node": "n2", "notice": notice_s})
    world.pass_time(notice_s - 0.05)
    assert world.log == ["SIGTERM 502"]
    world.pass_time(0.1)
    assert world.log == ["SIGTERM 502", "power_cut n2"]


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        (0, "proved"),
        (1, "proved"),
        (-15, "proved"),
        (-1, "failed"),
        (-9, "failed"),
        (-14, "failed"),
    ],
)
def test_a_launcher_left_with_any_exit_code_or_by_the_signal_it_got(
    code: int, outcome: str
) -> None:
    """Another signal is another cause."""
    world = World()
    world.cluster.ends_instead[502] = code
    world.fire("leave", "n2")
    world.pass_time(5)
    assert world.story[-1].startswith(outcome)


def test_a_launcher_whose_end_nothing_tells_has_left() -> None:
    """It is gone, and it was told to go; a preempted one is proven by the power cut."""
    world = World()
    world.cluster.tells_ends = False
    world.fire("leave", "n2")
    world.pass_time(5)
    assert world.story[-1].endswith("n2 with an exit code that nothing tells")
    world = World()
    world.cluster.tells_ends = False
    world.fire("preempt", {"node": "n2", "notice": "5s"})
    world.pass_time(6)
    assert world.story == ["in force, needs job", "proved: n2 gone, 5 s after SIGTERM"]


@pytest.mark.parametrize(
    ("told_after_s", "of_another_end"),
    [
        (0.5, "failed: the launcher on n2 got SIGKILL, but it ended with exit code 3"),
        (3.0, "proved: launcher on n2 gone"),
    ],
)
def test_how_it_ended_is_waited_for_a_moment(told_after_s: float, of_another_end: str) -> None:
    """By some launchers and kernels it is never told."""
    world = World()
    world.cluster.told_after_s = told_after_s
    world.fire("kill_agent", "n2")
    world.pass_time(0.3)
    assert world.story == ["in force"]
    world.pass_time(2)
    assert world.story[-1] == "proved: launcher on n2 gone"
    world = World()
    world.cluster.told_after_s = told_after_s
    world.cluster.ends_instead[502] = 3
    world.fire("kill_agent", "n2")
    world.pass_time(2)
    assert world.story[-1] == of_another_end


def test_a_heal_does_not_wait_for_how_it_ended() -> None:
    """What was seen until then is told: it is gone, and the kernel counted the kill."""
    world = World()
    world.cluster.told_after_s = 30.0
    world.fire("oom", "rank 1")
    world.pass_time(0.3)
    world.answer(1, "eat")
    world.pass_time(0.1)
    world.budget.count("n2", memory_kills=1)
    world.end(1, -9)
    world.pass_time(0.3)
    assert world.story == ["in force, needs job"]
    world.heal()
    world.pass_time(0.1)
    assert world.story[1].startswith("proved: killed by the kernel for lack of memory")


@pytest.mark.parametrize(("action", "value", "pid"), [
    ("kill", "rank 1", 1002), ("kill_agent", "n2", 502), ("leave", "n2", 502),
])  # fmt: skip
def test_who_ends_before_the_signal_is_sent_was_not_ended_by_it(
    action: str, value: str, pid: int
) -> None:
    """It was there a moment ago."""
    world = World()
    world.cluster.ends_when_watched.add(pid)
    world.fire(action, value)
    world.pass_time(2)
    assert world.log == []
    assert "had ended" in world.story[-1]


def test_a_launcher_that_is_gone_cannot_be_killed() -> None:
    """Said with its node."""
    world = World()
    world.fire("kill_agent", "n2")
    world.pass_time(1)
    world.fire("kill_agent", "n2", entry_id="y")
    assert world.story_of("y") == ["failed: no launcher runs on n2"]


def test_an_exception_that_nothing_tells_the_end_of_is_not_proven() -> None:
    """It said that it began to; what it ended of is not known."""
    world = World()
    world.cluster.tells_ends = False
    world.fire("raise", "rank 1")
    world.answer(1, "raise", "began")
    world.end(1)
    world.pass_time(3)
    assert world.story[-1] == (
        "failed: rank 1 (n2, pid 1002) began to raise, but it ended with an exit code that nothing "
        "tells"
    )


@pytest.mark.parametrize(
    ("code", "outcome"),
    [(1, "proved"), (-1, "proved"), (-6, "proved"), (0, "failed"), (-9, "failed"), (-15, "failed")],
)
def test_an_assertion_on_the_device_ends_in_any_failure_but_a_kill(code: int, outcome: str) -> None:
    """SIGKILL and SIGTERM are others' doing."""
    world = World()
    world.fire("device_assert", "rank 1")
    world.answer(1, "device_assert")
    world.end(1, code)
    world.pass_time(3)
    assert world.story[-1].startswith(outcome)


# --- who waits, who is stopped ----------------------------------------------------------


def test_a_rank_alone_can_keep_the_interpreters_lock() -> None:
    """Only who stays away from a collective needs peers."""
    world = World(nodes=1)
    world.fire("hang", {"worker": "rank 0", "how": "gil"})
    world.answer(0, "hold_gil")
    world.pass_time(1)
    assert world.story[-1].startswith("proved: ")


def test_peers_that_have_ended_wait_for_nobody() -> None:
    """They complete no step either."""
    world = World()
    world.fire("hang", {"worker": "rank 1", "how": "collective"})
    world.answer(1, "stand")
    world.end(0)
    world.end(2)
    world.pass_time(3)
    assert world.story[-1] == (
        "failed: every peer has ended or is stopped: none waits in a collective"
    )


def test_peers_are_watched_longer_by_a_patient_run() -> None:
    """They finish the step that they are in: 20 s, by the patience."""
    for patience in (1.0, 2.0):
        world = World(patience=patience)
        world.fire("hang", {"worker": "rank 1", "how": "collective"})
        world.answer(1, "stand")
        for _ in range(44):
            world.processes[1001].steps += 1
            world.pass_time(0.5)
        assert (len(world.story) == 1) == (patience == 2.0)
        world.pass_time(2.1)
        assert world.story[-1].startswith("proved: " if patience == 2.0 else "failed: ")


@pytest.mark.parametrize("action", ["hang", "pause"])
def test_who_is_stopped_by_another_fault_is_stopped_by_this_one_once_the_other_is_healed(
    action: str,
) -> None:
    """Faults that came later make no difference."""
    world = World()
    for entry_id in ("first", "x", "last"):
        world.fire(action, "rank 1", entry_id=entry_id)
        world.pass_time(1)
    assert world.story_of("x") == ["in force, needs job"]
    world.heal("first")
    world.pass_time(1)
    assert world.story_of("x")[-1] == "proved: state T: 1002"
    assert world.story_of("last") == ["in force, needs job"]


def test_a_stop_that_ends_before_another_one_did_nothing() -> None:
    """Of several workers, one that runs proves nothing for the one that was stopped."""
    world = World()
    world.fire("hang", "rank 1", entry_id="first")
    world.pass_time(1)
    world.fire("pause", BOTH_WORKERS)
    world.pass_time(1)
    world.heal()
    world.pass_time(1)
    assert world.story_of("x")[-2] == (
        "failed: process 1002 was stopped by first already, and was not seen to stand by this "
        "fault alone: let it outlast the other"
    )


def test_of_several_workers_that_were_stopped_already_all_have_to_be_left_to_this_fault() -> None:
    """Two others had stopped one each."""
    world = World()
    for rank, entry_id in enumerate(("first", "second")):
        world.fire("hang", f"rank {rank}", entry_id=entry_id)
    world.pass_time(1)
    world.fire("pause", BOTH_WORKERS)
    world.heal("first")
    world.pass_time(1)
    assert world.story_of("x") == ["in force, needs job"]
    world.heal("second")
    world.pass_time(1)
    assert world.story_of("x")[-1] == "proved: state T: 1001, 1002"


def test_a_worker_that_was_stopped_twice_and_goes_on_was_stopped_once() -> None:
    """Somebody else has continued it."""
    world = World()
    world.fire("hang", "rank 1", entry_id="first")
    world.pass_time(1)
    world.fire("hang", "rank 1")
    world.processes[1002].ignores = {signal.SIGSTOP}
    world.processes[1002].state = "S"
    world.heal("first")
    world.pass_time(29)
    assert world.story_of("x") == ["in force, needs job"]
    world.pass_time(2)
    assert "was stopped by first already" in world.story_of("x")[-1]


def test_who_cannot_be_stopped_is_given_up() -> None:
    """After fifty turns, however long one of them is."""
    for period, limit_s in (("100ms", 5.0), ("1s", 50.0)):
        world = World()
        ignores(1002, signal.SIGSTOP)(world)
        world.fire("slow", {"worker": "rank 1", "period": period})
        world.pass_time(0.9 * limit_s)
        assert world.story == ["in force, needs job"]
        world.pass_time(0.11 * limit_s)
        assert world.story[-1].startswith("failed: ")
        assert world.log.count("SIGSTOP 1002") == 50


def test_the_third_stop_proves_it_even_in_the_last_turn() -> None:
    """The first ones may have been seen too early."""
    world = World()
    ignores(1002, signal.SIGSTOP)(world)
    world.fire("slow", "rank 1")
    world.pass_time(4.69)
    assert world.log.count("SIGSTOP 1002") == 47
    world.processes[1002].ignores = set()
    world.pass_time(0.3)
    assert world.story[-1].startswith("proved: ")


@pytest.mark.parametrize(("seen_s", "outcome"), [(9.9, "failed"), (10.0, "proved")])
def test_a_clock_is_wrong_if_every_node_sees_at_least_half_of_it(
    seen_s: float, outcome: str
) -> None:
    """It is asked again until it does."""
    world = World()
    world.fire("clock_skew", {"node": ["n1", "n2"], "by": "20s"})
    for _ in range(310):
        for rank, skew in ((0, 20.0), (1, seen_s)):
            world.answer(rank, "tell_time", "ended", str(1000.0 + skew))
        world.pass_time(0.1)
    assert world.story[-1].startswith(outcome)


# --- what the kernel, a device or a command says ----------------------------------------


@pytest.mark.parametrize("narrower", ["at first", "then"])
def test_what_is_counted_between_two_looks_counts_if_the_limit_held_all_the_time(
    narrower: str,
) -> None:
    """Another fault's may have been the one that was met."""
    world = World()
    world.fire("memory_limit", {"node": "n2", "size": "5kB"})
    if narrower == "at first":
        world.context.limits.limit("another", "n2", "memory", 1)
    world.pass_time(0.3)
    if narrower == "at first":
        world.context.limits.unlimit("another")
    else:
        world.context.limits.limit("another", "n2", "memory", 1)
    world.budget.count("n2", memory_hits=1)
    world.pass_time(0.3)
    assert world.story == ["in force, needs job"]
    world.context.limits.unlimit("another")
    world.pass_time(0.2)
    world.budget.count("n2", memory_hits=3)
    world.pass_time(0.2)
    assert world.story[-1] == "proved: met the limit so many times: n2 2"


def test_processes_are_counted_by_the_kernel_before_they_are_limited() -> None:
    """A limit that nobody meets makes it count."""
    world = World()
    world.fire("process_limit", "n2")
    world.pass_time(0.05)
    assert world.budget.limits == {"n2": {"process": 1_000_000}}


def test_kills_that_were_counted_before_are_not_this_ones() -> None:
    """Only the difference is."""
    world = World()
    world.budget.count("n2", memory_kills=2)
    world.fire("oom", "rank 1")
    world.pass_time(0.3)
    assert world.processes[1002].orders[-1]["argument"] == (128 << 20) + (256 << 20)
    world.answer(1, "eat")
    world.pass_time(0.1)
    world.budget.count("n2", memory_kills=3)
    world.end(1, -9)
    world.pass_time(3)
    assert facts(world)["memory_kills"] == {"n2": 1}
    world = World()
    world.budget.count("n2", memory_kills=2)
    world.fire("oom", "rank 1")
    world.pass_time(0.3)
    world.answer(1, "eat")
    world.pass_time(0.1)
    world.end(1, -9)
    world.pass_time(3)
    assert world.story[-1].endswith("is gone, but not for lack of memory")


@pytest.mark.parametrize(("took", "outcome"), [("1500", "proved"), ("1499", "failed")])
def test_a_gpu_slept_if_it_took_half_of_the_time(took: str, outcome: str) -> None:
    """Its clock and ours need not agree to the millisecond."""
    world = World()
    world.fire("gpu_sleep", {"worker": "rank 1", "lasts": "3s"})
    world.answer(1, "gpu_sleep")
    world.pass_time(0.1)
    world.answer(1, "gpu_slept", "ended", took)
    world.pass_time(0.1)
    assert world.story[-1].startswith(outcome)
    if outcome == "proved":
        assert facts(world)["acknowledged"] is True


def test_a_gpu_is_waited_for_as_long_as_it_may_take() -> None:
    """Four times what it is to sleep, and the time of a slow step."""
    world = World()
    world.fire("gpu_sleep", {"worker": "rank 1", "lasts": "3s"})
    world.answer(1, "gpu_sleep")
    world.pass_time(60)
    assert "within 42 s in which it could gpu_slept" in world.story[-1]


def test_a_command_has_exit_code_0() -> None:
    """Otherwise it is no evidence."""
    world = World()
    world.fire("run", {"command": "true", "node": "n2"})
    world.pass_time(1)
    assert list(facts(world)["exit_codes"].values()) == [0]


@pytest.mark.parametrize(("action", "value", "act", "phase", "ends"), [
    ("hang", {"worker": "rank 1", "how": "gil"}, "hold_gil", "began", None),
    ("hang", {"worker": "rank 1", "how": "collective"}, "stand", "began", None),
    ("exit", {"worker": "rank 1", "code": 3}, "exit", "began", 3),
    ("oom", "rank 1", "eat", "began", -9),
    ("device_assert", "rank 1", "device_assert", "began", 1),
    ("nccl_abort", "rank 1", "nccl_abort", "ended", None),
])  # fmt: skip
def test_an_order_that_was_acknowledged_is_a_fact(
    action: str, value: object, act: str, phase: str, ends: int | None
) -> None:
    """For programs that read the history."""
    world = World()
    world.fire(action, value)
    world.pass_time(0.3)
    world.answer(1, act, phase)
    world.pass_time(0.1)
    world.budget.count("n2", memory_kills=1)
    if ends is not None:
        world.end(1, ends)
    world.pass_time(3)
    assert facts(world)["acknowledged"] is True


# --- what goes over links ---------------------------------------------------------------


def test_links_that_flap_are_watched_until_one_was_down_and_up() -> None:
    """Beside the time that any job takes to notice."""
    world = World()
    world.fire("flap", {"isolate": "n2", "down": "20s", "up": "10s"})
    world.pass_time(59)
    assert world.story == ["in force, needs job"]
    world.pass_time(3)
    assert world.story[-1].startswith("failed: in force, but nothing")


def test_what_a_name_service_answers_is_in_the_evidence() -> None:
    """The wrong address, that there is none, or how late it came."""
    for value, answer in (
        ({"wrong": "10.0.0.9"}, "10.0.0.9"),
        ({"missing": True}, "that there is no such name"),
        ({"slow": "2s"}, "2 s late"),
    ):
        world = World()
        world.fire("names", {"node": "n2", "of": "n1", **value})
        world.pass_time(1)
        world.look_up("n2", "n1")
        world.pass_time(1)
        assert facts(world) == {"asked": {"n2": {"n1": 1}}, "answer": answer}
