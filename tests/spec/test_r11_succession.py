"""R11: the job outlives the loss of any node, the coordinator's included, and never runs twice."""

from __future__ import annotations

from functools import partial

import pytest
from elastic_simulation.checks import Watch
from elastic_simulation.world import World, settings
from elastic_simulation.worlds import formed, new_world

from pytest_elastic.events import model as events
from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous.consensus.records import Term
from pytest_elastic.rendezvous.messages import LeaderAddress
from pytest_elastic.rendezvous.settings import Settings
from tests.spec.words import asks_for_a_vote, has_accepted_the_end, is_of_moment

WAYS = {
    # the keeper says that its workers are gone; silence or a refusal prove nothing, so the others
    # wait for a lease and its margin, from the last contact.
    "kill_agent": 0.3,
    "crash": 2.0,
    "cut_power": 3.0,
}


def succeeding(nodes: str = "2:3", **others: float) -> Settings:
    """Return settings under which a majority goes on."""
    return settings(nodes, quorum="majority", **others)  # type: ignore[arg-type]  # durations


def led(*names: str, config: Settings | None = None, after_s: float = 2.0) -> World:
    """Return a world whose first round runs under the first node; it is judged from here on."""
    world = formed(*names, config=config or succeeding(), after_s=after_s)
    Watch(world).worker_failures = 1
    return world


def coordinators(world: World) -> list[tuple[int, str]]:
    """Return the terms that were ever decided in, and their leaders."""
    return [
        (event.term, name)
        for _, name, event in world.events
        if isinstance(event, events.RoundSealed)
    ]


def newest_term(world: World) -> int:
    """Return the highest term in which a round was sealed."""
    return max(term for term, _ in coordinators(world))


def elections(world: World) -> int:
    """Return how many votes were asked for in earnest."""
    return sum(asks_for_a_vote(message) for _, _, _, message in world.sent)


# --- losing the coordinator ------------------------------------------------------------------


@pytest.mark.parametrize(("way", "within_s"), WAYS.items())
def test_r11_the_others_go_on_without_the_coordinator(way: str, within_s: float) -> None:
    """However its node is lost, and with it rank 0 and the store of the round."""
    world = led("n1", "n2", "n3")
    getattr(world, way)("n1")
    assert world.reform("n2", "n3", within_s=within_s + 0.5) < within_s
    assert world.ranks("n2") == ("n2", "n3")
    assert newest_term(world) == 2


def test_r11_a_frozen_coordinator_is_followed_and_decides_nothing_when_it_goes_on() -> None:
    """Its keeper has killed its workers by then; it comes back as a newcomer."""
    world = led("n1", "n2", "n3")
    world.freeze("n1", 6.0)
    assert world.reform("n2", "n3", within_s=5.0) < 5.0
    world.run_until(lambda: world.all_run("n2", "n3", "n1"), within_s=8.0)
    assert world.processes["n1"].leader is None
    assert newest_term(world) == 2


def test_r11_two_that_stand_at_the_same_moment_do_not_cost_another_lease() -> None:
    """Whenever the lease of one ends beside the turn of another, on a slow network.

    Nor does either say that it is cut off: one votes, the other is elected.
    """
    took: dict[int, float] = {}
    for apart_ms in range(0, 250, 5):
        world = new_world(succeeding(), checks_wire=False, keeps_messages=False)
        world.latency_s = 0.02
        world.start("n1", "n2")
        world.run(apart_ms / 1000)
        world.start("n3")
        world.run_until(partial(world.all_run, "n1", "n2", "n3"), within_s=5.0)
        world.run(2.0)
        world.freeze("n1", 60.0)
        took[apart_ms] = world.reform("n2", "n3", within_s=9.0)
        assert not any(isinstance(event, events.QuorumMissed) for _, _, event in world.events)
    assert {apart: seconds for apart, seconds in took.items() if seconds > 2.0} == {}


def test_r11_a_forged_record_of_a_higher_term_costs_nothing() -> None:
    """It is a hint to dial: no leader answers there, and it is overwritten."""
    world = led("n1", "n2", "n3")
    world.inquiries.published = LeaderAddress(
        term=Term(900, "x/1"), name="x", incarnation="x/1", address="n3", port=1000
    )
    world.run(5.0)
    assert elections(world) == 0
    assert world.inquiries.published.incarnation == "n1/1"
    assert world.all_run("n1", "n2", "n3")
    assert coordinators(world) == [(1, "n1")]  # no other round


def test_r11_it_costs_no_restart_and_numbers_go_on() -> None:
    """The roster lost a member; what was used before stays used."""
    world = led("n1", "n2", "n3")
    world.fail("n2")
    world.reform("n1", "n2", "n3")
    world.run(2.0)
    world.kill_agent("n1")
    world.reform("n2", "n3")
    assert world.restarts("n3") == 1
    assert world.round_of("n3") > 2
    assert not world.ended()[-1].charged


