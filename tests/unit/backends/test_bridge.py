"""What a node makes of the little that torch's rendezvous interface says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from pytest_elastic.backends import bridge_vocabulary as b
from pytest_elastic.backends.bridge import ALLOWED, BridgeMachine, Phase
from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous.model import Failure, Node


def machine(name: str = "n1", *, max_restarts: int = 1) -> BridgeMachine:
    """Return a machine of a node that runs two workers."""
    node = Node(name=name, incarnation=f"{name}.1", address="10.0.0.1", port=1, slots=2)
    return BridgeMachine(
        node=node, max_restarts=max_restarts, shutdown_timeout_s=9.0, failure_grace_s=3.0
    )


def entry(name: str, **more: object) -> dict[str, Any]:
    """Return what a member says of itself."""
    return {
        "name": name,
        "incarnation": f"{name}.1",
        "address": "10.0.0.1",
        "slots": 2,
        "role": "default",
        "round": 0,
        "size": 0,
        "used": 0,
        "why": "",
        "failure": None,
        **more,
    }


FAILURE: Mapping[str, Any] = {
    "node": "n2",
    "rank": 3,
    "local_rank": 1,
    "pid": 7,
    "exit_code": 3,
    "message": "",
    "traceback": "",
    "round": 1,
    "error_file": "<N/A>",
    "timestamp": 0,
}


def asked(commands: Sequence[b.BridgeCommand]) -> list[str]:
    """Return what is called of the handler's process."""
    return [command.call for command in commands if isinstance(command, b.Ask)]


def notices(commands: Sequence[b.BridgeCommand]) -> list[ports.Notice]:
    """Return what the agent is told."""
    return [command.notice for command in commands if isinstance(command, b.Notify)]


def the_notice(commands: Sequence[b.BridgeCommand]) -> ports.Notice:
    """Return the one thing that the agent is told."""
    (notice,) = notices(commands)
    return notice


def running(made: BridgeMachine, *, group_rank: int = 1) -> ports.StartWorkers:
    """Bring a machine into its first round, of n1 and n2."""
    made.step(b.HandlerReady())
    made.step(b.Formed(group_rank=group_rank, entries=[entry("n1"), entry("n2")]))
    if group_rank == 0:
        made.step(ports.StoreOpened(round=1, address="10.0.0.1", port=5))
    started = the_notice(made.step(b.StoreKnown(address="10.0.0.1", port=5)))
    assert isinstance(started, ports.StartWorkers)
    return started


def failed(round_: int = 1) -> ports.GroupFailed:
    """Return the failure of a worker of this node."""
    return ports.GroupFailed(
        round=round_,
        failures=(Failure(node="n1", rank=0, local_rank=0, pid=7, exit_code=1, round=round_),),
    )


def test_the_first_member_opens_the_store_and_all_start_with_its_address() -> None:
    """Rounds have a worker store of their own here, also where torch's handler brings one."""
    made = machine()
    assert asked(made.step(b.HandlerReady())) == ["join"]
    formed = made.step(b.Formed(group_rank=0, entries=[entry("n1"), entry("n2")]))
    assert notices(formed) == [ports.OpenStore(round=1, world_size=4)]
    opened = made.step(ports.StoreOpened(round=1, address="10.0.0.1", port=5))
    assert asked(opened) == ["publish_store"]
    started = the_notice(made.step(b.StoreKnown(address="10.0.0.1", port=5)))
    assert isinstance(started, ports.StartWorkers)
    assert (started.assignment.store_address, started.assignment.store_port) == ("10.0.0.1", 5)
    assert [member.name for member in started.assignment.roster] == ["n1", "n2"]


def test_agents_of_one_host_have_names_of_their_own() -> None:
    """Two that are both called after the host can be told apart."""
    made = machine("host")
    made.step(b.HandlerReady())
    made.step(b.Formed(group_rank=1, entries=[entry("host"), entry("host")]))
    started = the_notice(made.step(b.StoreKnown(address="10.0.0.1", port=5)))
    assert isinstance(started, ports.StartWorkers)
    assert [member.name for member in started.assignment.roster] == ["host", "host-2"]


