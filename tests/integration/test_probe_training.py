"""What the probe lets be judged of trainings: steps without a count, samples, the final state."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from elastic_harness.history.checkers.final_state import reference_of
from elastic_harness.history.events import ParametersHashed, ResumeObserved, StepCompleted
from elastic_harness.history.history import History

from pytest_elastic.events.model import Record
from tests.integration.probe_bench import Bench, judge, run_warm, warm_agent


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """Give a bench, and end everything on it."""
    made = Bench(tmp_path)
    yield made
    made.close()


def lone(bench: Bench, pid: int) -> History:
    """Return what one process has said."""
    return History.of(
        record for record in bench.history.records if getattr(record.event, "pid", None) == pid
    )


# Two epochs of eight samples in four steps each. The first process ends in the middle of step 7,
# with a checkpoint of step 6.
SGD = """
    import os, sys, torch
    from pathlib import Path
    from torch.utils.data import DataLoader, Sampler
    from elastic_harness.observe import report_resume, report_step

    says = os.environ["SAYS"]

    class InTurn(Sampler):
        epoch, first = 0, 0

        def __iter__(self):
            yield from range(self.first, 8)

        def __len__(self):
            return 8 - self.first

    state = Path(says)
    done = int(state.read_text()) if state.exists() else 0
    if says == "start first":
        print("at step", done)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if says == "start":
        print("at step", done)
    elif says == "report_resume":
        report_resume(done)
    sampler = InTurn()
    for epoch in range(done // 4, 2):
        sampler.epoch, sampler.first = epoch, done % 4 * 2
        for batch in DataLoader(range(8), 2, sampler=sampler):
            model(batch.float()[:, None]).sum().backward()
            optimizer.step()
            if done == 6 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
                os._exit(0)
            done += 1
            state.write_text(str(done))
            if says.startswith("report"):
                report_step(done)
            elif says != "seldom" or done % 2 == 0:
                print("at step", done)
        sampler.first = 0
"""


# How the script says where it is: "seldom" is every second step, and never the start.
SAYS = ("each step", "start", "start first", "report_step", "report_resume", "seldom")


@pytest.mark.slow
def test_plain_sgd_is_judged_by_what_its_script_says(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start is no step, and the samples before the first report belong to the first step."""
    bench.observe(samples=True)
    script = bench.write(SGD)
    with warm_agent(bench, monkeypatch, preload=["torch", "torch._dynamo"]) as agent:
        for says in SAYS:
            for number in range(2):
                environ = bench.environ(
                    SAYS=says,
                    TORCHELASTIC_RUN_ID=says,
                    TORCHELASTIC_RESTART_COUNT=str(number),
                    ELASTIC_PROBE_STEP=r"at step (\d+)",
                )
                run_warm(bench, agent, [script], environ, is_silent=False)
    for says in SAYS:
        found = History.of(record for record in bench.history.records if record.run_id == says)
        resumed = judge(found, "resumed_at", {"round": 2, "step": 6})
        samples = judge(found, "samples", {"each_epoch": "exactly_once"})
        finished = judge(found, "finished_at", 8)
        if not says.startswith("report"):  # what it prints is followed from its first step on
            sources = {each.event.step_source for each in found.of_kind(StepCompleted)}
            assert "parameters" not in sources, says
        assert finished.is_valid, f"{says}: {finished.reason}"
        if says == "seldom":  # nobody can know what was done before the first report
            assert {resumed.outcome.value, samples.outcome.value} == {"unknown"}
            assert "report_resume" in resumed.reason
            continue
        assert resumed.is_valid, f"{says}: {resumed.reason}"
        made = [each.event.step for each in found.of_kind(StepCompleted)]
        is_known_late = says == "start first"  # before there is an optimizer
        assert made.count(6) == 1 + is_known_late, f"{says}: a start was taken for a step"
        assert not judge(found, "resumed_at", {"round": 2, "step": 5}).is_valid, says
        assert samples.is_valid, f"{says}: {samples.reason}"
        assert judge(found, "steps_lost", 1).is_valid, says
        assert judge(found, "epochs", 2).is_valid, says


# An optimizer without a count, whose parameters are of many kinds; some of them never change.
PARAMETERS = """
    import os, sys, torch
    from pathlib import Path
    from torch import nn

    kind = os.environ["KIND"]
    if kind != "unseeded":
        torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4, 70), nn.Linear(70, 2))
    model[0].to(memory_format=torch.channels_last)
    model[2].requires_grad_(False)
    half = nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    both = [*model.parameters(), half]

    def load():
        for mine, saved in zip(both, torch.load(kind.rpartition(" ")[0] + ".pt"), strict=True):
            mine.data.copy_(saved)

    class Equal(torch.optim.SGD):  # and so it cannot be a key of a dictionary
        def __eq__(self, other):
            return isinstance(other, Equal)

    make = Equal if kind == "equal" else torch.optim.SGD
    optimizer = make(both, lr=0.0 if kind.endswith("rests") else 0.1, momentum=0.9)
    if kind.endswith("dcp"):
        # It makes a step that changes nothing, before the parameters are loaded.
        from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
        get_optimizer_state_dict(nn.ModuleList([model, nn.ParameterList([half])]), optimizer)
    if kind not in ("afresh", "anew", "unseeded", "equal"):
        load()
    for number in range(1, 5):
        optimizer.zero_grad()
        if kind.endswith("reloads") and number == 3:
            load()
        (model(torch.ones(1, 3, 3, 3)).sum() + half.sum() / number).backward()
        optimizer.step()
        if kind.endswith("clamps"):
            for each in both:
                each.data.clamp_(-0.5, 0.5)
        if number == 3:
            torch.save(both, kind + ".pt")
"""
# In turn, each a worker of a later round than the one before: what was done before its first step,
# and how many of its four steps are known.
BEGINS = {
    "afresh": (0, 4), "afresh resumed": (3, 4), "afresh resumed resumed": (6, 4), "anew": (0, 4),
    "unseeded": (None, 0), "afresh dcp": (3, 4), "afresh clamps": (3, 4),
    "afresh clamps resumed": (6, 4), "afresh clamps reloads": (6, 2), "afresh rests": (3, 4),
    "afresh again": (None, 0), "equal": (None, 0),
}  # fmt: skip


@pytest.mark.slow
def test_the_parameters_tell_where_an_optimizer_goes_on_that_counts_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Known where exactly one step has left them; what no step or several have left is unknown."""
    bench.observe()
    script = bench.write(PARAMETERS)
    began = {}
    with warm_agent(bench, monkeypatch, preload=["torch", "torch._dynamo"]) as agent:
        for number, kind in enumerate(BEGINS):
            environ = bench.environ(KIND=kind, TORCHELASTIC_RESTART_COUNT=str(number))
            pid = run_warm(bench, agent, [script], environ)
            began[kind] = lone(bench, pid)
    for kind, (resumed, known) in BEGINS.items():
        told = [each.event.step for each in began[kind].of_kind(ResumeObserved)]
        steps = [each.event.step for each in began[kind].of_kind(StepCompleted)]
        assert told == ([] if resumed is None else [resumed]), kind
        numbers = [(resumed or 0) + number for number in range(1, known + 1)]
        assert steps == [*numbers, *[None] * (4 - known)], kind
    assert judge(bench.history, "resumed_at", {"round": 2, "step": 3}).is_valid
    assert judge(bench.history, "resumed_at", {"round": 2, "step": 4}).outcome.value == "invalid"
    unseeded = judge(bench.history, "resumed_at", {"round": 5, "step": 0})
    assert unseeded.outcome.value == "unknown", unseeded.reason
    assert judge(bench.history, "consistent").is_valid


LOADERS = """
    import os, torch
    from torch.utils.data import DataLoader, IterableDataset, Sampler, BatchSampler

    class CountsOn(Sampler):
        "As Accelerate's SeedableRandomSampler: the next epoch begins with the last index."
        epoch = 0

        def __iter__(self):
            yield from range(7)
            self.epoch += 1

        def __len__(self):
            return 7

    class Endless(Sampler):
        epoch = 0

        def __iter__(self):
            while True:
                yield from range(7)
                self.epoch += 1

    class Unmoved(CountsOn):
        def __iter__(self):
            yield from range(7)

    class InOrder(Unmoved):
        shuffle = False  # as a DistributedSampler that needs no set_epoch

    class Batches:
        def __iter__(self):
            return iter([[0, 1, 2], torch.tensor([3, 4]), (5, 6)])

        def __len__(self):
            return 3

    class Skips(Batches):
        "As Accelerate's, which stands on the sampler of the loader that it takes the place of."
        def __init__(self, below):
            self.batch_sampler = below

        def __iter__(self):
            return iter(self.batch_sampler)

        def __len__(self):
            return 4

    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(7))

    class Keys(Sampler):
        def __iter__(self):
            return iter("abcdefg")

    # Accelerate's loaders fetch a batch before they hand out the one before.
    accelerate = {"__name__": "accelerate.data_loader"}
    exec("\\n".join([
        "def one_ahead(loader):",
        "    batches = iter(loader)",
        "    current = next(batches)",
        "    while current is not None:",
        "        try:",
        "            following = next(batches)",
        "        except StopIteration:",
        "            following = None",
        "        yield current",
        "        current = following",
    ]), accelerate)

    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.Adam(model.parameters())
    kind, data = os.environ["KIND"], range(7)
    loader = {
        "shuffle": lambda: DataLoader(data, 2, shuffle=True),
        "peek": lambda: DataLoader(data, 2, shuffle=True),
        "validates": lambda: DataLoader(data, 2, shuffle=True),
        "validates inside": lambda: DataLoader(data, 2, shuffle=True),
        "whole epochs": lambda: DataLoader(data, 2, shuffle=True),
        "batches": lambda: DataLoader(data, batch_sampler=Batches()),
        "ahead": lambda: DataLoader(data, 2, shuffle=True),
        "singles": lambda: DataLoader(data, batch_size=None, shuffle=True),
        "counts on": lambda: DataLoader(data, 2, sampler=CountsOn()),
        "skips": lambda: DataLoader(data, 2, sampler=CountsOn()),
        "endless": lambda: DataLoader(data, 2, sampler=Endless()),
        "processes": lambda: DataLoader(data, 2, shuffle=True, num_workers=2),
        "persistent": lambda: DataLoader(
            data, 2, sampler=CountsOn(), num_workers=2, persistent_workers=True
        ),
        "stream": lambda: DataLoader(Stream(), 2),
        "keys": lambda: DataLoader({k: 1.0 for k in "abcdefg"}, 2, sampler=Keys()),
        "any order": lambda: DataLoader(data, 2, num_workers=2, in_order=False),
        "no set_epoch": lambda: DataLoader(data, 2, sampler=Unmoved()),
        "in order": lambda: DataLoader(data, 2, sampler=InOrder()),
        "zipped": lambda: DataLoader(data, 2, shuffle=True),
    }
    loader = loader[kind]()
    if kind == "peek":
        next(iter(loader))
    epochs = 1 if kind == "endless" else 2
    for epoch in range(epochs):
        if kind == "skips" and epoch == 1:
            loader = DataLoader(data, batch_sampler=Skips(loader.batch_sampler))
        batches = accelerate["one_ahead"](loader) if kind == "ahead" else loader
        if kind == "zipped":
            batches = zip(loader, DataLoader(data, 2, shuffle=True))
        for number, batch in enumerate(batches):
            if number == 7:
                break
            model(torch.ones(1)).sum().backward()
            if kind != "whole epochs":
                optimizer.step()
            if kind == "validates inside" and number % 2 == 0:
                list(DataLoader(data, 2, shuffle=True))
        if kind == "validates":
            list(DataLoader(data, 2, shuffle=True))
        elif kind == "whole epochs":
            optimizer.step()
