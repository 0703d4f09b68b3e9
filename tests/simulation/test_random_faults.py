"""Runs from seeds: whatever happens, in whatever order, the promises hold.

To look for more: `python -m elastic_simulation --seeds A..B`. A seed that breaks a promise
is mended, planted (`planted.py`) and written into `seeds.txt`.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from elastic_simulation.machine_agent import MachineAgent
from elastic_simulation.random_faults.campaign import AGENTS
from elastic_simulation.random_faults.plan import InjectedFault, Options, draw_plan
from elastic_simulation.random_faults.plan_run import run_plan, run_seed

from tests.simulation.planted import PLANTED, finds
from tests.simulation.planting import drawn


def _read_seeds() -> list[tuple[int, str]]:
    lines = Path(__file__).with_name("seeds.txt").read_text(encoding="utf-8").splitlines()
    words = [line.split(maxsplit=2) for line in lines if not line.startswith("#")]
    return [(int(seed), planted) for seed, planted, _ in words]


FOUND = _read_seeds()

# What runs around the real agent's machine have found.
FOUND_AROUND_THE_AGENT = {
    104057: "workers that are held were continued when their leaders' grace was over",
    114203: "workers that are held were continued, while another round ran elsewhere",
}

# What runs have found in the simulator itself: a judge that was wrong, or what nobody promises.
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


@pytest.mark.parametrize("tens", range(20))
def test_the_promises_hold_in_every_run(tens: int) -> None:
    """Safety at every moment; progress, or an end with a reason, once it is quiet."""
    for seed in range(10 * tens, 10 * tens + 10):
        try:
            run_seed(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.parametrize("tens", range(5))
def test_the_promises_hold_around_the_real_agents_machine(tens: int) -> None:
    """What the played agent does is what the real one does, as far as promises go."""
    for seed in range(10 * tens, 10 * tens + 10):
        try:
            run_seed(seed, MachineAgent)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.parametrize("tens", range(8))
def test_the_promises_hold_where_a_coordinator_is_followed_by_another(tens: int) -> None:
    """Jobs with succession, in which nobody is spared (R11)."""
    options = Options(quorum="majority")
    for seed in range(10 * tens, 10 * tens + 10):
        try:
            run_plan(draw_plan(seed, options))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.parametrize("tens", range(5))
def test_the_promises_hold_where_somebody_outside_says_who_decides(tens: int) -> None:
    """Jobs with an etcd, around the registry that talks to it; the real agent's machine in some."""
    options = Options(quorum="granted", is_brisk=True)
    for seed in range(10 * tens, 10 * tens + 10):
        try:
            run_plan(draw_plan(seed, options), AGENTS["machine" if seed % 2 else "played"])
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.parametrize("seed", FOUND_AROUND_THE_AGENT)
def test_what_a_run_once_found_in_the_agent_is_mended(seed: int) -> None:
    """See `FOUND_AROUND_THE_AGENT`."""
    run_seed(seed, MachineAgent)


@pytest.mark.parametrize("seed", FOUND_IN_THE_SIMULATOR)
def test_what_a_run_once_found_in_the_simulator_is_mended(seed: int) -> None:
    """See `FOUND_IN_THE_SIMULATOR`."""
    options, _ = FOUND_IN_THE_SIMULATOR[seed]
    run_plan(draw_plan(seed, options))


def test_one_of_a_first_round_that_was_given_up_may_be_left_over() -> None:
    """Beside 19300095: another one under the same term was joined by all others (R12).

    n3 acknowledged the first round of n1, n2 was cut off before it could. n1 comes back, and begins
    with n2, as n3 alone can elect nobody; nor can it join, for as long as it lives.
    """
    faults = (
        InjectedFault(after_s=0.3914, kind="isolate", who=4, how=0.57),
        InjectedFault(after_s=0.8223, kind="lose host", how=0.54),
        InjectedFault(after_s=0.95, kind="succeed"),
    )
    options, _ = FOUND_IN_THE_SIMULATOR[19300095]
    outcome = run_plan(dataclasses.replace(draw_plan(19300095, options), faults=faults))
    assert (outcome.faults, outcome.ending) == (2, "runs")


@pytest.mark.parametrize(("seed", "planted"), FOUND)
def test_what_a_run_once_found_is_found_again_and_mended(seed: int, planted: str) -> None:
    """Each seed breaks a promise with its fault planted, and none without it, guarded or not."""
    assert finds(planted, seed)
    with PLANTED[planted].unguarded():
        run_plan(draw_plan(seed, PLANTED[planted].options))
    run_plan(draw_plan(seed, PLANTED[planted].options))


def test_every_planted_fault_has_a_seed() -> None:
    """No fault is planted that no run of the suite finds."""
    assert {planted for _, planted in FOUND} == set(PLANTED)
