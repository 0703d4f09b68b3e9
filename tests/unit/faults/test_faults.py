"""Each fault: what it does, what proves it, what it says when it did nothing, how it is undone."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from elastic_harness.faults.nodes.node import CrashNode
from elastic_harness.faults.registry import built_in_faults
from elastic_harness.scenario.engine.situation import Targets
from elastic_harness.scenario.selectors import SelectionEmpty

from tests.unit.faults.bench import World

# --- workers ----------------------------------------------------------------------------


def test_a_killed_worker_is_proven_by_its_end() -> None:
    """In force when the signal is sent, proven when that very process is gone."""
    world = World()
    world.fire("kill", "rank 1")
    assert world.story == ["in force"]
    world.pass_time()
    assert world.log == ["SIGKILL 1002"]
    said = "SIGKILL was delivered: rank 1 (n2, pid 1002) ended with SIGKILL"
    assert world.story == ["in force", f"proved: {said}"]


def test_a_signal_that_can_be_handled_is_proven_by_its_delivery() -> None:
    """What a program makes of SIGTERM is the program's business."""
    world = World()
    world.processes[1002].ignores = {signal.SIGTERM}
    world.fire("kill", {"worker": "rank 1", "signal": 15})
    assert world.story[-1] == "proved: SIGTERM was delivered to rank 1 (n2, pid 1002)"


def test_a_worker_that_ended_before_is_no_proof_of_anything() -> None:
    """The fault says that it did nothing."""
    world = World()
    del world.processes[1002]
    world.fire("kill", "rank 1")
    assert world.story == ["failed: rank 1 (n2, pid 1002) had ended before SIGKILL was sent"]


def test_a_worker_that_does_not_die_is_not_waited_for_for_ever() -> None:
    """A process stuck in the kernel makes the fault fail."""
    world = World()
    world.processes[1002].ignores = {signal.SIGKILL}
    world.fire("kill", "rank 1")
    world.pass_time(4.9)
    assert len(world.told) == 1
    world.pass_time(0.2)
    assert "still alive after 5 s" in world.story[-1]


@pytest.mark.parametrize(
    ("action", "value", "order"),
    [
        ("exit", {"worker": "rank 1", "code": 3}, {"do": "exit", "code": 3}),
        (
            "raise",
            {"worker": "rank 1", "error": "ValueError", "message": "no"},
            {"do": "raise", "error": "ValueError", "message": "no"},
        ),
    ],
)
def test_an_order_to_a_worker_is_proven_by_its_end_and_holds_nobody_up(
    action: str, value: object, order: dict[str, Any]
) -> None:
    """It is done in the step hook, where a held rank stands."""
    world = World()
    world.fire(action, value)
    assert world.processes[1002].orders == [{**order, "by": "x"}]
    assert world.story == ["in force, needs job"]
    world.answer(1, action)
    world.pass_time()
    assert len(world.story) == 1
    code = int(order.get("code", 1))
    world.end(1, code)
    world.pass_time()
    said = f"began to {action} as ordered: rank 1 (n2, pid 1002) ended with exit code {code}"
    assert world.story[-1] == f"proved: {said}"


@pytest.mark.parametrize(
    ("action", "value", "phase", "code", "is_proof"),
    [
        ("exit", {"worker": "rank 1", "code": 3}, "ended", None, True),
        ("exit", {"worker": "rank 1", "code": 3}, "began", None, False),
        ("exit", {"worker": "rank 1", "code": 3}, "ended", 1, False),
        ("exit", {"worker": "rank 1", "code": 3}, "ended", -6, False),
        ("exit", {"worker": "rank 1", "code": 3}, "began", 3, True),
        ("raise", "rank 1", "ended", None, True),
        ("raise", "rank 1", "ended", -6, True),  # the interpreter went down of it
        ("raise", "rank 1", "began", None, False),
        ("raise", "rank 1", "began", 0, False),
        ("raise", "rank 1", "began", -9, False),
        ("segfault", "rank 1", "began", None, True),
        ("segfault", "rank 1", "began", -9, False),
        ("abort", "rank 1", "began", -11, False),
    ],
)
def test_what_a_worker_ended_with_must_be_what_it_was_told(
    action: str,
    value: object,
    phase: str,
    code: int | None,
    is_proof: bool,  # noqa: FBT001 (a parameter of the test)
) -> None:
    """By its exit code; where nothing tells that, by its own last word."""
    world = World()
    world.cluster.tells_ends = code is not None
    world.fire(action, value)
    world.answer(1, action, phase)
    world.end(1, code or 0)
    world.pass_time(3)
    assert world.story[-1].startswith("proved: " if is_proof else "failed: "), world.story


@pytest.mark.parametrize("action", ["exit", "raise", "segfault", "abort"])
def test_the_answer_to_another_order_proves_nothing(action: str) -> None:
    """Of two that order one worker, the one that it obeyed has acted."""
    world = World()
    world.fire(action, "rank 1")
    world.answer(1, action, "ended", by="another")
    world.end(1)
    world.pass_time(3)
    assert world.story[-1] == f"failed: rank 1 (n2, pid 1002) ended before it could {action}"


