"""The Raft-shaped core under the simulator: random faults, planted ones, every order of things."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from elastic_simulation.cores import CORES, choose_core
from elastic_simulation.crowd import form_crowd
from elastic_simulation.explorer import SITUATIONS, explore
from elastic_simulation.random_faults.campaign import run_seeds
from elastic_simulation.random_faults.plan import Options

from tests.simulation.raft_planted import PLANTED, finds

# A seed that finds each planted fault (`python -m tests.simulation.raft_planted`).
_FOUND_BY = {
    "endless-lease": 2272,
    "end-untold": 377,
    "everything-charged": 0,
    "failure-free-by-slowness": 0,
    "joins-a-round-again": 0,
    "late-comers-untold": 85,
    "lease-from-now": 7,
    "no-fencing": 13,
    "no-start-gate": 134,
    "nothing-charged": 18,
    "too-few": 0,
    "vote-in-contact": 377,
}


@pytest.fixture(autouse=True)
def _raft() -> Iterator[None]:
    choose_core("raft")
    yield
    choose_core(CORES[0])


@pytest.mark.parametrize(
    "options",
    [
        Options(is_brisk=True),
        Options(quorum="majority", is_brisk=True),
        Options(quorum="majority", is_brisk=True, is_aimed=True),
        Options(quorum="majority", is_brisk=True, endpoints=3),
        Options(quorum="granted", is_brisk=True),
    ],
    ids=["coordinator", "majority", "aimed", "endpoints", "granted"],
)
def test_random_faults_break_no_promise(options: Options) -> None:
    """Under each kind of quorum."""
    tally = run_seeds(range(60), options)
    assert tally.findings == []
    assert tally.counted >= 40


@pytest.mark.parametrize("name", sorted(SITUATIONS))
def test_small_worlds_are_well_in_every_order(name: str) -> None:
    """Up to four choices deep."""
    result = explore(SITUATIONS[name], depth=4)
    assert result.found == []
    assert result.is_complete


@pytest.mark.parametrize("name", sorted(_FOUND_BY))
def test_a_planted_fault_is_found(name: str) -> None:
    """By a run that finds nothing without it."""
    seed, options = _FOUND_BY[name], PLANTED[name].options or Options()
    assert run_seeds(range(seed, seed + 1), options).findings == []
    assert finds(name, seed)


def test_a_crowd_costs_seven_messages_a_node() -> None:
    """However many there are; what a node is told does not grow."""
    crowd = form_crowd(200)
    assert crowd.messages <= 7 * 200 + 1  # and one for the worker store
    assert crowd.most_to_one <= 5
