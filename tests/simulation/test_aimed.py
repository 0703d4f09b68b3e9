"""Aimed runs: faults of the node that decides, at the moment at which it does."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from elastic_simulation.__main__ import main
from elastic_simulation.random_faults.campaign import run_seeds
from elastic_simulation.random_faults.ledger import Ledger
from elastic_simulation.random_faults.plan import (
    AIMED,
    KINDS,
    InjectedFault,
    Options,
    Plan,
    draw_plan,
)
from elastic_simulation.random_faults.plan_run import PlanRun

from pytest_elastic.events import model as events
from pytest_elastic.rendezvous import messages as m

DIGEST = "01ef20099a641ab023bddaf2aa908522eda94db6881b7f32c753c8774abc3ac8"
"""Of what was drawn before there were aimed faults."""
_AIMED = Options(quorum="majority", nodes=5, is_brisk=True, is_aimed=True)


def _run(*faults: InjectedFault, seed: int = 3) -> PlanRun:
    """Return a run of these faults only, over a job of five nodes that has begun by then."""
    drawn = draw_plan(seed, Options(quorum="majority", nodes=5, is_brisk=True))
    lull = InjectedFault(after_s=4.0, kind="lull")
    plan = Plan(
        seed=seed,
        settings=drawn.settings,
        latency_s=0.005,
        jitter_s=0.0,
        arrivals_s=(0.0,) * 5,
        clock_rates=(1.0,) * 5,
        quiet_before_s=0.0,
        faults=(*faults, lull),
    )
    return PlanRun(plan, keeps_messages=True)


def _said(plan_run: PlanRun) -> list[str]:
    plan_run.run()
    return [what for _, what in plan_run.said if what != "healed"]


def test_no_plan_of_a_seed_has_changed() -> None:
    """Hundreds of seeds are known for what they find: aimed faults have a draw of their own."""
    drawn = [
        (plan.faults, plan.arrivals_s, plan.clock_rates, plan.damage, plan.last)
        for quorum in ("coordinator", "majority", "granted")
        for is_brisk in (False, True)
        for seed in range(30)
        for plan in [draw_plan(seed, Options(quorum=quorum, is_brisk=is_brisk))]
    ]
    assert hashlib.sha256(repr(drawn).encode()).hexdigest() == DIGEST


def test_an_aimed_plan_has_its_own_faults_among_the_others() -> None:
    """The same ones each time, in order, with time for what is armed."""
    plans = [draw_plan(seed, _AIMED) for seed in range(100)]
    assert plans == [draw_plan(seed, _AIMED) for seed in range(100)]
    assert {kind for plan in plans for kind in plan.kinds} == {*KINDS, *AIMED}
    assert all(plan.faults[-1].kind == "lull" for plan in plans)
    assert all(fault.after_s >= 0.0 for plan in plans for fault in plan.faults)


@pytest.mark.parametrize("kind", [kind for kind in AIMED if kind not in {"lull", "on ending"}])
def test_each_kind_does_something(kind: str) -> None:
    """What is armed is met by a job whose leader is lost, or leaves."""
    lose = InjectedFault(after_s=1.5, kind="drain" if kind == "on parting" else "lose host")
    then = (lose,) if kind.startswith("on ") else ()
    done = [
        said
        for who in range(12)
        for said in _said(_run(InjectedFault(after_s=1.0, kind=kind, who=who, how=0.3), *then))
    ]
    words = {"beset": ("",), "part": ("part ", "cut "), "slow kill": ("kills take ",)}
    assert [said for said in done if said.startswith(words.get(kind, (f"{kind}: ",)))]


def test_the_end_is_a_moment_too() -> None:
    """All groups succeed, and a leader decides that the job has."""
    succeed = InjectedFault(after_s=2.0, kind="succeed", how=0.5)
    done = [
        said
        for who in range(12)
        for said in _said(_run(InjectedFault(after_s=1.0, kind="on ending", who=who), succeed))
    ]
    assert [said for said in done if said.startswith("on ending: ")]


def test_what_is_armed_falls_before_others_hear_of_it() -> None:
    """Some record is not heard by all that it was sent to, as its sender was cut off just then."""
    unheard = 0
    for who in range(40):
        plan_run = _run(InjectedFault(after_s=0.0, kind="on proposal", who=who, how=0.7))
        plan_run.run()
        sealed = [
            at for at, _, event in plan_run.world.events if isinstance(event, events.RoundSealed)
        ]
        sent = [
            (at, target)
            for at, _, target, said in plan_run.world.sent
            if isinstance(said, m.AppendRecord)
        ]
        heard = [
            at
            for at, _, _, said in plan_run.world.sent
            if isinstance(said, m.RecordAccepted) and said.number == 1
        ]
        struck = [at for at, what in plan_run.said if what.startswith("on proposal: ")]
        first = min(at for at, _ in sent)
        is_at_once = bool(struck) and struck[0] == sealed[0]
        unheard += is_at_once and len([at for at in heard if at <= first + 0.02]) < len(
            [target for at, target in sent if at == first]
        )
    assert unheard


def test_aimed_runs_keep_the_promises() -> None:
    """A few; `--aimed` runs more."""
    for quorum in ("coordinator", "majority", "granted"):
        tally = run_seeds(range(40), Options(quorum=quorum, is_brisk=True, is_aimed=True))
        assert not tally.findings
        assert tally.counted > tally.runs / 2


def test_the_command_and_the_ledger_name_the_option(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """So that a run is repeated as it was, and no others are counted with it."""
    ledger = tmp_path / "ledger"
    campaign = ["--seeds", "0..10", "--swarm", "--brisk", "--quiet", "--ledger", str(ledger)]
    assert main([*campaign, "--aimed"]) == 0
    assert main(campaign) == 0
    kinds = [entry.kind for entry in Ledger(ledger).entries]
    assert kinds == ["--swarm --brisk --aimed", "--swarm --brisk"]
    capsys.readouterr()
    assert main(["--seed", "3", "--swarm", "--brisk", "--aimed", "--kinds", "part,beset"]) == 0
    assert capsys.readouterr().out.startswith("seed 3: kept, ")
