"""Aimed storms: blows to whoever decides, at the moment at which it does."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from elastic_simulation.__main__ import main
from elastic_simulation.campaign import run_seeds
from elastic_simulation.ledger import Ledger
from elastic_simulation.plan import AIMED, KINDS, Blow, Options, Plan, draw_plan
from elastic_simulation.storm import Storm

from pytest_elastic.events import model as events
from pytest_elastic.rendezvous import messages as m

DIGEST = "ba868dd0c8f500fff5fe50a616bd49664c03b681927060bc5273996c1a8a5de0"
"""Of what was drawn before there were aimed blows."""
_AIMED = Options(quorum="majority", nodes=5, is_brisk=True, is_aimed=True)


def _storm(*blows: Blow, seed: int = 3) -> Storm:
    """Return a storm of these blows only, over a job of five nodes that has begun by then."""
    drawn = draw_plan(seed, Options(quorum="majority", nodes=5, is_brisk=True))
    lull = Blow(after_s=4.0, kind="lull")
    plan = Plan(
        seed=seed,
        settings=drawn.settings,
        latency_s=0.005,
        jitter_s=0.0,
        arrivals_s=(0.0,) * 5,
        clock_rates=(1.0,) * 5,
        calm_before_s=0.0,
        blows=(*blows, lull),
    )
    return Storm(plan, keeps_messages=True)


def _said(storm: Storm) -> list[str]:
    storm.run()
    return [what for _, what in storm.said if what != "calm"]


def test_no_plan_of_a_seed_has_changed() -> None:
    """Hundreds of seeds are known for what they find: aimed blows have a draw of their own."""
    drawn = [
        (plan.blows, plan.arrivals_s, plan.clock_rates, plan.damage, plan.last)
        for quorum in ("coordinator", "majority", "granted")
        for is_brisk in (False, True)
        for seed in range(30)
        for plan in [draw_plan(seed, Options(quorum=quorum, is_brisk=is_brisk))]
    ]
    assert hashlib.sha256(repr(drawn).encode()).hexdigest() == DIGEST


def test_an_aimed_plan_has_its_own_blows_among_the_others() -> None:
    """The same ones each time, in order, with time for what is armed."""
    plans = [draw_plan(seed, _AIMED) for seed in range(100)]
    assert plans == [draw_plan(seed, _AIMED) for seed in range(100)]
    assert {kind for plan in plans for kind in plan.kinds} == {*KINDS, *AIMED}
    assert all(plan.blows[-1].kind == "lull" for plan in plans)
    assert all(blow.after_s >= 0.0 for plan in plans for blow in plan.blows)


@pytest.mark.parametrize("kind", [kind for kind in AIMED if kind not in {"lull", "on ending"}])
def test_each_kind_does_something(kind: str) -> None:
    """What is armed is met by a job whose coordinator is lost, or leaves."""
    lose = Blow(after_s=1.5, kind="drain" if kind == "on parting" else "lose host")
    then = (lose,) if kind.startswith("on ") else ()
    done = [
        said
        for who in range(12)
        for said in _said(_storm(Blow(after_s=1.0, kind=kind, who=who, how=0.3), *then))
    ]
    words = {"beset": ("",), "part": ("part ", "cut "), "slow kill": ("kills take ",)}
    assert [said for said in done if said.startswith(words.get(kind, (f"{kind}: ",)))]


def test_the_end_is_a_moment_too() -> None:
    """All groups succeed, and somebody decides that the job has."""
    succeed = Blow(after_s=2.0, kind="succeed", how=0.5)
    done = [
        said
        for who in range(12)
        for said in _said(_storm(Blow(after_s=1.0, kind="on ending", who=who), succeed))
    ]
    assert [said for said in done if said.startswith("on ending: ")]


def test_what_is_armed_falls_before_others_hear_of_it() -> None:
    """Some seal is not heard by all to whom it was sent, as its sender was cut off just then."""
    unheard = 0
    for who in range(40):
        storm = _storm(Blow(after_s=0.0, kind="on seal", who=who, how=0.7))
        storm.run()
        sealed = [
            at for at, _, event in storm.world.events if isinstance(event, events.RoundSealed)
        ]
        sent = [
            (at, target) for at, _, target, said in storm.world.sent if isinstance(said, m.Seal)
        ]
        heard = [
            at
            for at, _, _, said in storm.world.sent
            if isinstance(said, m.SealAcknowledged) and said.round == 1
        ]
        struck = [at for at, what in storm.said if what.startswith("on seal: ")]
        first = min(at for at, _ in sent)
        is_at_once = bool(struck) and struck[0] == sealed[0]
        unheard += is_at_once and len([at for at in heard if at <= first + 0.02]) < len(
            [target for at, target in sent if at == first]
        )
    assert unheard


def test_aimed_storms_keep_the_promises() -> None:
    """A few; `--aimed` runs more."""
    for quorum in ("coordinator", "majority", "granted"):
        tally = run_seeds(range(40), Options(quorum=quorum, is_brisk=True, is_aimed=True))
        assert not tally.findings
        assert tally.counted > tally.storms / 2


def test_the_command_and_the_ledger_name_the_option(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """So that a storm is repeated as it was, and no others are counted with it."""
    ledger = tmp_path / "ledger"
    campaign = ["--seeds", "0..10", "--swarm", "--brisk", "--quiet", "--ledger", str(ledger)]
    assert main([*campaign, "--aimed"]) == 0
    assert main(campaign) == 0
    kinds = [entry.kind for entry in Ledger(ledger).entries]
    assert kinds == ["--swarm --brisk --aimed", "--swarm --brisk"]
    capsys.readouterr()
    assert main(["--seed", "3", "--swarm", "--brisk", "--aimed", "--kinds", "part,beset"]) == 0
    assert capsys.readouterr().out.startswith("seed 3: kept, ")
