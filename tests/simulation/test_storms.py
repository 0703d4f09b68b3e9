"""Storms from seeds: whatever happens, in whatever order, the promises hold.

To look for more: `python -m elastic_harness.simulation --seeds A..B`. A seed that breaks a promise
is mended, planted (`planted.py`) and written into `seeds.txt`.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from elastic_harness.simulation.campaign import AGENTS
from elastic_harness.simulation.machine_agent import MachineAgent
from elastic_harness.simulation.plan import Blow, Options, draw_plan
from elastic_harness.simulation.played_agent import PlayedAgent
from elastic_harness.simulation.storm import run_storm, weather

from tests.simulation.planted import PLANTED, finds
from tests.simulation.planting import drawn


def _read_seeds() -> list[tuple[int, str]]:
    lines = Path(__file__).with_name("seeds.txt").read_text(encoding="utf-8").splitlines()
    words = [line.split(maxsplit=2) for line in lines if not line.startswith("#")]
    return [(int(seed), planted) for seed, planted, _ in words]


FOUND = _read_seeds()

# What storms around the real agent's machine have found.
FOUND_AROUND_THE_AGENT = {
    104057: "workers that are held were continued when their leaders' grace was over",
    114203: "workers that are held were continued, while another round ran elsewhere",
}

# What storms have found in the simulator itself: a judge that was wrong, or what nobody promises.
_MAJORITY = Options(quorum="majority", is_brisk=True)
_SWARM = Options(quorum="majority", is_swarm=True, is_brisk=True)
_GRANTED = Options(quorum="granted", is_brisk=True)
_BRISK_GRANTED = Options(quorum="granted", is_swarm=True, is_brisk=True)
FOUND_IN_THE_SIMULATOR = {
    4013450: (
        Options(is_brisk=True),
        "a round that was committed when its only node was dead is one between two others",
    ),
    5023061: (_MAJORITY, "nodes that are yet to arrive know of no job either"),
    5049095: (_MAJORITY, "a firewall that rejects beside a frozen agent is not covered (R5)"),
    6000256: (_GRANTED, "who comes after the end, and begins again, may end in another way"),
    6001912: (_GRANTED, "and the restarts of its job are counted from nothing"),
    82104396: (_BRISK_GRANTED, "an end that is lost, and announced, is an end like others"),
    82311960: (_BRISK_GRANTED, "who had found a coordinator may hear late how its job has ended"),
    90176842: (_SWARM, "workers fail with those of their own job, whatever round that is in"),
    87164486: (_BRISK_GRANTED, "an end stands from when it is written, told or not"),
    17006661: (
        Options(quorum="majority", is_swarm=True, is_brisk=True),
        "two of a job that nobody can follow, as one of them would hear of the other, join no next",
    ),
    19500981: (
        drawn("succeed", "isolate", "suspend", "kill", "lose host", "join", "turn", nodes=4),
        "one that has joined the next says nothing about who is left over of the one before",
    ),
    19300095: (
        drawn("isolate", "succeed", "lose host", nodes=3, is_brisk=False),
        "who has voted for one who is lost before any round was committed follows nobody (R12)",
    ),
    52044124: (
        Options(quorum="majority", is_swarm=True, is_brisk=True),
        "who comes back at the endpoint knows what was charged, and not what was free since",
    ),
    54063793: (
        Options(quorum="granted", is_swarm=True, is_brisk=True),
        "nor does one whose grant ran out know, under the same term again, why a round has ended",
    ),
    54013763: (
        Options(quorum="granted", is_swarm=True, is_brisk=True),
        "groups of a round succeed together in a second job, too, that counts from 1 again",
    ),
    5070882: (_MAJORITY, "nor is one before another node than the one that is frozen"),
    15043064: (
        _MAJORITY,
        "nobody stays longer than `linger_s` for a node that is out of reach for all that time",
    ),
}

# What storms found that was no fault of the machines, or that another mend has hidden since.
_BRISK = Options(quorum="majority", is_swarm=True, is_brisk=True)
_FROZEN_SURVIVORS = drawn("freeze", "join", "suspend", "lose host", nodes=4)
FOUND_OTHERWISE = {
    "an agent that goes without a last word waits for nobody": (
        2002798,
        Options(nodes=5, is_brisk=True),
        MachineAgent,
    ),
    "who was given up two rounds ago is told who decides": (5010839, _BRISK, PlayedAgent),
    "numbers that never came to a round keep nobody from following": (5012680, _BRISK, PlayedAgent),
    "who comes back and hosts the endpoint looks there who decides now": (
        6001061,
        Options(nodes=5, quorum="majority", is_swarm=True, is_brisk=True),
        PlayedAgent,
    ),
    "where quorums of two rounds exceed max_nodes, who has no place in the next endorses it": (
        60083517,
        _BRISK,
        PlayedAgent,
    ),
    "who stands for long leaves one that comes earlier time to ask before each try of its own": (
        80021517,
        _BRISK,
        PlayedAgent,
    ),
    "who is named where nodes meet is dialled once a lease, though it was lost: it may be well": (
        80085794,
        _BRISK,
        PlayedAgent,
    ),
    "a seal that one of its roster has not acknowledged keeps nobody from following": (
        124051488,
        Options(quorum="majority", is_swarm=True, is_brisk=True, is_aimed=True),
        PlayedAgent,
    ),
    "where the last endpoint that told of a job is gone with it, another one begins": (
        200119584,
        Options(quorum="majority", endpoints=3, is_swarm=True, is_brisk=True, is_aimed=True),
        PlayedAgent,
    ),
    "who stays out of reach is out of reach of those, too, that come back in the calm": (
        260011995,
        Options(quorum="majority", endpoints=3, is_swarm=True, is_brisk=True, is_aimed=True),
        PlayedAgent,
    ),
    "who decides an end that others have ended by needs nobody who agrees, and tells who comes": (
        73002035,
        Options(quorum="majority", nodes=3, kinds=("freeze", "succeed", "isolate", "join")),
        PlayedAgent,
    ),
    "a spare that stood still for as long as anybody stayed is told nothing (R10)": (
        73003396,
        Options(quorum="majority", nodes=3, kinds=("freeze", "succeed", "isolate", "join")),
        PlayedAgent,
    ),
    "who was told that somebody has left says so with its vote": (
        114024727,
        Options(quorum="majority", is_brisk=True, is_aimed=True),
        PlayedAgent,
    ),
    "of whom all have left in order, nobody needs to agree to what follows": (
        86072482,
        _BRISK,
        PlayedAgent,
    ),
    "who left a later round is not left out of account where an earlier one is to agree": (
        90342579,
        _BRISK,
        PlayedAgent,
    ),
    "whoever decides looks there for a newer one, as that may have no other way to be heard of": (
        8001981,
        _BRISK,
        PlayedAgent,
    ),
    "a member that comes back before it is missed is asked again whom it reaches": (
        6000896,
        Options(quorum="majority", is_brisk=True, endpoints=3),
        PlayedAgent,
    ),
    "a founder that gives way and begins again is not told to give way once more": (
        6003061,
        Options(quorum="majority", is_brisk=True, endpoints=3),
        PlayedAgent,
    ),
    "one voter that may live is waited for: others may have agreed with it, and have ended since": (
        113,
        _FROZEN_SURVIVORS,
        PlayedAgent,
    ),
    "who begins to kill its workers while it asks who decides greets nobody until they are gone": (
        70080245,
        _BRISK_GRANTED,
        PlayedAgent,
    ),
    "a round that etcd was not told of at once is told to it although another was sealed since": (
        12099774,
        _BRISK_GRANTED,
        PlayedAgent,
    ),
    "a spare counts for nothing where a voter of the mark may live, however long it was waited": (
        1701,
        _FROZEN_SURVIVORS,
        PlayedAgent,
    ),
    "a voter that lives, knows no later round, and can elect nobody is not waited for": (
        11430045,
        _BRISK,
        PlayedAgent,
    ),
    "a mark tells of the restart that the round before it cost": (11903400, _BRISK, PlayedAgent),
    "a spare begins with a host whose mark tells of nobody left": (9093281, _BRISK, PlayedAgent),
    "a member that is granted little asks again soon": (
        7001529,
        Options(nodes=5, quorum="majority", is_brisk=True),
        PlayedAgent,
    ),
    "and early enough for an answer over a slow network": (71036580, _BRISK, PlayedAgent),
    "two nodes on a slow network do not depose each other for ever": (5066686, _BRISK, PlayedAgent),
    "of two that were elected under one term both are told": (5093481, _BRISK, PlayedAgent),
    "and so are they where each is well by itself": (9019202, _BRISK, PlayedAgent),
    "who was suspended is woken again by what was to wake it later": (
        6013763,
        Options(quorum="granted", is_brisk=True),
        PlayedAgent,
    ),
    "a node that is left of a later round says so to a host that comes back, and numbers go on": (
        15033761,
        _BRISK,
        PlayedAgent,
    ),
    "an end that only the lost had heard of is none": (5080612, _BRISK, PlayedAgent),
    "or one that stays apart": (8102426, _BRISK, PlayedAgent),
    "so it is where an etcd says who decides": (
        3001552,
        Options(quorum="granted", is_brisk=True),
        PlayedAgent,
    ),
    "an end that etcd was not told of is none, whoever has decided it": (
        12000277,
        _BRISK_GRANTED,
        PlayedAgent,
    ),
    "a spare that could not reach a coordinator for as long as its key hears of the end": (
        12062464,
        _BRISK_GRANTED,
        PlayedAgent,
    ),
    "so does a member that was given up": (12105217, _BRISK_GRANTED, PlayedAgent),
    "a failure that is told after a node has said that its workers are gone is charged": (
        12013950,
        _BRISK_GRANTED,
        PlayedAgent,
    ),
    "a spare hears of an end that was announced from a member that went by it": (
        201,
        drawn("fail", "suspend", nodes=3, is_brisk=False),
        PlayedAgent,
    ),
    "and a member from a spare that asks it who decides": (
        366,
        drawn("isolate", "succeed", "lose host", nodes=3, is_brisk=False),
        PlayedAgent,
    ),
    "a spare that was told of a round follows no first round of its own": (
        11071507,
        _BRISK,
        PlayedAgent,
    ),
    "nor does whoever hears so from it": (16025939, _BRISK, PlayedAgent),
    "a spare with a round of its own asks those of the newest round that it was told of": (
        11192013,
        _BRISK,
        PlayedAgent,
    ),
    "a node that leaves and decides goes by its own coordinator, if its lease from it has ended": (
        16064568,
        _BRISK,
        PlayedAgent,
    ),
    "and alone, if that has stepped down without a word to it": (18046659, _BRISK, PlayedAgent),
    "nobody begins while those are lost who elected whom the store names": (
        15082844,
        _BRISK,
        PlayedAgent,
    ),
    "a host that comes back hears of the end from a survivor that has gone by the announcement": (
        9063217,
        _BRISK,
        PlayedAgent,
    ),
    "and where somebody else was told, and has gone": (
        426845,
        Options(quorum="granted"),
        PlayedAgent,
    ),
    "a node whose coordinator is mute hears of the end from another member": (
        11182002,
        _BRISK,
        PlayedAgent,
    ),
    "and one whose coordinator was killed, from a spare": (15096592, _BRISK, PlayedAgent),
    "a host that is back waits for a survivor that was told of the end, and can elect nobody": (
        1343,
        drawn("succeed", "freeze", "isolate", "lose host", "back", nodes=3, is_brisk=False),
        PlayedAgent,
    ),
    "a node that has left before it hears that it decides does not": (
        37012857,
        _BRISK_GRANTED,
        PlayedAgent,
    ),
    "nor one that has left while it was named": (37011207, _BRISK_GRANTED, PlayedAgent),
    "nor one that leaves before it has found its own coordinator": (
        203,
        drawn("drain", "break", "fail", nodes=3),
        PlayedAgent,
    ),
    "a spare that hears of an announcement begins nothing with a host that is back": (
        11901415,
        _BRISK,
        PlayedAgent,
    ),
}


@pytest.mark.parametrize("tens", range(20))
def test_the_promises_hold_in_every_storm(tens: int) -> None:
    """Safety at every moment; progress, or an end with a reason, once it is calm."""
    for seed in range(10 * tens, 10 * tens + 10):
        try:
            weather(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.parametrize("tens", range(5))
def test_the_promises_hold_around_the_real_agents_machine(tens: int) -> None:
    """What the played agent does is what the real one does, as far as promises go."""
    for seed in range(10 * tens, 10 * tens + 10):
        try:
            weather(seed, MachineAgent)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.parametrize("tens", range(8))
def test_the_promises_hold_where_a_coordinator_is_followed_by_another(tens: int) -> None:
    """Jobs with succession, in which nobody is spared (R11)."""
    options = Options(quorum="majority")
    for seed in range(10 * tens, 10 * tens + 10):
        try:
            run_storm(draw_plan(seed, options))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.parametrize("tens", range(5))
def test_the_promises_hold_where_somebody_outside_says_who_decides(tens: int) -> None:
    """Jobs with an etcd, around the registry that talks to it; the real agent's machine in some."""
    options = Options(quorum="granted", is_brisk=True)
    for seed in range(10 * tens, 10 * tens + 10):
        try:
            run_storm(draw_plan(seed, options), AGENTS["machine" if seed % 2 else "played"])
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.parametrize("seed", FOUND_AROUND_THE_AGENT)
def test_what_a_storm_once_found_in_the_agent_is_mended(seed: int) -> None:
    """See `FOUND_AROUND_THE_AGENT`."""
    weather(seed, MachineAgent)


