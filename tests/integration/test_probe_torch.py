"""The probe and torch: steps, groups, samples, parameters, under launchers and warm."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from elastic_harness.history.checkers import bind
from elastic_harness.history.events import (
    GroupFormed,
    ParametersHashed,
    ResumeObserved,
    SamplesDrawn,
    StepCompleted,
    WorkerFinished,
    WorkerHello,
)

from tests.integration.probe_bench import WORKER, Bench, run_warm, warm_agent


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """Give a bench, and end everything on it."""
    made = Bench(tmp_path)
    yield made
    made.close()


OPTIMIZERS = """
    import os, sys, torch
    from torch import nn
    assert "torch.optim.optimizer" in sys.modules
    kind = sys.argv[1] if len(sys.argv) > 1 else os.environ["KIND"]
    big, small = nn.Linear(8, 8), nn.Linear(2, 2)

    def step(model, optimizer):
        model(torch.ones(model.in_features)).sum().backward()
        optimizer.step()

    if kind == "adam":
        optimizer = torch.optim.Adam(big.parameters())
        for _ in range(3):
            step(big, optimizer)
        torch.save(optimizer.state_dict(), "state.pt")
    elif kind == "resumed":
        optimizer = torch.optim.Adam(big.parameters())
        optimizer.load_state_dict(torch.load("state.pt"))
        for _ in range(2):
            step(big, optimizer)
    elif kind == "sgd":
        optimizer = torch.optim.SGD(big.parameters(), lr=0.1)
        for _ in range(3):
            step(big, optimizer)
    elif kind == "two":
        one, other = torch.optim.Adam(small.parameters()), torch.optim.Adam(big.parameters())
        for _ in range(3):
            step(small, one)
            step(big, other)
    elif kind == "two to one":
        one, other = torch.optim.Adam(small.parameters()), torch.optim.Adam(big.parameters())
        for _ in range(2):
            step(small, one)
            step(small, one)
            step(big, other)
    elif kind == "two, of which one counts":
        one = torch.optim.SGD(small.parameters(), lr=0.1)
        other = torch.optim.Adam(big.parameters())
        for _ in range(3):
            step(small, one)
            step(big, other)
    elif kind == "one after the other":
        for model in (small, small, big):
            optimizer = torch.optim.Adam(model.parameters())
            step(model, optimizer)
            step(model, optimizer)
    elif kind in ("unfrozen", "unfrozen and resumed"):
        # The parameters that are trained from the beginning come last.
        small.requires_grad_(kind != "unfrozen")
        optimizer = torch.optim.Adam([*small.parameters(), *big.parameters()])
        if kind != "unfrozen":
            optimizer.load_state_dict(torch.load("unfrozen.pt"))
        for number in range(3):
            small.requires_grad_(kind != "unfrozen" or number == 2)
            optimizer.zero_grad()
            (small(torch.ones(2)).sum() + big(torch.ones(8)).sum()).backward()
            optimizer.step()
        torch.save(optimizer.state_dict(), "unfrozen.pt")
    elif kind == "not in every step":
        optimizer = torch.optim.Adam([*small.parameters(), *big.parameters()])
        for number in range(4):
            optimizer.zero_grad()
            if number % 2 == 0:
                small(torch.ones(2)).sum().backward()
            step(big, optimizer)
    elif kind == "in turns":
        optimizer = torch.optim.Adam([*small.parameters(), *big.parameters()])
        for number in range(4):
            optimizer.zero_grad()
            step((small, big)[number % 2], optimizer)
    elif kind == "nested":
        class Outer(torch.optim.Optimizer):
            def __init__(self, inner):
                super().__init__(inner.param_groups, {})
                self.inner = inner

            def step(self, closure=None):
                self.inner.step()

        outer = Outer(torch.optim.Adam(big.parameters()))
        for _ in range(3):
            step(big, outer)
    elif kind == "state first":
        # As a script does that loads a checkpoint of torch.distributed.checkpoint.
        from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
        optimizer = torch.optim.Adam(big.parameters())
        get_optimizer_state_dict(big, optimizer)
        optimizer.load_state_dict(torch.load("state.pt"))
        for _ in range(2):
            step(big, optimizer)
    elif kind == "script":
        from elastic_harness.observe import report_step
        optimizer = torch.optim.SGD(big.parameters(), lr=0.1)
        for number in range(41, 44):
            step(big, optimizer)
            report_step(number)
    elif kind == "forks":
        optimizer = torch.optim.Adam(big.parameters())
        step(big, optimizer)
        if os.fork() == 0:
            step(big, optimizer)
            os._exit(0)
        os.wait()
        step(big, optimizer)