"""
SEEN = (
    "shuffle", "peek", "validates", "validates inside", "whole epochs", "ahead", "batches",
    "singles", "counts on", "skips", "processes", "persistent",
    "in order",
)  # fmt: skip
NOT_SEEN = {
    "endless": "unknown: the epoch or the size of range[7] by Endless is not known",
    "stream": "unknown: an IterableDataset has no indices",
    "keys": "unknown: its sampler gives no numbers",
    "any order": "unknown: with in_order=False batches come in another order",
    "zipped": "unknown: two loaders take turns that look alike",
    "no set_epoch": "invalid: does the script call set_epoch?",
}


@pytest.mark.slow
def test_samples_are_seen_with_any_sampler(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Epochs are the sampler's own, or counted; what cannot be seen is said, with the way out."""
    bench.observe(samples=True)
    script = bench.write(LOADERS)
    with warm_agent(bench, monkeypatch, preload=["torch", "torch._dynamo"]) as agent:
        for kind in (*SEEN, *NOT_SEEN):
            pid = run_warm(bench, agent, [script], {**bench.environ(), "KIND": kind})
            verdict = judge(lone(bench, pid), "samples", {"each_epoch": "exactly_once"})
            if kind in SEEN:
                assert verdict.is_valid, f"{kind}: {verdict.reason}"
                assert "epochs 0 to 1: all 7 samples" in verdict.reason
                assert judge(lone(bench, pid), "epochs", 2).is_valid, kind
            else:
                outcome, _, reason = NOT_SEEN[kind].partition(": ")
                assert verdict.outcome.value == outcome, f"{kind}: {verdict.reason}"
                assert reason in verdict.reason
                assert outcome == "invalid" or "report_samples" in verdict.reason


