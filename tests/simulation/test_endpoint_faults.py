"""Random faults in jobs with three endpoints, whose settings would allow two groups of nodes (R12).

To look for more: `python -m elastic_simulation --seeds A..B --quorum majority
--endpoints 3`.
"""

from __future__ import annotations

import pytest
from elastic_simulation.checks import Violation
from elastic_simulation.endpoints import Endpoints
from elastic_simulation.process import Process
from elastic_simulation.random_faults.plan import Options, draw_plan
from elastic_simulation.random_faults.plan_run import run_plan

from pytest_elastic.rendezvous.candidate import Candidate

OPTIONS = Options(quorum="majority", endpoints=3)
BRISK = Options(quorum="majority", endpoints=3, is_brisk=True)


@pytest.mark.parametrize("tens", range(5))
def test_the_promises_hold_at_several_endpoints(tens: int) -> None:
    """Hosts of endpoints are lost, come back with empty stores, and meet crowds of new nodes."""
    for seed in range(10 * tens, 10 * tens + 10):
        try:
            run_plan(draw_plan(seed, OPTIONS))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def test_two_that_reach_each_other_do_not_wait_for_each_other() -> None:
    """Claims that were final at too few endpoints stayed so: the third endpoint was deaf."""
    run_plan(draw_plan(426, OPTIONS))


def test_nobody_follows_a_first_round_that_was_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three that had acknowledged it elected one of them; two others had been let begin instead."""
    run_plan(draw_plan(918, BRISK))
    monkeypatch.setattr(Candidate, "_is_begun", lambda _: True)
    with pytest.raises(Violation, match="round 3 is not the same for all"):
        run_plan(draw_plan(918, BRISK))


def test_a_store_that_lets_everybody_overwrite_a_claim_makes_two_jobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each founder is sure of its majority, and none has it."""

    def overwrite(endpoints: Endpoints, host: Process, expected: str, text: str) -> str:
        if expected != "\0":
            endpoints._texts[host.node.incarnation] = text
        return endpoints._texts[host.node.incarnation]

    monkeypatch.setattr(Endpoints, "_swap", overwrite)
    with pytest.raises(Violation, match="is not the same for all"):
        run_plan(draw_plan(0, OPTIONS))
