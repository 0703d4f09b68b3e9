"""Runs that once broke a promise, and need no fault planted to be kept: each with a sentence."""

from __future__ import annotations

import pytest
from elastic_simulation.random_faults.campaign import run_seeds
from elastic_simulation.random_faults.plan import Options

# What counted schedules found once, and how each ends now.
_MENDED = {
    "who waits with a host that is back, and has decided nothing, hears of the end": (
        3123,
        Options(
            quorum="majority",
            nodes=4,
            is_swarm=False,
            is_brisk=True,
            kinds=("succeed", "isolate", "lose host", "power", "lull", "on ending"),
        ),
        "succeeded",
    ),
    "a successor dials no host by the name of its place": (
        501380,
        Options(quorum="majority", is_brisk=True, is_aimed=True, endpoints=3),
        "lost",
    ),
    "a host that was elected lets the last voter go that leaves": (
        511094,
        Options(quorum="majority", is_brisk=True, is_aimed=True, endpoints=3),
        "waits (too_few)",
    ),
    "a record that was given up is not written down over a newer one": (
        512875,
        Options(quorum="granted", is_brisk=True, is_aimed=True),
        "runs",
    ),
    "hosts of whose job nothing is decided do not elect one another for ever": (
        520340,
        Options(quorum="majority", is_brisk=True, is_aimed=True, endpoints=3),
        "runs",
    ),
    "an agent that was started again at an address is the one that is dialled there": (
        531149,
        Options(quorum="majority", is_brisk=True, is_aimed=True, endpoints=3),
        "runs",
    ),
    "a host that was elected gives way to no leader that does not answer": (
        631697,
        Options(quorum="majority", is_brisk=True, is_aimed=True, endpoints=3),
        "runs",
    ),
    "a node that starts late is told the round as the others were, even if some have left it": (
        607812,
        Options(quorum="majority", is_swarm=True, is_brisk=True, is_aimed=True, endpoints=3),
        "runs",
    ),
    "a leader that stood still evicts no member for what it has not read yet": (
        2037426,
        Options(quorum="coordinator", is_swarm=True, is_brisk=True, is_aimed=True),
        "lost",
    ),
    "a node that has not answered since the stop order is lost, not slow, and costs no restart": (
        3005868,
        Options(quorum="coordinator", is_swarm=True, is_brisk=True, is_aimed=True),
        "lost",
    ),
    "a node that has accepted an end follows a leader that goes on without having heard of it": (
        3101520,
        Options(quorum="majority", is_swarm=True, is_brisk=True),
        "runs",
    ),
    "of two that stand at once, the one that is elected has the higher term": (
        3160961,
        Options(quorum="majority", is_swarm=True, is_brisk=True),
        "runs",
    ),
    "that also holds where the elected one is the last voter": (
        3083366,
        Options(quorum="majority", is_swarm=True, is_brisk=True, is_aimed=True, endpoints=3),
        "runs",
    ),
    "who has no vote promises itself nothing, so that it can follow the one that voters elect": (
        4051447,
        Options(quorum="majority", is_swarm=True, is_brisk=True, is_aimed=True),
        "runs",
    ),
    "the last voter of a job leads no longer than it has not elected another": (
        3120841,
        Options(quorum="majority", is_swarm=True, is_brisk=True, is_aimed=True),
        "runs",
    ),
    "a leader that was suspended counts on its own vote no longer than its voter does": (
        1004685,
        Options(quorum="majority", is_swarm=True, is_brisk=True, is_aimed=True),
        "runs",
    ),
    "a key that this node has is not won once more, and given back for the one before": (
        1019819,
        Options(quorum="granted", is_swarm=True, is_brisk=True, is_aimed=True),
        "runs",
    ),
    "where a key names the leader, no node asks for it that has joined": (
        501740,
        Options(quorum="granted", is_brisk=True),
        "runs",
    ),
    "a host that has forgotten all keeps no node from voting that had accepted the round": (
        6084057,
        Options(quorum="majority", is_swarm=True, is_brisk=True, is_aimed=True),
        "runs",
    ),
    "a node that knows none that knows the others is not waited for": (
        6107854,
        Options(quorum="majority", is_swarm=True, is_brisk=True, is_aimed=True),
        "waits (too_few)",
    ),
    "who hears of the end from others stays for those who missed it too": (
        7003521,
        Options(quorum="majority", is_swarm=True, is_brisk=True, is_aimed=True),
        "succeeded",
    ),
    "a host that begins again asks the leader it had followed as a newcomer": (
        8022354,
        Options(quorum="majority", is_swarm=True, is_brisk=True, is_aimed=True),
        "runs",
    ),
    "a node that asks one that it does not know is not waited for": (
        9004462,
        Options(quorum="majority", is_swarm=True, is_brisk=True, is_aimed=True),
        "failed",
    ),
    "hosts elect no other beside a leader that was elected after what they accepted": (
        10084002,
        Options(quorum="majority", is_swarm=True, is_brisk=True, is_aimed=True),
        "waits (few_new)",
    ),
    "a node that only a leader knows is not waited for, as that asks none": (
        10108490,
        Options(quorum="majority", is_swarm=True, is_brisk=True, is_aimed=True),
        "waits (too_few)",
    ),
    "a host that left before those voted who are left may begin anew with others": (
        10040593,
        Options(quorum="majority", is_swarm=True, is_brisk=True, is_aimed=True),
        "runs",
    ),
    "a leader that was told to leave goes although its follower did not hear it resign": (
        12003089,
        Options(quorum="majority", is_swarm=True, is_brisk=True, is_aimed=True, endpoints=3),
        "waits (too_few)",
    ),
}


@pytest.mark.parametrize("what", _MENDED)
def test_what_a_run_once_found_is_mended(what: str) -> None:
    """The key says what is so since."""
    seed, options, ending = _MENDED[what]
    tally = run_seeds(range(seed, seed + 1), options)
    assert tally.findings == []
    assert tally.endings == {ending: 1}