"""


# What an optimizer says is the same wherever it runs. These do in fresh interpreters, where the
# probe is there before torch; all others in warm ones, which import torch and its compiler once.
FRESH = ("adam", "script")


@pytest.mark.slow
def test_steps_come_from_any_optimizer(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Global steps where the optimizer's state or the script knows them, else the process's own."""
    expected = {
        "adam": ([(1, 1), (2, 2), (3, 3)], "state", 0),
        "resumed": ([(1, 4), (2, 5)], "state", 3),
        "state first": ([(1, 4), (2, 5)], "state", 3),
        "sgd": ([(1, None), (2, None), (3, None)], "process", None),
        "two": ([(1, 1), (2, 2), (3, 3)], "state", 0),
        "two, of which one counts": ([(1, None), (2, 2), (3, 3)], "state", None),
        "two to one": ([(1, 1), (2, 2), (3, None)], "process", 0),
        "one after the other": ([(1, 1), (2, 2), *((n, None) for n in (3, 4, 5, 6))], "process", 0),
        "unfrozen": ([(1, 1), (2, 2), (3, 3)], "state", 0),
        "unfrozen and resumed": ([(1, 4), (2, 5), (3, 6)], "state", 3),
        "not in every step": ([(1, 1), (2, 2), (3, 3), (4, 4)], "state", 0),
        "in turns": ([(1, 1), (2, None), (3, None), (4, None)], "process", 0),
        "nested": ([(1, 1), (2, 2), (3, 3)], "state", 0),
        "script": ([(1, None), (1, 41), (2, 42), (3, 43)], "script", 40),
        "forks": ([(1, 1), (2, 2)], "state", 0),
    }
    script = bench.write(OPTIMIZERS)
    for number, kind in enumerate(FRESH):
        environ = bench.environ(TORCHELASTIC_RESTART_COUNT=str(number))
        bench.start_command([sys.executable, script, kind], environ)
        assert bench.until_all_ended() == [""]
        bench.processes.clear()
    others = [kind for kind in expected if kind not in FRESH]
    with warm_agent(bench, monkeypatch, preload=["torch", "torch._dynamo"]) as agent:
        for number, kind in enumerate(others, len(FRESH)):
            environ = bench.environ(TORCHELASTIC_RESTART_COUNT=str(number))
            run_warm(bench, agent, [script, kind], environ)
    assert len(bench.seen(WorkerHello)) == len(expected)
    for hello in bench.seen(WorkerHello):
        kind = hello.event.argv[-1]
        mine = [e.event for e in bench.seen(StepCompleted) if e.event.pid == hello.event.pid]
        steps, source, resumed = expected[kind]
        assert [(step.count, step.step) for step in mine] == steps, kind
        assert mine[-1].step_source == source, kind
        resumes = [e.event for e in bench.seen(ResumeObserved) if e.event.pid == hello.event.pid]
        assert [resume.step for resume in resumes] == ([] if resumed is None else [resumed]), kind


JOB = """
    import os, sys, torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader, Dataset
    from torch.utils.data.distributed import DistributedSampler

    class Numbers(Dataset):
        def __len__(self):
            return 16

        def __getitem__(self, index):
            return torch.full((4,), float(index))

    dist.init_process_group("gloo")
    torch.manual_seed(3)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    optimizer = torch.optim.Adam(model.parameters())
    sampler = DistributedSampler(Numbers())
    loader = DataLoader(Numbers(), 2, sampler=sampler, num_workers=int(os.environ["LOADERS"]))
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for batch in loader:
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
    dist.destroy_process_group()
"""