def test_a_script_that_catches_its_end_is_told_apart() -> None:
    """The probe says that it took another step."""
    world = World()
    world.fire("raise", "rank 1")
    world.answer(1, "raise", "refused", "the script caught it, and went on")
    world.pass_time()
    assert world.story[-1].endswith("cannot raise: the script caught it, and went on")


def test_a_worker_without_a_probe_cannot_be_ordered() -> None:
    """Other languages, `python -I`."""
    world = World()
    world.processes[1002].has_probe = False
    world.fire("exit", {"worker": "rank 1"})
    assert "no probe that could exit" in world.story[0]


# --- agents and nodes -------------------------------------------------------------------


def test_a_killed_agent_is_proven_by_its_launchers_end() -> None:
    """Its workers are not touched."""
    world = World()
    world.fire("kill_agent", "n2")
    world.pass_time()
    assert world.log == ["SIGKILL 502"]
    assert world.story == ["in force", "proved: launcher on n2 gone"]
    assert 1002 in world.processes


def test_who_did_not_die_is_named() -> None:
    """Not all whom the fault was aimed at."""
    world = World()
    world.processes[502].ignores = {signal.SIGKILL}  # as one that the kernel cannot end
    world.fire("kill_agent", ["n1", "n2"])
    world.pass_time(60.0)
    assert world.story[-1] == "failed: still alive after 5 s: the launcher on n2"


@pytest.mark.parametrize(("action", "how"), [("crash", "crash"), ("power_cut", "power_cut")])
def test_a_node_that_ends_is_proven_by_being_gone(action: str, how: str) -> None:
    """The cluster's word is not enough: the node must not be up."""
    world = World()
    world.fire(action, {"node": ["n2", "n3"]})
    world.pass_time()
    assert world.log == [f"{how} n2", f"{how} n3"]
    assert world.up == ["n1"]
    assert world.story[0] == "in force"
    assert world.story[1].startswith("proved: n2, n3 gone")


def test_what_the_cluster_refuses_makes_the_fault_fail_with_its_words() -> None:
    """And what it never answers, too, in bounded time."""
    world = World()
    world.broken.add("crash")
    world.fire("crash", "n2")
    world.pass_time()
    assert world.story == ["failed: cannot crash n2"]
    world = World()
    world.stuck.add("power_cut")
    world.fire("power_cut", "n2")
    world.pass_time(15.1)
    assert world.story == ["failed: power_cut n2: no answer within 15 s"]


def test_a_preempted_node_gets_its_notice_and_then_loses_power_whatever_it_does() -> None:
    """SIGTERM at once; the power goes when the notice is over."""
    world = World()
    world.processes[502].ignores = {signal.SIGTERM}
    world.fire("preempt", {"node": "n2", "notice": "5s"})
    assert world.log == ["SIGTERM 502"]
    assert world.story == ["in force, needs job"]
    world.pass_time(4.9)
    assert world.log == ["SIGTERM 502"]
    world.pass_time(0.2)
    assert world.log == ["SIGTERM 502", "power_cut n2"]
    world.pass_time(0.2)
    assert world.story[-1] == "proved: n2 gone, 5 s after SIGTERM"


def test_a_preempted_node_that_leaves_in_time_is_proven_then_and_loses_power_all_the_same() -> None:
    """The job may be over before the notice is: a node that left in order has obeyed."""
    world = World()
    world.fire("preempt", {"node": "n2", "notice": "5s"})
    world.pass_time(0.2)
    assert world.story[-1] == "proved: launcher ended after SIGTERM: n2 with SIGTERM"
    assert world.log == ["SIGTERM 502"]
    world.pass_time(5.0)
    assert world.log == ["SIGTERM 502", "power_cut n2"]
    assert world.story[-1] == "proved: launcher ended after SIGTERM: n2 with SIGTERM"


def test_a_node_that_leaves_is_proven_by_its_launchers_end_and_stays_up() -> None:
    """Within the time that it is given."""
    world = World()
    world.fire("leave", {"node": "n2", "within": "20s"})
    world.pass_time()
    assert world.story[-1] == "proved: launcher ended after SIGTERM: n2 with SIGTERM"
    assert "n2" in world.up


def test_a_launcher_that_stays_is_named_with_the_workers_that_stay_with_it() -> None:
    """Of several only those that stayed; and what can be done about it."""
    world = World()
    world.processes[502].ignores = {signal.SIGTERM}
    world.fire("leave", {"node": ["n1", "n2"], "within": "20s"})
    world.pass_time(20.1)
    assert world.story[-1] == (
        "failed: the launcher on n2 had not ended 20 s after SIGTERM, and neither had "
        "rank 1 (n2, pid 1002): a worker that ignores SIGTERM is killed when the launcher's "
        "--shutdown-timeout (30 s) is over, so give that less or `within` more"
    )
    world = World()
    world.processes[502].ignores = {signal.SIGTERM}
    world.fire("leave", {"node": "n2", "within": "20s"})
    world.end(1)
    world.pass_time(20.1)
    assert world.story[-1] == (
        "failed: the launcher on n2 had not ended 20 s after SIGTERM, though its workers had: "
        "its own log says what it waits for"
    )