def test_r11_after_it_restarts_are_charged_as_before() -> None:
    """The successor's rounds are like any."""
    world = led("n1", "n2", "n3")
    world.kill_agent("n1")
    world.reform("n2", "n3")
    world.run(2.0)
    world.fail("n3")
    world.reform("n2", "n3")
    assert world.restarts("n2") == 1


def test_r11_one_coordinator_after_the_other() -> None:
    """The successor's successor goes on, as long as there is a majority of the newest round."""
    world = led("n1", "n2", "n3", "n4", config=succeeding("2:4"))
    for gone, left in (("n1", ["n2", "n3", "n4"]), ("n2", ["n3", "n4"])):
        world.kill_agent(gone)
        world.reform(*left)
        world.run(2.0)
    assert newest_term(world) == 3


def test_r11_the_successor_is_lost_before_it_has_decided_anything() -> None:
    """Five nodes lose two coordinators at once; the third majority decides."""
    names = ["n1", "n2", "n3", "n4", "n5"]
    world = led(*names, config=succeeding("3:5"))
    world.kill_agent("n1")
    world.run_until(lambda: world.processes["n2"].leader is not None, within_s=1.0)
    world.kill_agent("n2")
    world.reform("n3", "n4", "n5", within_s=5.0)
    assert newest_term(world) == 3


# --- not losing it ---------------------------------------------------------------------------


def test_r11_a_reset_is_no_loss() -> None:
    """Both members dial again before they doubt it, and are back in the same round."""
    world = led("n1", "n2", "n3")
    world.break_connection("n2")
    world.break_connection("n3")
    world.run(3.0)
    assert world.all_run("n1", "n2", "n3")
    assert world.round_of("n2") == 1
    assert elections(world) == 0


@pytest.mark.parametrize(("source", "target"), [("n1", "n3"), ("n3", "n1")])
def test_r11_one_member_cannot_depose_a_coordinator_that_others_hear(
    source: str, target: str
) -> None:
    """A link is cut in one direction: the node is left behind, and comes back."""
    world = led("n1", "n2", "n3")
    world.cut(source, target)
    world.run_until(lambda: world.all_run("n1", "n2"), within_s=4.0)
    world.run(3.0)
    assert elections(world) == 0
    world.heal()
    world.run_until(lambda: world.all_run("n1", "n2", "n3"), within_s=5.0)
    assert newest_term(world) == 1


@pytest.mark.parametrize("is_deaf", [True, False])
def test_r11_a_coordinator_that_is_deaf_or_mute_steps_down(is_deaf: bool) -> None:  # noqa: FBT001
    """All links of one direction are cut: its mandate runs out, its workers with it."""
    world = led("n1", "n2", "n3")
    for other in ("n2", "n3"):
        world.cut(*((other, "n1") if is_deaf else ("n1", other)))
    world.reform("n2", "n3", within_s=5.0)
    assert not world.agent("n1").is_running
    assert world.processes["n1"].leader is None
    world.heal()
    world.run_until(lambda: world.all_run("n1", "n2", "n3"), within_s=6.0)


# --- never two worlds ------------------------------------------------------------------------


def test_r11_no_worker_starts_before_those_of_before_are_provably_gone() -> None:
    """The coordinator and one member are cut off from three, who cannot know what these do."""
    names = ["n1", "n2", "n3", "n4", "n5"]
    world = led(*names, config=succeeding("3:5"))
    cut_at = world.time
    for one in ("n1", "n2"):
        world.isolate(one, ["n3", "n4", "n5"])
    world.reform("n3", "n4", "n5", within_s=6.0)
    assert world.time - cut_at > world.config.lease_s
    assert not world.agent("n1").is_running
    assert not world.agent("n2").is_running


def test_r11_who_sits_with_a_lost_coordinator_stops_when_its_mandate_does() -> None:
    """A coordinator grants no lease beyond its own: no successor has to wait for two leases."""
    names = ["n1", "n2", "n3", "n4", "n5"]
    world = led(*names, config=succeeding("3:5"))
    cut_at = world.time
    for one in ("n1", "n2"):
        world.isolate(one, ["n3", "n4", "n5"])
    world.run_until(lambda: not world.agent("n2").is_running, within_s=3.0)
    assert world.time - cut_at <= world.config.lease_s


