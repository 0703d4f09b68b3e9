"""R12: when a job goes on without its coordinator, and who may begin one."""

from __future__ import annotations

import pytest
from elastic_simulation.checks import Watch
from elastic_simulation.world import World, settings
from elastic_simulation.worlds import formed

from pytest_elastic.errors import UsageError
from pytest_elastic.rdzv_conf import RendezvousConf
from pytest_elastic.rendezvous.settings import Settings, choose_quorum


@pytest.mark.parametrize(
    ("asked", "nodes", "quorum"),
    [
        ("auto", (3, 3), "majority"),
        ("auto", (2, 3), "majority"),
        ("auto", (1, 3), "coordinator"),  # one here and two there could both be a job
        ("auto", (2, 4), "coordinator"),
        ("auto", (2, 2), "coordinator"),  # one of two is no majority
        ("auto", (1, 1), "coordinator"),
        ("majority", (1, 3), "majority"),
        ("coordinator", (3, 3), "coordinator"),
    ],
)
def test_r12_it_is_on_where_no_two_groups_could_both_be_large_enough(
    asked: str, nodes: tuple[int, int], quorum: str
) -> None:
    """Unless the user says otherwise."""
    conf = RendezvousConf(quorum=asked)
    choice = choose_quorum(conf, min_nodes=nodes[0], max_nodes=nodes[1])
    assert choice.quorum == quorum
    assert choice.reason


@pytest.mark.parametrize("beat_s", [0.1, 0.2, 0.3, 0.4, 0.7, 1.1])
def test_r12_three_beats_are_enough_however_floats_are_rounded(beat_s: float) -> None:
    """3 * 0.4 is a little more than 1.2 in floats; a user who writes 1.2 does not mean less."""
    lease_s = round(3 * beat_s, 1)
    conf = RendezvousConf(beat_interval_s=beat_s, lease_s=lease_s)
    choice = choose_quorum(conf, min_nodes=3, max_nodes=3)
    assert choice.quorum == "majority"
    quick = Settings(
        run_id="job",
        min_nodes=3,
        max_nodes=3,
        max_restarts=0,
        quorum="majority",
        beat_interval_s=beat_s,
        lease_s=lease_s,
    )
    assert quick.has_succession


def test_r12_it_is_off_where_a_lease_is_shorter_than_three_beats() -> None:
    """A coordinator could grant less than a beat of lease; who asks for it all the same is told."""
    conf = RendezvousConf(beat_interval_s=2.0, lease_s=5.0)
    choice = choose_quorum(conf, min_nodes=3, max_nodes=3)
    assert choice.quorum == "coordinator"
    with pytest.raises(UsageError, match="at least three times the beat interval"):
        Settings(
            run_id="job",
            min_nodes=3,
            max_nodes=3,
            max_restarts=0,
            beat_interval_s=2.0,
            lease_s=5.0,
            quorum="majority",
        )


def test_r12_all_nodes_must_say_the_same() -> None:
    """One that would end the job with its coordinator is refused where the others go on."""
    world = formed("n1", "n2", "n3", config=settings("2:3", quorum="majority"))
    world.start("n4", config=settings("2:3"))
    world.run(0.5)
    over = world.over("n4")
    assert over is not None
    assert over.result == "refused"
    assert "--rdzv-conf quorum (or, without it, " in over.reason
    assert ") is coordinator on n4 and majority on n1. Give all nodes" in over.reason


def test_r12_with_torchruns_semantics_the_coordinators_side_goes_on_with_min_nodes() -> None:
    """A majority on the other side ends as lost."""
    world = formed("n1", "n2", "n3", config=settings("1:3"))
    Watch(world)
    world.isolate("n1", ["n2", "n3"])
    world.run_until(lambda: world.all_run("n1"), within_s=4.0)
    world.run(5.0)
    assert [over is not None for over in (world.over("n2"), world.over("n3"))] == [True, True]


def test_r12_no_host_begins_the_job_again_while_it_runs() -> None:
    """The endpoint is served again, by a host that believes to be the first: it steps down."""
    world = formed("n1", "n2", "n3", config=settings("2:3", quorum="majority", last_call_s=1.0))
    Watch(world)
    world.crash("n1")
    world.reform("n2", "n3", within_s=3.0)
    world.run(2.0)
    world.start("n1", "n4")  # two would be enough for a first round
    world.run_until(lambda: _is_full(world), within_s=5.0)
    world.run(3.0)
    assert {world.round_of(name) for name in ("n2", "n3")} == {world.round_of("n2")}
    assert min(seal.round for seal in world.seals()[1:]) > 1


def _is_full(world: World) -> bool:
    """Tell whether three nodes run, the two survivors among them."""
    running = [name for name in ("n1", "n2", "n3", "n4") if world.round_of(name)]
    return len(running) == 3 and {"n2", "n3"} <= set(running)