def test_a_failure_ends_the_round_for_all_and_is_charged_once() -> None:
    """Every member computes the same count from what all say, whichever failed."""
    made = machine()
    running(made)
    told = made.step(failed())
    assert asked(told) == ["break_round"]
    assert isinstance(the_notice(told), ports.StopWorkers)
    assert asked(made.step(ports.WorkersGone(round=1))) == ["join"]
    same = [
        entry("n1", round=1, size=2, failure=dict(FAILURE), why="rank 0 failed"),
        entry("n2", round=1, size=2, failure=dict(FAILURE)),
    ]
    made.step(b.Formed(group_rank=1, entries=same))
    started = the_notice(made.step(b.StoreKnown(address="10.0.0.1", port=6)))
    assert isinstance(started, ports.StartWorkers)
    assert (started.assignment.round, started.assignment.restart_count) == (2, 1)


@pytest.mark.parametrize(
    "entries",
    [
        pytest.param(
            [entry("n1", round=1, size=2, failure=dict(FAILURE)), entry("n3")], id="replaced"
        ),
        pytest.param([entry("n1", round=1, size=2, failure=dict(FAILURE))], id="gone"),
    ],
)
def test_a_round_whose_membership_changed_is_free(entries: list[dict[str, Any]]) -> None:
    """A node that dies makes workers of others fail: that is not their failure."""
    made = machine()
    running(made)
    made.step(failed())
    made.step(ports.WorkersGone(round=1))
    made.step(b.Formed(group_rank=0, entries=entries))
    made.step(ports.StoreOpened(round=2, address="10.0.0.1", port=6))
    started = the_notice(made.step(b.StoreKnown(address="10.0.0.1", port=6)))
    assert isinstance(started, ports.StartWorkers)
    assert started.assignment.restart_count == 0


def test_a_failure_beyond_the_budget_ends_the_job_at_once() -> None:
    """And the others are told why, by what is left in the round's store."""
    made, other = machine(max_restarts=0), machine("n2", max_restarts=0)
    running(made)
    running(other)
    told = made.step(failed())
    over = the_notice(told)
    assert isinstance(over, ports.JobOver)
    assert (over.result, asked(told)) == ("failed", ["end"])
    (end,) = [command for command in told if isinstance(command, b.Ask)]
    news = b.News(round=1, over=end.arguments["over"])
    theirs = next(n for n in notices(other.step(news)) if isinstance(n, ports.JobOver))
    assert (theirs.result, theirs.reason) == ("failed", over.reason)
    assert theirs.first_failure == over.first_failure
    assert theirs.first_failure is not None


def test_nodes_that_wait_end_the_round_but_not_one_that_is_half_done() -> None:
    """Once a group has succeeded, newcomers wait."""
    made = machine()
    running(made)
    assert made.step(b.News(round=1, waiting=1, is_some_done=True)) == ()
    stopped = the_notice(made.step(b.News(round=1, waiting=1)))
    assert isinstance(stopped, ports.StopWorkers)


def test_the_job_succeeds_when_all_groups_have() -> None:
    """Not before, and a rendezvous that is closed by then means nothing else."""
    made = machine()
    running(made)
    assert asked(made.step(ports.GroupSucceeded(round=1))) == ["mark_done"]
    assert made.step(b.News(round=1, is_some_done=True)) == ()
    told = made.step(b.News(round=1, is_some_done=True, is_all_done=True, is_closed=True))
    over = the_notice(told)
    assert isinstance(over, ports.JobOver)
    assert (over.result, asked(told)) == ("succeeded", ["finish"])


def test_a_member_that_failed_takes_those_along_that_had_succeeded() -> None:
    """All start again: the round is not done before all of it is."""
    made = machine()
    running(made)
    made.step(ports.GroupSucceeded(round=1))
    told = made.step(b.News(round=1, broken="rank 2 failed", is_some_done=True))
    assert isinstance(the_notice(told), ports.StopWorkers)


