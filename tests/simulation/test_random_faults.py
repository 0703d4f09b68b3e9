"""Runs from seeds: whatever happens, in whatever order, the promises hold.

To look for more: `python -m elastic_simulation --seeds A..B`. A seed that breaks a promise
is mended, planted (`planted.py`) and written into `seeds.txt`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from elastic_simulation.machine_agent import MachineAgent
from elastic_simulation.random_faults.campaign import AGENTS
from elastic_simulation.random_faults.plan import Options, draw_plan
from elastic_simulation.random_faults.plan_run import run_plan, run_seed

from tests.simulation.planted import PLANTED, finds


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
def test_the_promises_hold_where_a_leader_is_followed_by_another(tens: int) -> None:
    """Jobs with succession, in which no node is spared (R11)."""
    options = Options(quorum="majority")
    for seed in range(10 * tens, 10 * tens + 10):
        try:
            run_plan(draw_plan(seed, options))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.parametrize("tens", range(5))
def test_the_promises_hold_where_an_etcd_names_the_leader(tens: int) -> None:
    """Jobs with an etcd, around the key holder; the real agent's machine in some."""
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