def test_r11_what_was_held_back_for_long_is_refused() -> None:
    """Packets of the old coordinator arrive 20 s late: they are of a term that is over."""
    world = led("n1", "n2", "n3")
    world.isolate("n1", ["n2", "n3"])
    world.reform("n2", "n3", within_s=5.0)
    round_ = world.round_of("n2")
    world.run(20.0)
    assert world.round_of("n2") == round_
    world.heal()
    world.run_until(lambda: world.all_run("n1", "n2", "n3"), within_s=6.0)


# --- a minority ------------------------------------------------------------------------------


def test_r11_a_minority_stops_says_so_and_keeps_looking() -> None:
    """It heals back into the job long after a lease, as newcomers."""
    names = ["n1", "n2", "n3", "n4", "n5"]
    world = led(*names, config=succeeding("3:5"))
    for one in ("n1", "n2"):
        world.isolate(one, ["n3", "n4", "n5"])
    world.run(15.0)
    assert world.all_run("n3", "n4", "n5")
    said = {name for _, name, each in world.events if isinstance(each, events.QuorumMissed)}
    assert said == {"n1", "n2"}
    assert [world.over("n1"), world.over("n2")] == [None, None]
    world.heal()
    world.run_until(lambda: world.all_run(*names), within_s=5.0)


def test_r11_who_decided_and_is_cut_off_says_that_it_lost_itself() -> None:
    """Not as if it were another node, although the sentence is the same on all of them."""
    world = led("n1", "n2", "n3", config=succeeding("2:3", join_timeout_s=10.0))
    world.isolate("n1", ["n2", "n3"])
    world.run_until(lambda: world.over("n1") is not None, within_s=30.0)
    over = world.over("n1")
    assert over is not None
    assert over.reason.startswith("lost n1 (n1:1000, this node itself) and was cut off from a")


def test_r11_a_minority_ends_as_lost_after_the_join_timeout() -> None:
    """Not before, and naming what it could reach."""
    world = led("n1", "n2", "n3", config=succeeding("2:3", join_timeout_s=10.0))
    world.isolate("n3", ["n1", "n2"])
    world.run(10.0)
    assert world.over("n3") is None
    world.run(3.0)
    over = world.over("n3")
    assert over is not None
    assert over.result == "lost"
    assert "reached 1 of its 3 members" in over.reason


def test_r11_a_successor_waits_for_the_join_timeout_however_long_its_round_has_run() -> None:
    """The time counts from when nodes are missing, not from when it began to decide."""
    world = led("n1", "n2", "n3", config=succeeding("3:3", join_timeout_s=10.0))
    world.show_newer(world.processes["n1"], 1)
    world.run(15.0)
    assert world.all_run("n1", "n2", "n3")
    assert world.round_of("n2") == 1
    world.kill_agent("n3")
    world.run(9.0)
    assert world.over("n2") is None
    world.run_until(lambda: world.over("n2") is not None, within_s=2.0)
    assert "2 of at least 3 nodes were ready within 10 s" in str(world.over("n2"))


def test_r11_a_tie_goes_to_the_side_of_the_coordinator() -> None:
    """Of four nodes, two and two are cut off from each other."""
    world = led("n1", "n2", "n3", "n4", config=succeeding("2:4"))
    for one in ("n1", "n2"):
        world.isolate(one, ["n3", "n4"])
    world.run_until(lambda: world.all_run("n1", "n2"), within_s=4.0)
    world.run(5.0)
    assert newest_term(world) == 1
    assert not world.agent("n3").is_running


def test_r11_of_two_nodes_the_coordinator_goes_on_and_the_other_does_not() -> None:
    """A tie again: nothing else could tell a dead coordinator from a cut link."""
    for gone, left in (("n2", "n1"), ("n1", "n2")):
        world = led("n1", "n2", config=succeeding("1:2", join_timeout_s=5.0))
        world.crash(gone)
        world.run(8.0)
        assert world.agent(left).is_running == (left == "n1")


# --- leaving, spares, coming back ------------------------------------------------------------


def test_r11_a_coordinator_that_leaves_hands_over() -> None:
    """It takes an instant, not a lease, and costs nothing (R4)."""
    world = led("n1", "n2", "n3")
    world.agent("n1").drain(grace_s=5.0, takes_s=0.5)
    assert world.reform("n2", "n3") < 0.8
    assert world.restarts("n2") == 0
    over = world.over("n1")
    assert over is not None
    assert over.result == "drained"
    assert elections(world) <= 1  # of two that are left, the first may need its own vote only


def test_r11_of_two_nodes_the_coordinator_may_leave() -> None:
    """It renounces its voice: the other one is the majority of what is left."""
    world = led("n1", "n2", config=succeeding("1:2"))
    world.agent("n1").drain(grace_s=5.0)
    world.reform("n2")


