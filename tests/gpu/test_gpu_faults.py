"""Faults of a worker's GPU, on a device: proven, and the job recovers.

They have not been run yet, because no machine that runs our tests had a device.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.fault_bench import FaultBench

# An all-reduce by NCCL in each step, until it is told to end.
SCRIPT = """
import os, sys
import torch
import torch.distributed as distributed

probe = sys.modules["elastic_probe"]
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
distributed.init_process_group("nccl")
end = os.path.join(os.environ["ELASTIC_CHECKPOINT_DIR"], "end")
step, is_over = 0, False
while not is_over:
    step += 1
    # All leave after the same step: a rank that sees the file tells the others.
    votes = torch.tensor([float(os.path.exists(end))], device="cuda")
    distributed.all_reduce(votes)
    is_over = votes.item() > 0
    probe.report_step(step)
"""


@pytest.fixture
def bench(gpus: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultBench]:
    """The best cluster that this machine has."""
    del gpus  # skips where there is none
    bench = FaultBench("auto", tmp_path_factory.mktemp("gpu"))
    yield bench
    bench.close()


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize(
    ("action", "value"),
    [
        ("device_assert", "rank 0"),
        ("gpu_sleep", {"worker": "rank 0", "lasts": "1s"}),
        ("nccl_abort", "rank 0"),
    ],
)
def test_a_fault_of_a_gpu_is_proven_and_the_job_ends_well(
    bench: FaultBench, gpus: int, action: str, value: object
) -> None:
    """A worker for each GPU; what the fault ends is started again."""
    outcome = bench.run(
        SCRIPT,
        [
            {"id": "x", "at": {"step": 5, "rank": 0}, action: value},
            {
                "when": {"event": "fault_effective", "id": "x"},
                "run": 'touch "$ELASTIC_CHECKPOINT_DIR/end"',
            },
        ],
        nodes=1,
        nproc_per_node=gpus,
    )
    assert not outcome.failed, outcome
    assert "x" in outcome.proved, outcome
    assert outcome.result.outcome == "succeeded", outcome