@pytest.mark.parametrize("seed", FOUND_IN_THE_SIMULATOR)
def test_what_a_storm_once_found_in_the_simulator_is_mended(seed: int) -> None:
    """See `FOUND_IN_THE_SIMULATOR`."""
    options, _ = FOUND_IN_THE_SIMULATOR[seed]
    run_storm(draw_plan(seed, options))


def test_one_of_a_first_round_that_was_given_up_may_be_left_over() -> None:
    """Beside 19300095: another one under the same term was joined by all others (R12).

    n3 acknowledged the first round of n1, n2 was cut off before it could. n1 comes back, and begins
    with n2, as n3 alone can elect nobody; nor can it join, for as long as it lives.
    """
    blows = (
        Blow(after_s=0.3914, kind="isolate", who=4, how=0.57),
        Blow(after_s=0.8223, kind="lose host", how=0.54),
        Blow(after_s=0.95, kind="succeed"),
    )
    options, _ = FOUND_IN_THE_SIMULATOR[19300095]
    outcome = run_storm(dataclasses.replace(draw_plan(19300095, options), blows=blows))
    assert (outcome.blows, outcome.ending) == (2, "runs")


@pytest.mark.parametrize("sentence", FOUND_OTHERWISE)
def test_what_a_storm_once_found_elsewhere_is_mended(sentence: str) -> None:
    """See `FOUND_OTHERWISE`."""
    seed, options, agent_class = FOUND_OTHERWISE[sentence]
    run_storm(draw_plan(seed, options), agent_class)


@pytest.mark.parametrize(("seed", "planted"), FOUND)
def test_what_a_storm_once_found_is_found_again_and_mended(seed: int, planted: str) -> None:
    """Each seed breaks a promise with its fault planted, and none without it, guarded or not."""
    assert finds(planted, seed)
    with PLANTED[planted].unguarded():
        run_storm(draw_plan(seed, PLANTED[planted].options))
    run_storm(draw_plan(seed, PLANTED[planted].options))


def test_every_planted_fault_has_a_seed() -> None:
    """No fault is planted that no storm of the suite finds."""
    assert {planted for _, planted in FOUND} == set(PLANTED)
