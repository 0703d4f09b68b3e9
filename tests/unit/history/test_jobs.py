"""A job that begins anew where everybody has died, and what is no such thing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from elastic_harness.history.checkers import STANDARD, bind
from elastic_harness.history.events import NodeStopped, ProcessExited, ProcessStarted
from elastic_harness.history.judge import judge_checks
from elastic_harness.history.verdict import Outcome

from pytest_elastic.events.model import Record, RoundCommitted, RoundSealed, WorkersStarted
from tests.unit.history.story import Story

NODES = ("n1", "n2")


def _launcher(story: Story, node: str, pid: int) -> None:
    story.tell("cluster", node, ProcessStarted(pid=pid, role="launcher", argv=()))


def _dies(story: Story, node: str, pid: int) -> None:
    story.tell("cluster", node, ProcessExited(pid=pid, role="launcher", exit_code=-9))


def _says(story: Story, node: str, incarnation: str, event: RoundCommitted | RoundSealed) -> None:
    story.records.append(
        Record(
            at=story.at,
            source="agent",
            node=node,
            run_id="job",
            event=event,
            incarnation=incarnation,
        )
    )


def _commits(story: Story, round_: int, nodes: tuple[str, ...], start: int, **more: int) -> None:
    """Let a round be sealed, told and begun; `start` says which start of the launchers it is."""
    port, restarts = more.get("port", 30000 + 10 * start), more.get("restarts", 0)
    size = len(nodes) * story.nproc
    sealed = RoundSealed(
        round=round_, term=1, roster=nodes, spares=(), restart_count=restarts, reason=""
    )
    _says(story, nodes[0], f"{nodes[0]}#{start}", sealed)
    for rank, node in enumerate(nodes):
        told = RoundCommitted(
            round=round_,
            term=1,
            roster=nodes,
            group_rank=rank,
            world_size=size,
            restart_count=restarts,
            master_addr="10.77.0.1",
            master_port=port,
        )
        _says(story, node, f"{node}#{start}", told)
        ranks = tuple(range(rank * story.nproc, (rank + 1) * story.nproc))
        started = WorkersStarted(round=round_, pids=ranks, ranks=ranks, start="", start_reason="")
        story.tell("agent", node, started)
    story.round(round_, list(nodes), restart_count=restarts, master_port=port)


def _first_job(story: Story) -> Story:
    for node in NODES:
        _launcher(story, node, 11)
    _commits(story, 1, NODES, 1)
    story.steps(1, 1, 3)
    return story


def began_anew() -> Story:
    """All nodes die, and come back in the other order."""
    story = _first_job(Story())
    for node in NODES:
        _dies(story, node, 11)
    return _second_job(story)


def _second_job(story: Story) -> Story:
    """No worker is left, and the nodes come back in the other order."""
    story.gone(1)
    for node in NODES:
        _launcher(story, node, 21)
    _commits(story, 1, NODES[::-1], 2)
    return story.steps(1, 1, 3).finish(1)


def began_anew_where_nodes_lost_power() -> Story:
    """The nodes are gone, and nobody saw their launchers end."""
    story = _first_job(Story())
    for node in NODES:
        story.tell("cluster", node, NodeStopped(cause="power_cut"))
    return _second_job(story)


def one_lives() -> Story:
    """n2 comes back and begins with round 1 while the launcher on n1 lives, frozen maybe."""
    story = _first_job(Story())
    _dies(story, "n2", 11)
    story.gone(1)
    _launcher(story, "n2", 21)
    _commits(story, 1, ("n2",), 2)
    return story.steps(1, 1, 3).finish(1)


def two_coordinators() -> Story:
    """Nobody has died: two nodes form a round each, of one number."""
    story = Story(nodes=4)
    for node in ("n1", "n2", "n3", "n4"):
        _launcher(story, node, 11)
    _commits(story, 1, ("n1", "n2"), 1)
    _commits(story, 1, ("n3", "n4"), 1, port=30099)
    return story


def split_after_it_began_anew() -> Story:
    """The second job is judged as the first one was."""
    story = began_anew()
    _launcher(story, "n3", 21)
    _commits(story, 1, ("n3",), 2, port=30099)
    return story


def _ended(story: Story) -> Story:
    return story.end()


@pytest.mark.parametrize("make", [began_anew, began_anew_where_nodes_lost_power])
def test_a_job_that_begins_anew_is_judged_as_another_one(make: Callable[[], Story]) -> None:
    """Its round 1 is no second round 1, by any checker that is on by default."""
    history = _ended(make()).history
    assert [(world.round, world.job) for world in history.worlds.rounds] == [(1, 1), (1, 2)]
    assert [world.ordinal for world in history.worlds.rounds] == [1, 2]
    unmet = [each for each in judge_checks(history, STANDARD.default_checks()) if not each]
    assert unmet == []
    assert bind("world_sizes", [2, 2]).run(history).is_valid
    assert bind("rank_stability").run(history).outcome is Outcome.UNKNOWN, (
        "no two rounds of one job"
    )


@pytest.mark.parametrize("make", [one_lives, two_coordinators, split_after_it_began_anew])
def test_two_rounds_of_one_number_are_a_violation_while_anybody_of_them_lives(
    make: Callable[[], Story],
) -> None:
    """One launcher that has not died is enough, whatever has become of the others."""
    history = _ended(make()).history
    for name in ("ranks", "agreement"):
        verdict = bind(name).run(history)
        assert verdict.outcome is Outcome.INVALID, (name, verdict)


def test_a_round_that_is_higher_goes_on_with_the_job_whoever_is_left() -> None:
    """Then nothing began anew: the restart count must not go back, for one."""
    story = _first_job(Story())
    _commits(story, 2, NODES, 1, restarts=1)
    for node in NODES:
        _dies(story, node, 11)
    story.gone(1).gone(2)
    for node in NODES:
        _launcher(story, node, 21)
    _commits(story, 3, NODES, 2, restarts=0)
    history = story.history
    assert {world.job for world in history.worlds.rounds} == {1}
    assert bind("budget").run(history).outcome is Outcome.INVALID


def test_a_job_that_begins_anew_may_spend_its_own_restarts() -> None:
    """Each counts from 0, and what they were charged is added up."""
    story = _first_job(Story())
    _commits(story, 2, NODES, 1, restarts=1)
    for node in NODES:
        _dies(story, node, 11)
    story.gone(1).gone(2)
    for node in NODES:
        _launcher(story, node, 21)
    _commits(story, 1, NODES, 2)
    _commits(story, 2, NODES, 2, port=30088, restarts=1)
    history = story.history
    assert bind("budget").run(history).is_valid
    assert bind("restarts", 2).run(history).is_valid
    assert bind("ranks").run(history).is_valid


def test_steps_of_the_former_job_beside_the_new_one_are_two_worlds() -> None:
    """Its launchers are dead, and a worker was left: rounds are told apart, not excused."""
    story = _first_job(Story())
    for node in NODES:
        _dies(story, node, 11)
    left = story.pids[1, 0]
    for node in NODES:
        _launcher(story, node, 21)
    _commits(story, 1, NODES, 2)
    story.steps(1, 1, 3)
    story.pids[1, 0] = left
    story.wait(1.0).step(1, 0, 4, began_at=story.at)
    verdict = bind("one_world").run(story.history)
    assert verdict.outcome is Outcome.INVALID
    assert "of round 1 after every rank of round 1 of job 2" in verdict.reason


def test_what_a_dead_launcher_had_said_belongs_to_its_own_job() -> None:
    """A record may be read late, when others have begun anew."""
    story = began_anew()
    late = RoundCommitted(
        round=1,
        term=1,
        roster=NODES,
        group_rank=0,
        world_size=2,
        restart_count=0,
        master_addr="10.77.0.1",
        master_port=30010,
    )
    _says(story, "n1", "n1#1", late)
    history = story.history
    assert history.worlds.job_of(len(history)) == 1
    assert bind("agreement").run(history).is_valid


def test_launchers_that_name_no_round_begin_anew_as_well() -> None:
    """Their agents count restarts for themselves, from 0."""
    story = Story()
    for node in NODES:
        _launcher(story, node, 11)
    unnamed = {"round": None, "restart_count": 1}
    story.round(1, NODES, **unnamed).steps(1, 1, 3)
    for node in NODES:
        _dies(story, node, 11)
    story.gone(1)
    for node in NODES:
        _launcher(story, node, 21)
    story.round(1, NODES, **{**unnamed, "restart_count": 0}).steps(1, 1, 3)
    assert [world.job for world in story.history.worlds.rounds] == [1, 2]
    assert bind("budget").run(story.history).is_valid