STATES = """
    import os, random, torch
    from torch import nn

    torch.manual_seed(1)
    random.seed(1)
    model = nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.1), nn.Linear(32, 4))
    turn = nn.Parameter(torch.ones(2, dtype=torch.cfloat))
    optimizer = torch.optim.Adam([*model.parameters(), turn], lr=0.01)
    for step in range(20):
        if step == 10 and os.environ["KIND"] == "forgets":
            optimizer = torch.optim.Adam([*model.parameters(), turn], lr=0.01)
        if step == 10 and os.environ["KIND"] == "slower":
            optimizer.param_groups[0]["lr"] = 0.009
        optimizer.zero_grad()
        (model(torch.ones(16) * step).square().sum() + turn.abs().square().sum()).backward()
        optimizer.step()
    if os.environ["KIND"] == "turned":
        turn.data *= 1j
    parameters = [*model.parameters(), torch.view_as_real(turn)]
    values = torch.cat([each.detach().flatten() for each in parameters]).double()
    if os.environ["KIND"] == "nan":
        with torch.no_grad():
            model[0].weight[0, 0] = float("nan")
    if os.environ["KIND"] == "momentum":
        optimizer.state[turn]["exp_avg"][0] = float("nan")
    torch.save(values, os.environ["KIND"])
"""


