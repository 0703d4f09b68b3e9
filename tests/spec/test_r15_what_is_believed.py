"""R15: an unsigned word makes no leader step down, and no follower turn away."""

from __future__ import annotations

import pytest
from elastic_simulation.granted import GrantedWorld
from elastic_simulation.world import World, settings
from elastic_simulation.worlds import new_world

from pytest_elastic.events import model as events
from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.consensus.records import Term
from pytest_elastic.rendezvous.messages import (
    Answer,
    LeaderAddress,
    Question,
)


def _world(*names: str, nodes: str = "2:3") -> World:
    config = settings(nodes, quorum="majority")
    world = new_world(config)
    world.start(*names)
    return world


def _tell(world: World, name: str, leader: LeaderAddress) -> None:
    """Let a node hear of a leader, as from an announcement, or a record that was signed once."""
    for which in ("follower", "leader"):
        world.processes[name].feed(which, v.LeaderHeard(leader=leader))


def _why_stepped_down(world: World) -> list[str]:
    every = (event for _, _, event in world.events)
    return [each.reason for each in every if isinstance(each, events.CoordinatorSteppedDown)]


def _forged(counter: int, *, node: str = "n9/9") -> LeaderAddress:
    return LeaderAddress(
        term=Term(counter, node), name="n9", incarnation=node, address="n9", port=1000
    )


@pytest.mark.parametrize("counter", [2, 7, 2**40])
def test_r15_a_word_about_another_leader_changes_nothing(counter: int) -> None:
    """A leader that has decided something goes by its lease, who is in contact by that leader."""
    world = _world("n1", "n2", "n3")
    world.run_until(lambda: world.all_run("n1", "n2", "n3"), within_s=5.0)
    for name in ("n1", "n2", "n3"):
        _tell(world, name, _forged(counter))
    world.run(5.0)
    assert world.all_run("n1", "n2", "n3")
    assert world.round_of("n2") == 1
    assert not world.of(events.CoordinatorSteppedDown)
    notices = [each for p in world.every_process for each in p.agent.notices]
    assert not any(isinstance(each, ports.HoldWorkers) for each in notices)


def test_r15_a_leader_of_this_very_job_is_found_by_lease_and_not_by_word() -> None:
    """The one that is cut off hears of its successor, and has stepped down by then."""
    world = _world("n1", "n2", "n3")
    world.run_until(lambda: world.all_run("n1", "n2", "n3"), within_s=5.0)
    world.isolate("n1", ["n2", "n3"])
    world.run_until(lambda: world.all_run("n2", "n3"), within_s=5.0)
    assert _why_stepped_down(world) == ["a majority of the last round has not answered for a lease"]
    world.heal()
    world.run_until(lambda: world.all_run("n1", "n2", "n3"), within_s=5.0)


def test_r15_a_leader_that_has_decided_nothing_gives_way() -> None:
    """It could begin a second job; so forged words can keep one from beginning."""
    world = _world("n1", "n9", nodes="3:3")
    world.crash("n9")
    world.run(0.5)
    _tell(world, "n1", _forged(3))
    assert _why_stepped_down(world) == ["n9 leads, under term 3"]


def test_r12_a_host_that_gave_way_to_a_leader_it_does_not_find_begins_again() -> None:
    """Under a higher term, and after it has waited like one that is back."""
    world = _world("n1", "n9")
    world.crash("n9")
    world.run(0.5)
    _tell(world, "n1", _forged(3))
    world.start("n2")
    world.run_until(lambda: world.all_run("n1", "n2"), within_s=8.0)
    assert [event.term for event in _started(world)] == [1, 2]


def test_r12_where_there_could_be_two_jobs_the_only_host_waits_for_the_one_it_heard_of() -> None:
    """No other node has to agree to what it begins: it looks for that job until the timeout."""
    world = _world("n1", "n9", nodes="1:3")
    world.crash("n9")
    world.run(0.5)
    _tell(world, "n1", _forged(3))
    world.run_until(lambda: world.over("n1") is not None, within_s=32.0)
    assert len(_started(world)) == 1


def _started(world: World) -> list[events.CoordinatorStarted]:
    every = (event for _, _, event in world.events)
    return [each for each in every if isinstance(each, events.CoordinatorStarted)]


@pytest.mark.parametrize(
    "question",
    [
        Question(run_id="another", term=Term(9, "n9/9"), is_pre_vote=False),
        Question(run_id="another"),
    ],
    ids=["vote", "status"],
)
def test_r15_an_agent_of_another_run_is_told_nothing_of_this_job(
    question: Question,
) -> None:
    """It asks any agent at an address, and would go by the record and the end that it hears."""
    world = _world("n1", "n2", "n3")
    world.run_until(lambda: world.all_run("n1", "n2", "n3"), within_s=5.0)
    process = world.processes["n2"]
    given = v.Asked(connection=7, question=question)
    (answered,) = process.follower.step(given, process.now())
    assert isinstance(answered, v.SendTo)
    assert answered.message == Answer(incarnation=process.node.incarnation)
    assert process.follower.voter.term.counter == 1, "it has promised nothing"


@pytest.mark.parametrize("is_put_back", [True, False], ids=["put back", "lost"])
def test_r15_an_earlier_record_in_etcd_is_worth_less_than_what_a_node_knows(
    *,
    is_put_back: bool,
) -> None:
    """Who can write there can put one back that is signed; and etcd may lose its data."""
    world = new_world(settings("2:3", quorum="granted", max_restarts=2))
    assert isinstance(world, GrantedWorld)
    world.start("n1", "n2", "n3")
    world.run_until(lambda: world.all_run("n1", "n2", "n3"), within_s=5.0)
    first = world.etcd.record
    for _ in range(2):
        world.fail("n2")
        world.reform("n1", "n2", "n3")
    (leader,) = (name for name in ("n1", "n2", "n3") if world.processes[name].leader is not None)
    others = [name for name in ("n1", "n2", "n3") if name != leader]
    world.etcd.record = first if is_put_back else ""
    world.crash(leader)
    world.run_until(lambda: world.all_run(*others), within_s=20.0)
    assert [assignment.round for _, assignment in world.starts][-1] == 4
    assert [assignment.restart_count for _, assignment in world.starts][-1] == 2
