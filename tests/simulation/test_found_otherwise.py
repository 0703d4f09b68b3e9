"""Runs that once broke a promise, and need no fault planted to be kept: each with a sentence."""

from __future__ import annotations

import pytest
from elastic_simulation.machine_agent import MachineAgent
from elastic_simulation.process import PlayedAgent
from elastic_simulation.random_faults.plan import Options, draw_plan
from elastic_simulation.random_faults.plan_run import run_plan

from tests.simulation.planting import drawn

_BRISK_GRANTED = Options(quorum="granted", is_swarm=True, is_brisk=True)

# What runs found that was no fault of the machines, or that another mend has hidden since.
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
    "who stays out of reach is out of reach of those, too, that come back in the quiet period": (
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


@pytest.mark.parametrize("sentence", FOUND_OTHERWISE)
def test_what_a_run_once_found_elsewhere_is_mended(sentence: str) -> None:
    """See `FOUND_OTHERWISE`."""
    seed, options, agent_class = FOUND_OTHERWISE[sentence]
    run_plan(draw_plan(seed, options), agent_class)