@pytest.mark.slow
def test_what_a_training_ended_with_is_compared_with_an_undisturbed_run(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit where nothing was lost; else the distance that is told is the true one, about."""
    import torch

    bench.observe(hashes=True)
    script = bench.write(STATES)
    histories = {}
    with warm_agent(bench, monkeypatch, preload=["torch", "torch._dynamo"]) as agent:
        for kind in ("reference", "same", "slower", "forgets", "turned", "nan", "momentum"):
            pid = run_warm(bench, agent, [script], {**bench.environ(), "KIND": kind})
            histories[kind] = lone(bench, pid)
    reference = reference_of(histories["reference"])
    assert reference is not None
    told = Record(at=0.0, source="engine", node="", run_id="", event=reference)
    found = {kind: History.of([told, *each.records]) for kind, each in histories.items()}
    same = judge(found["same"], "parameters", "same_as_uninterrupted")
    assert same.is_valid, same.reason
    assert judge(found["same"], "optimizer", "same_as_uninterrupted").is_valid
    # An optimizer that was made anew takes the place of the one before.
    assert len(histories["forgets"].of_kind(StepCompleted)) == 20
    true = torch.load(bench.folder / "reference")
    for kind, hint in (("slower", "learning rate is 0.009"), ("forgets", "optimizer's state")):
        verdict = judge(found[kind], "parameters", "same_as_uninterrupted")
        assert verdict.outcome.value == "invalid"
        assert hint in verdict.reason
        assert judge(found[kind], "optimizer", "same_as_uninterrupted").outcome.value == "invalid"
        distance = float((torch.load(bench.folder / kind) - true).norm() / true.norm())
        told_distance = re.search(r"by ([\d.e-]+) \(relative\)", verdict.reason)
        assert told_distance is not None, verdict.reason
        assert math.isclose(float(told_distance[1]), distance, rel_tol=0.4), kind
        for factor, outcome in ((1.5, "valid"), (0.6, "invalid")) if kind == "slower" else ():
            value = {"are": "same_as_uninterrupted", "within": distance * factor}
            assert judge(found[kind], "parameters", value).outcome.value == outcome
    turned = {"are": "same_as_uninterrupted", "within": 1e-6}
    assert judge(found["turned"], "parameters", turned).outcome.value == "invalid"
    broken = judge(found["nan"], "parameters", "same_as_uninterrupted")
    assert (broken.outcome.value, "not finite" in broken.reason) == ("invalid", True)
    assert judge(found["momentum"], "parameters", "same_as_uninterrupted").is_valid
    broken = judge(found["momentum"], "optimizer", "same_as_uninterrupted")
    assert (broken.outcome.value, "not finite" in broken.reason) == ("invalid", True)
    states = [each.of_kind(ParametersHashed)[0].event for each in histories.values()]
    assert all({"torch", "python"} <= set(state.random) for state in states)
    for kind in ("torch", "python"):  # numpy's are not seeded here
        assert states[0].random[kind] == states[1].random[kind]
    assert math.isclose(states[0].norm or 0.0, float(true.norm()))