@pytest.mark.slow
def test_torchrun_is_observed_unmodified(bench: Bench) -> None:
    """Stock torchrun and an ordinary script: group, steps, samples and parameters are seen."""
    bench.observe(samples=True, hashes=True)
    environ = {k: v for k, v in bench.environ(LOADERS="2").items() if k not in WORKER}
    environ["OMP_NUM_THREADS"] = "1"
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    bench.start_command(
        [*command, "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", bench.write(JOB)], environ
    )
    (text,) = bench.until_all_ended()
    assert bench.processes[0].returncode == 0, text
    (world,) = bench.history.worlds.rounds
    assert sorted(world.workers) == [0, 1]
    assert (world.world_size, world.first_step, world.last_step) == (2, 1, 8)
    assert len({entry.event.nonce for entry in bench.seen(GroupFormed)}) == 1
    assert len(bench.seen(GroupFormed)) == 2
    assert len({entry.event.digest for entry in bench.seen(ParametersHashed)}) == 1
    assert len(bench.seen(ParametersHashed)) == 2
    for epoch in (0, 1):
        drawn = [e.event for e in bench.seen(SamplesDrawn) if e.event.epoch == epoch]
        used = [index for event in drawn for batch in event.batches for index in batch]
        assert sorted(used) == list(range(16))
        assert {event.size for event in drawn} == {16}
    assert len(bench.seen(WorkerFinished)) == 2


@pytest.mark.slow
def test_a_restart_under_torchrun_is_a_new_world(bench: Bench) -> None:
    """Torchrun names no round; the two groups are told apart all the same.

    As shipped, torchrun 2.13 gives the second group the first one's store, and now and then it
    dials the dead by what it finds there, for ever. This is the setting with which it restarts.
    """
    script = bench.write("""
        import os, signal, torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
        optimizer = torch.optim.Adam(model.parameters())
        for step in range(1, 5):
            model(torch.ones(4)).sum().backward()
            optimizer.step()
            is_first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
            if is_first and step == 3 and dist.get_rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
        dist.destroy_process_group()
    """)
    environ = {k: v for k, v in bench.environ().items() if k not in WORKER}
    environ["OMP_NUM_THREADS"] = "1"
    environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    endpoint = ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--max-restarts=1"]
    bench.start_command([*command, *endpoint, script], environ)
    (text,) = bench.until_all_ended()
    assert bench.processes[0].returncode == 0, text
    first, second = bench.history.worlds.rounds
    assert (first.restart_count, second.restart_count) == (0, 1)
    assert (first.last_step, second.first_step, second.last_step) == (3, 1, 4)
    assert not first.workers[1].finished
    assert all(worker.finished for worker in second.workers.values())
    for name in ("ranks", "agreement", "one_world", "no_overlap", "workers_observed"):
        verdict = bind(name).run(bench.history)
        assert verdict.is_valid, f"{name}: {verdict.reason}"
    assert bind("restarts", 1).run(bench.history).is_valid
    assert bind("steps_lost", {"at_most": 3}).run(bench.history).is_valid
    assert not bind("steps_lost", {"at_most": 2}).run(bench.history).is_valid


@pytest.mark.slow
def test_samples_are_followed_in_order_through_loader_processes(bench: Bench) -> None:
    """Prefetched batches count when the script gets them, not when they are fetched."""
    bench.observe(samples=True)
    bench.start("""
        import torch
        from torch.utils.data import DataLoader

        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.Adam(model.parameters())
        loader = DataLoader(range(40), 4, num_workers=2, persistent_workers=True)
        for epoch in range(2):
            for number, batch in enumerate(loader):
                model(batch.float()[:, None]).sum().backward()
                optimizer.step()
                if number == 1:
                    break  # with four more batches on their way
    """)
    assert bench.until_all_ended() == [""]
    batches = [entry.event.batches for entry in bench.seen(SamplesDrawn)]
    assert batches == [((0, 1, 2, 3),), ((4, 5, 6, 7),)] * 2


@pytest.mark.slow
def test_a_warm_worker_is_observed_like_any_other(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch is there before the probe; the keeper that the worker was forked from is no worker."""
    bench.observe(hashes=True)
    with warm_agent(bench, monkeypatch, preload=["torch"]) as agent:
        pid = run_warm(bench, agent, [bench.write(OPTIMIZERS)], {**bench.environ(), "KIND": "adam"})
    (hello,) = bench.seen(WorkerHello)
    assert hello.event.pid == pid
    assert [entry.event.step for entry in bench.seen(StepCompleted)] == [1, 2, 3]
    assert len(bench.seen(ParametersHashed)) == 1
    assert len(bench.seen(WorkerFinished)) == 1