def test_r11_a_coordinator_that_leaves_in_a_bad_moment_hands_over_all_the_same() -> None:
    """Its node has just lost the connection to it, and has no workers: it does not simply go."""
    world = led("n1", "n2", "n3")
    world.fail("n2")
    world.run_until(lambda: not world.agent("n1").is_running, within_s=2.0)
    world.break_connection("n1")
    world.agent("n1").drain(grace_s=5.0)
    world.reform("n2", "n3", within_s=3.0)
    over = world.over("n1")
    assert over is not None
    assert over.result == "drained"


def test_r11_a_spare_is_promoted_by_the_successor() -> None:
    """It asks the members of the round who decides, and is waited for."""
    config = succeeding("3:3")
    world = led("n1", "n2", "n3", config=config)
    world.start("n4")
    world.run(1.0)
    assert world.notices("n4", ports.Spared)
    world.kill_agent("n1")
    world.reform("n2", "n3", "n4")
    assert world.ranks("n2") == ("n2", "n3", "n4")


def test_r11_whoever_serves_the_endpoint_again_finds_the_job() -> None:
    """A restarted host begins as the first coordinator of a job, and is told that it is not."""
    world = led("n1", "n2", "n3")
    world.crash("n1")
    world.reform("n2", "n3")
    world.run(2.0)
    world.start("n1")
    world.run_until(lambda: world.all_run("n1", "n2", "n3"), within_s=4.0)
    assert newest_term(world) == 2
    assert world.ranks("n1") == ("n2", "n3", "n1")


def test_r11_a_newcomer_finds_the_successor_at_the_endpoint() -> None:
    """The place of the successor is published where newcomers look."""
    world = led("n1", "n2", "n3")
    world.freeze("n1", 60.0)  # its store goes on below its keeper
    world.reform("n2", "n3", within_s=5.0)
    world.run(1.0)
    world.start("n4")
    world.run_until(lambda: world.all_run("n2", "n3", "n4"), within_s=4.0)


def test_r11_a_node_that_has_promised_more_is_taken_in_under_a_new_term() -> None:
    """Two stood for election and one won; the other must not be left out for having stood."""
    world = led("n1", "n2", "n3", config=succeeding("3:3"))
    world.cut("n3", "n1")
    world.cut("n1", "n3")
    world.run(2.0)
    # n3 has promised term 5 in an election that came to nothing.
    n3 = world.processes["n3"]
    n3.follower.voter.vote(Term(5, "n3/3"), n3.now())
    world.heal()
    world.run_until(lambda: world.all_run("n1", "n2", "n3"), within_s=8.0)
    assert newest_term(world) > 5


# --- in the middle of something --------------------------------------------------------------


@pytest.mark.parametrize("moment", ["stop", "propose", "accept", "decide"])
def test_r11_the_coordinator_is_lost_in_every_moment_of_a_round(moment: str) -> None:
    """A worker fails, and the coordinator's node dies while the next round is made."""
    world = led("n1", "n2", "n3")
    before = len(world.sent)
    world.fail("n2")
    world.run_until(
        lambda: any(is_of_moment(said, moment) for _, _, _, said in world.sent[before:]), 3.0
    )
    world.crash("n1")
    world.run_until(lambda: world.all_run("n2", "n3"), within_s=5.0)
    assert world.restarts("n2") <= 1


def test_r11_the_coordinator_is_lost_while_a_member_leaves() -> None:
    """The one that leaves has its grace, and votes until its workers are gone."""
    world = led("n1", "n2", "n3", config=succeeding("1:3"))
    world.agent("n3").drain(grace_s=5.0, takes_s=1.0)
    world.run(0.2)
    world.kill_agent("n1")
    world.run_until(lambda: world.over("n3") is not None, within_s=3.0)
    over = world.over("n3")
    assert over is not None
    assert over.result == "drained"


def test_r11_an_end_that_a_majority_has_heard_of_is_that_end() -> None:
    """The coordinator is lost before it could say the last word."""
    world = led("n1", "n2", "n3")
    for name in ("n1", "n2", "n3"):
        world.agent(name).succeed()
    world.run_until(lambda: has_accepted_the_end(world, "n3"), within_s=1.0)
    world.crash("n1")
    world.run(8.0)
    overs = [world.over(name) for name in ("n2", "n3")]
    assert [over.result for over in overs if over is not None] == ["succeeded"] * 2


def test_r11_groups_that_have_succeeded_are_not_run_again_for_a_lost_coordinator() -> None:
    """The members say again what they have reported; the one that is lost is the only one gone."""
    world = led("n1", "n2", "n3")
    world.agent("n2").succeed()
    world.agent("n3").succeed()
    world.run(0.5)
    world.kill_agent("n1")
    world.reform("n2", "n3")
    assert world.restarts("n2") == 0