def test_nodes_that_join_get_fresh_names_and_come_one_after_the_other() -> None:
    """A name that the run has used is not given out again."""
    world = World()
    world.lose("n2")
    world.come("n4")
    order = world.fire("join", {"nodes": 2, "stagger": "500ms"})
    assert order.targets.new_nodes == ("n2", "n5")
    assert world.log == ["start n2"]
    world.pass_time(0.6)
    assert world.log == ["start n2", "start n5"]
    assert world.story == ["in force, needs job", "proved: n2, n5 up"]


def test_a_node_that_is_up_cannot_join() -> None:
    """By name, the scenario must know what it does."""
    with pytest.raises(SelectionEmpty, match="n2 cannot join: it is up already"):
        World().fire("join", ["n2", "n9"])


def test_a_node_without_its_launcher_is_rebooted_and_does_not_join() -> None:
    """Its launcher was killed, and the node is up: the message says what would help."""
    world = World()
    world.fire("kill_agent", "n2")
    world.pass_time(0.1)
    with pytest.raises(SelectionEmpty, match="without its launcher: `reboot: n2` starts that ag"):
        world.fire("join", ["n2"])


def test_a_replaced_node_comes_back_empty_and_a_rebooted_one_with_its_disk() -> None:
    """Both are in force once the old one is gone, and proven once the new one is up."""
    for action, value, again in (
        ("replace", {"node": "n2", "by": "power_cut"}, "start n2"),
        ("reboot", {"node": "n2", "downtime": "2s"}, "start n2 keep_disk"),
    ):
        world = World()
        world.fire(action, value)
        world.pass_time(0.5)
        assert world.story[0] == "in force, needs job"
        world.pass_time(2)
        assert world.log[-1] == again
        assert world.story[-1] == "proved: n2 gone and back"


# --- pauses -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "pid"), [("rank 1", 1002), ({"worker": "rank 1"}, 1002), ({"agent": "n2"}, 502)]
)
def test_a_paused_process_is_proven_by_its_state_and_goes_on_when_healed(
    value: object, pid: int
) -> None:
    """Healing it twice is harmless."""
    world = World()
    world.fire("pause", value)
    world.pass_time()
    assert world.story == ["in force", f"proved: state T: {pid}"]
    world.heal()
    world.heal()
    world.pass_time()
    assert world.log == [f"SIGSTOP {pid}", f"SIGCONT {pid}"]
    assert world.processes[pid].state == "S"
    assert world.story[-1] == "undone"
    assert world.story.count("undone") == 1


def test_a_paused_node_needs_a_cluster_that_can_and_is_resumed_by_it() -> None:
    """Every process of it, those being forked included, is the cluster's business."""
    world = World()
    world.fire("pause", {"node": "n2"})
    world.pass_time()
    world.heal()
    world.pass_time()
    assert world.log == ["pause n2", "resume n2"]
    assert built_in_faults().parse("pause", {"node": "n2"}).needs == "pause"
    assert built_in_faults().parse("pause", {"agent": "n2"}).needs is None


# --- commands


def test_a_command_is_proven_by_its_exit_code() -> None:
    """Text is for the shell; the node is the store host unless another is named."""
    world = World()
    world.fire("run", "rm -r /tmp/x")
    assert world.log == ["run /bin/sh -c rm -r /tmp/x on n1 for x"]
    assert world.story == ["proved: exit code 0 on n1"]
    world = World()
    world.fire("run", {"command": ["touch", "x"], "node": ["n2", "n3"]})
    assert world.story[-1] == "proved: exit code 0 on n2, n3"


def test_a_command_that_fails_or_hangs_proves_nothing_and_is_ended() -> None:
    """Its exit code, or its time, is said."""
    world = World()
    world.broken.add("run")
    world.fire("run", "false")
    assert world.story[-1] == "failed: the command on n1 ended with exit code 1"
    world = World()
    world.stuck.add("run")
    world.fire("run", {"command": "sleep 99", "within": "2s"})
    world.pass_time(3)
    assert "the command on n1" in world.story[-1]
    world.heal()
    assert world.log[-1] == "end commands of x"


def test_the_old_name_of_exempt_nodes_is_accepted_with_a_warning() -> None:
    """A fault of 0.1 goes on to work, and may call what it is derived from by that name."""
    with pytest.warns(DeprecationWarning, match="Leave.excuses is called exempt_nodes"):

        class Leave(CrashNode):
            """It ends one more than it says."""

            def excuses(self, targets: Targets) -> tuple[str, ...]:
                return (*super().excuses(targets), "n9")  # type: ignore[misc]

    leave = Leave.model_validate({"node": "n2"})
    targets = leave.resolve(World().situation(), stream="x")
    assert leave.exempt_nodes(targets) == ("n2", "n9")