@pytest.mark.parametrize(
    ("failure", "result"),
    [
        (b.HandlerFailed(kind="usage", reason="no such setting"), "refused"),
        (b.HandlerFailed(kind="lost", reason="no etcd there"), "lost"),
        (b.HandlerFailed(kind="closed", reason="closed"), "refused"),
    ],
)
def test_a_handler_that_cannot_be_made_ends_the_nodes_part(
    failure: b.HandlerFailed, result: str
) -> None:
    """For good, or as one that may do better when tried again; the reason is the handler's."""
    over = the_notice(machine().step(failure))
    assert isinstance(over, ports.JobOver)
    assert (over.result, over.reason) == (result, failure.reason)


@pytest.mark.parametrize(
    ("failure", "result"),
    [
        (b.HandlerFailed(kind="closed", reason="closed"), "lost"),
        (b.HandlerFailed(kind="timeout", reason="too few"), "lost"),
        (b.HandlerFailed(kind="spare", reason="closed"), "succeeded"),
        (b.HandlerFailed(kind="closed", reason="closed", is_all_done=True), "succeeded"),
    ],
)
def test_a_join_that_fails_ends_this_nodes_part(failure: b.HandlerFailed, result: str) -> None:
    """As well as can be told from what torch raises, and from what the others left."""
    made = machine()
    made.step(b.HandlerReady())
    over = the_notice(made.step(failure))
    assert isinstance(over, ports.JobOver)
    assert over.result == result


def test_a_round_that_falls_apart_while_it_forms_is_tried_again_a_few_times() -> None:
    """A member died between two steps of it; for ever is not a few times."""
    made = machine()
    made.step(b.HandlerReady())
    for _ in range(5):
        assert asked(made.step(b.HandlerFailed(kind="peers", reason="one was silent"))) == ["join"]
    over = the_notice(made.step(b.HandlerFailed(kind="peers", reason="one was silent")))
    assert isinstance(over, ports.JobOver)
    assert over.result == "lost"


def test_entries_that_are_not_ours_refuse_the_node() -> None:
    """As where one node of the job runs another launcher."""
    made = machine()
    made.step(b.HandlerReady())
    over = the_notice(made.step(b.Formed(group_rank=0, entries=[{"role": "default"}])))
    assert isinstance(over, ports.JobOver)
    assert over.result == "refused"
    assert "run the same launcher" in over.reason


def test_a_draining_node_goes_when_its_workers_have_and_tells_the_others() -> None:
    """They go on meanwhile; without a round it goes at once."""
    made = machine()
    running(made)
    assert made.step(ports.DrainRequested(reason="SIGTERM", grace_s=3.0)) == ()
    told = made.step(ports.WorkersGone(round=1))
    assert asked(told) == ["break_round"]
    over = the_notice(told)
    assert isinstance(over, ports.JobOver)
    assert over.result == "drained"
    waiting = machine()
    waiting.step(b.HandlerReady())
    over = the_notice(waiting.step(ports.DrainRequested(reason="SIGTERM", grace_s=3.0)))
    assert isinstance(over, ports.JobOver)
    assert over.result == "drained"


def test_a_lost_host_ends_the_nodes_part_and_nothing_follows() -> None:
    """Workers cannot be judged any more: the node is lost."""
    made = machine()
    running(made)
    over = the_notice(made.step(b.HostLost(reason="killed")))
    assert isinstance(over, ports.JobOver)
    assert (over.result, over.reason) == ("lost", "killed")
    assert made.step(b.News(round=1, waiting=1)) == ()


def test_phases_change_only_as_the_table_says() -> None:
    """Every phase can be reached and left, and OVER is the last."""
    assert set(ALLOWED) == set(Phase)
    assert not ALLOWED[Phase.OVER]
    reached = set().union(*ALLOWED.values())
    assert reached == set(Phase) - {Phase.OPENING}
