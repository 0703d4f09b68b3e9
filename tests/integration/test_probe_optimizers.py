"""What the probe says of optimizers that leave their work to another, or to other ranks."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from elastic_harness.history.checkers.final_state import reference_of
from elastic_harness.history.events import ParametersHashed, ResumeObserved, StepCompleted
from elastic_harness.history.history import History

from pytest_elastic.events.model import Record
from tests.integration.probe_bench import WORKER, Bench, judge


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """Give a bench, and end everything on it."""
    made = Bench(tmp_path)
    yield made
    made.close()


SHARDED = """
    import os, torch
    import torch.distributed as dist
    from torch import nn

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    if os.environ["KIND"] == "fsdp":
        from torch.distributed.fsdp import fully_shard
        fully_shard(model)
        optimizer = torch.optim.Adam(model.parameters())
    else:
        from torch.distributed.optim import ZeroRedundancyOptimizer
        model = nn.parallel.DistributedDataParallel(model)
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    dist.destroy_process_group()
"""


@pytest.mark.slow
def test_shards_are_no_replicas(bench: Bench) -> None:
    """What is divided among the ranks differs between them, and nothing is wrong."""
    bench.observe(hashes=True)
    script = bench.write(SHARDED)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    rendezvous = ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"]
    for kind in ("fsdp", "zero"):
        environ = {k: v for k, v in bench.environ(KIND=kind).items() if k not in WORKER}
        environ["OMP_NUM_THREADS"] = "1"
        bench.start_command([*torchrun, *rendezvous, f"--rdzv-id={kind}", script], environ)
    said = bench.until_all_ended()
    assert [process.returncode for process in bench.processes] == [0, 0], said
    for kind, expected in (("fsdp", "unknown"), ("zero", "valid")):
        found = History.of(record for record in bench.history.records if record.run_id == kind)
        verdict = judge(found, "parameters", "identical")
        assert verdict.outcome.value == expected, f"{kind}: {verdict.reason}"
        verdict = judge(found, "optimizer", "identical")
        assert verdict.outcome.value == "unknown", f"{kind}: {verdict.reason}"
        assert "each rank has only its shard" in verdict.reason


ZERO = """
    import os, torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.optim import ZeroRedundancyOptimizer

    store = dist.FileStore(f"store-{os.environ['KIND']}", 2)
    dist.init_process_group("gloo", store=store, rank=int(os.environ["RANK"]), world_size=2)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam)
    if os.environ["KIND"] == "resumed":
        for each, name in ((model, "model"), (optimizer, "optimizer")):
            each.load_state_dict(torch.load(name))
    for step in range(3 if os.environ["KIND"] == "resumed" else 0, 6):
        if step == 3 and os.environ["KIND"] == "reference":
            optimizer.consolidate_state_dict(to=0)
            if dist.get_rank() == 0:
                torch.save(model.state_dict(), "model")
                torch.save(optimizer.state_dict(), "optimizer")
        optimizer.zero_grad()
        model(torch.ones(4) * step).square().sum().backward()
        optimizer.step()
    dist.destroy_process_group()
"""


@pytest.mark.slow
def test_a_zero_redundancy_optimizer_is_judged_by_the_one_it_steps_with(bench: Bench) -> None:
    """What it has itself is what it has loaded, and counts nothing."""
    bench.observe(hashes=True)
    found = {}
    for kind in ("reference", "resumed"):
        for rank in ("0", "1"):
            world = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2"}
            bench.start(ZERO, KIND=kind, TORCHELASTIC_RUN_ID=kind, **world)
        said = bench.until_all_ended()
        assert [process.returncode for process in bench.processes] == [0] * len(said), said
        found[kind] = [record for record in bench.history.records if record.run_id == kind]
    reference = reference_of(History.of(found["reference"]))
    assert reference is not None
    told = Record(at=0.0, source="engine", node="", run_id="", event=reference)
    resumed = History.of([told, *found["resumed"]])
    assert [each.event.step for each in resumed.of_kind(ResumeObserved)] == [3, 3]
    steps = [each.event for each in resumed.of_kind(StepCompleted)]
    assert sorted((each.rank, each.step) for each in steps) == [
        (rank, step) for rank in (0, 1) for step in (4, 5, 6)
    ]
    for clause in ("parameters", "optimizer"):
        verdict = judge(resumed, clause, "same_as_uninterrupted")
        assert verdict.is_valid, verdict.reason


OUTER = """
    import torch

    class Outer(torch.optim.Optimizer):
        def __init__(self, parameters):
            super().__init__(parameters, {"lr": 0.1})
            self.inner = torch.optim.Adam(parameters[:1])

        def step(self):
            self.inner.step()

    parameters = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    optimizer = Outer(parameters)
    zeros = [torch.zeros(2), torch.zeros(2)]
    for each in (optimizer, optimizer.inner):  # as it is loaded
        each.state[parameters[0]] = {
            "step": torch.tensor(3.0), "exp_avg": zeros[0].clone(), "exp_avg_sq": zeros[1].clone(),
        }
    for _ in range(2):
        sum(each.sum() for each in parameters).backward()
        optimizer.step()
"""


def test_an_optimizer_that_steps_with_another_counts_as_that_does(bench: Bench) -> None:
    """It has more parameters (those of all ranks), and has not looked at its own state since."""
    bench.observe(hashes=True)
    bench.start(OUTER)
    (said,) = bench.until_all_ended()
    assert bench.processes[0].returncode == 0, said
    assert [each.event.step for each in bench.seen(ResumeObserved)] == [3]
    assert [each.event.step for each in bench.seen(StepCompleted)] == [4, 5]
    (hashed,) = bench.seen(ParametersHashed)
    assert hashed.event.norm == pytest.approx(2.0, rel=0.01)  # of both parameters
    assert (hashed.event.optimizer_norm or 0.0) > 5.0  # the inner one's: five steps
