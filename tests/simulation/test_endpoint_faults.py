"""Random faults in jobs with three endpoints, whose settings would allow two groups of nodes (R12).

To look for more: `python -m elastic_simulation --seeds A..B --endpoints 3`, also with
`--quorum majority`.
"""

from __future__ import annotations

import pytest
from elastic_simulation.random_faults.plan import Options, draw_plan
from elastic_simulation.random_faults.plan_run import run_plan


@pytest.mark.parametrize("quorum", ["coordinator", "majority"])
@pytest.mark.parametrize("tens", range(5))
def test_the_promises_hold_at_several_endpoints(quorum: str, tens: int) -> None:
    """Hosts of endpoints are lost, come back with empty stores, and meet crowds of new nodes."""
    options = Options(quorum=quorum, endpoints=3)
    for seed in range(10 * tens, 10 * tens + 10):
        try:
            run_plan(draw_plan(seed, options))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
