"""R5: the end of a connection makes a member suspect; what its agent answers decides."""

from __future__ import annotations

from elastic_simulation.world import KEEPER_S, settings
from elastic_simulation.worlds import formed

from pytest_elastic.rendezvous import ports


def test_r05_a_member_that_is_back_within_its_lease_goes_on_where_it_was() -> None:
    """A reset connection holds its workers for a moment; no round ends."""
    world = formed("n1", "n2", "n3")
    world.break_connection("n3")
    assert world.agent("n3").is_held
    world.run_until(lambda: not world.agent("n3").is_held, within_s=0.5)
    world.run(5.0)
    assert [world.round_of(name) for name in ("n1", "n2", "n3")] == [1, 1, 1]
    assert world.lost() == []


def test_r05_a_tombstone_evicts_at_once_and_the_others_start_at_once() -> None:
    """The keeper of a killed agent says that its workers are gone: nothing is waited for."""
    world = formed("n1", "n2", "n3", nodes="2:3")
    world.kill_agent("n3")
    took_s = world.run_until(lambda: world.all_run("n1", "n2"), within_s=1.0)
    assert took_s < KEEPER_S + 0.1
    assert world.lost() == [("n3", "tombstone")]


def test_r05_after_a_refusal_no_worker_starts_before_one_beat_and_the_kill_time() -> None:
    """An agent that is not there cannot say whether its workers are: they get time to be held."""
    config = settings("2:3")
    world = formed("n1", "n2", "n3", config=config)
    world.crash("n3")
    took_s = world.run_until(lambda: world.all_run("n1", "n2"), within_s=2.0)
    assert config.beat_interval_s + 0.15 <= took_s < config.beat_interval_s + 0.15 + 0.1
    assert world.lost() == [("n3", "refused")]


def test_r05_silence_is_waited_out() -> None:
    """A node that lost power answers nothing: its lease has to end first."""
    config = settings("2:3")
    world = formed("n1", "n2", "n3", config=config)
    world.cut_power("n3")
    took_s = world.run_until(lambda: world.all_run("n1", "n2"), within_s=3.0)
    longest_s = config.lease_s + config.drift_s
    assert longest_s - config.beat_interval_s <= took_s < longest_s + 0.1
    assert world.lost() == [("n3", "silent")]


def test_r05_a_member_that_was_replaced_meanwhile_kills_its_workers() -> None:
    """Held workers are killed, not continued, when the answer is that the round went on."""
    world = formed("n1", "n2", "n3", nodes="2:3")
    world.reject("n3", ["n1", "n2"])
    world.run_until(lambda: world.all_run("n1", "n2"), within_s=1.0)
    assert world.agent("n3").is_held
    world.heal()
    world.run_until(lambda: world.all_run("n1", "n2", "n3"), within_s=3.0)
    assert world.notices("n3", ports.ReleaseWorkers) == []
    assert len(world.notices("n3", ports.Fence)) == 1


def test_r05_news_that_was_lost_with_a_connection_is_said_again() -> None:
    """A failure reported into a broken connection ends the round once contact is back."""
    world = formed("n1", "n2")
    world.isolate("n2", ["n1"])
    world.fail("n2")
    world.run(0.2)
    world.break_connection("n2")
    world.heal()
    world.run_until(lambda: world.all_run("n1", "n2"), within_s=1.0)
    assert world.restarts("n1") == 1


def test_r05_workers_that_are_being_stopped_are_held_too_when_contact_is_lost() -> None:
    """Others may start a beat after a refused dial, so nothing of the old round may run on."""
    world = formed("n1", "n2", "n3", nodes="2:3")
    world.agent("n3").stop_s = 2.0
    world.fail("n1")
    world.run(0.2)
    world.reject("n3", ["n1", "n2"])
    assert world.agent("n3").is_held
    world.run_until(lambda: world.all_run("n1", "n2"), within_s=1.0)


def test_r05_an_order_given_during_the_loss_of_contact_is_given_again() -> None:
    """A member that comes back into a round that is being stopped is told to stop."""
    world = formed("n1", "n2", "n3")
    world.cut("n1", "n3")
    world.fail("n1")
    world.run(0.3)
    world.break_connection("n3")
    world.heal()
    world.run_until(lambda: world.all_run("n1", "n2", "n3"), within_s=1.0)
    assert world.lost() == []
