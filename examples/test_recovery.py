"""How a test of a training script looks: `pytest examples/`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from elastic_harness.job import Chaos, Job


@pytest.mark.elastic(nodes=2, nproc=2, max_restarts=3)
def test_a_crashed_worker_resumes_from_the_last_checkpoint(
    elastic_job: Callable[..., Job], elastic_chaos: Chaos
) -> None:
    """Killed after step 22, the job is back from the step-20 checkpoint and loses two steps."""
    job = elastic_job("train.py", "--steps=40", "--checkpoint-every=5")
    crash = elastic_chaos.at(step=22, rank=1).kill("rank 1")
    job.wait_for_round(2, within="10s", after=crash)
    assert job.wait().succeeded
    assert job.restarts == 1
    assert job.round(2).first_step == 21
    assert job.steps_lost <= 5
