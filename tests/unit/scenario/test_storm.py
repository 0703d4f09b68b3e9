"""Storms: what a seed draws, that it can be said in a scenario, and that it is had again."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
from elastic_harness.faker_provider import ElasticProvider
from elastic_harness.faults.built_in import BUILT_IN
from elastic_harness.faults.context import FaultContext, Steps
from elastic_harness.faults.fault import Fault
from elastic_harness.faults.links.foreign_bytes import WORDS
from elastic_harness.faults.recipe import JobShape, Recipe, known_draws
from elastic_harness.faults.recipes import NOT_DRAWN, RECIPES
from elastic_harness.faults.registry import built_in_faults
from elastic_harness.faults.workers.worker import WorkerFault
from elastic_harness.history.events import FaultIneffective
from elastic_harness.scenario.actions import CheckedScenario
from elastic_harness.scenario.checks.scenario_checks import check_scenario, needed_capabilities
from elastic_harness.scenario.engine.situation import Targets
from elastic_harness.scenario.model import Entry, Scenario
from elastic_harness.scenario.planning.planner import (
    PinnedTargets,
    decode_plan,
    encode_plan,
    make_plan,
)
from elastic_harness.scenario.reading.loader import read_entry
from faker import Faker
from hypothesis import given
from hypothesis import strategies as st

from pytest_elastic.errors import UsageError
from tests.unit.scenario.bench import Bench, scenario

FOUR_NODES = {"initial": 4, "min": 2, "max": 4}


def stormy(**storm: object) -> Scenario:
    """Return a scenario that is nothing but a storm."""
    proxies = {"store": "rendezvous"}
    return scenario(nodes=FOUR_NODES, nproc=2, proxies=proxies, storm={"max": 3, **storm})


def drawn(given: Scenario, seed: int = 1) -> list[Entry]:
    """Return the faults that a seed draws."""
    plan = make_plan(given, seed)
    return [each.entry for each in plan.entries if each.id in plan.storm_ids]


@given(
    seed=st.integers(0, 2**31),
    faults=st.lists(st.sampled_from(known_draws(RECIPES)), min_size=1, max_size=4),
    steps=st.none() | st.integers(2, 200),
)
def test_whatever_is_drawn_can_be_said_in_a_scenario(
    seed: int, faults: list[str], steps: int | None
) -> None:
    """Every entry parses, hits what exists, spares the store host, and is survivable."""
    given = stormy(faults=faults, max=10, **({} if steps is None else {"steps": steps}))
    given = given.model_copy(update={"job": given.job.model_copy(update={"max_restarts": 10})})
    entries = drawn(given, seed)
    assert 5 <= len(entries) <= 10
    catalog = built_in_faults()
    actions = [catalog.parse(each.action.name, each.action.value) for each in entries]
    told = given.model_copy(update={"timeline": tuple(entries), "storm": None})
    checked = CheckedScenario(spec=told, actions=actions)
    found = check_scenario(checked, drawn=[str(each.id) for each in entries])
    assert [f for f in found if "no entry of the timeline" not in f.message] == []
    assert set(needed_capabilities(told, catalog)) <= set(needed_capabilities(given, catalog))
    for entry, action in zip(entries, actions, strict=True):
        kinds = {each.kind for each in RECIPES if each.fault == entry.action.name}
        assert entry.action.name in faults or kinds & set(faults)
        assert action.is_healable == (entry.for_s is not None), "what can be healed is"
        assert entry.optional
        at = entry.after.delay_s if entry.after else entry.at
        assert steps is not None or (isinstance(at, float) and at <= 11)
        words = {str(term) for _, each in action.selectors() for term in each.terms}
        kinds_drawn = {each.kind for each in RECIPES if each.fault == entry.action.name}
        if kinds_drawn & {"node", "agent", "resource", "clock"}:
            assert "n1" not in words, "the store host is spared"


def test_the_same_seed_draws_the_same_plan_to_the_byte() -> None:
    """The run's seed, or the storm's own; what else the scenario says moves nothing."""
    first = encode_plan(make_plan(stormy(), 7))
    assert encode_plan(make_plan(stormy(), 7)) == first
    assert encode_plan(make_plan(stormy(), 8)) != first
    assert drawn(stormy(seed=7), 1) == drawn(stormy(seed=7), 2) == drawn(stormy(), 7)
    more = stormy().model_copy(update={"title": "Another one"})
    assert drawn(more, 7) == drawn(stormy(), 7)


def test_a_replay_keeps_what_was_drawn_even_where_the_drawing_would_differ_today() -> None:
    """The entries come from the file, not from the seed."""
    plan = make_plan(stormy(), 7)
    assert decode_plan(encode_plan(plan)) == plan
    data = json.loads(encode_plan(plan))
    data["storm"][1]["kill"] = {"worker": "rank 7"}
    data["storm"][1].pop(drawn(stormy(), 7)[0].action.name, None)
    data["storm"][1].pop("for", None)
    data["storm"][1]["kill"] = {"worker": "rank 7"}
    again = decode_plan(json.dumps(data))
    assert again.entries[1].entry.action.value == {"worker": "rank 7"}


def test_after_a_storm_the_job_must_succeed_and_get_on_unless_the_scenario_says_otherwise() -> None:
    """What is checked is part of the plan, so that a replay checks the same."""
    names = {each.name: each.expected for each in make_plan(stormy(), 1).scenario.expect.finally_}
    assert names == {"job": "succeeded", "recovered": True}
    own = scenario(nodes=4, storm={"max": 1}, expect={"finally": [{"job": "failed"}]})
    names = {each.name: each.expected for each in make_plan(own, 1).scenario.expect.finally_}
    assert names == {"job": "failed", "recovered": True}


def storm_bench(**storm: object) -> Bench:
    """Return a bench with three nodes that are up, and a storm to come."""
    bench = Bench(scenario(nodes=3, storm={"max": 4, "faults": ["kill"], **storm}), seed=3)
    bench.start_nodes("n1", "n2", "n3")
    return bench


def test_a_storm_begins_with_the_jobs_first_step_and_its_faults_are_optional() -> None:
    """A rank that has gone is no finding, as long as one fault took effect."""
    bench = storm_bench()
    bench.pass_time(20)
    assert bench.fired == []
    bench.form("n1", "n2", "n3")
    bench.steps(2)
    bench.give_verdicts("storm", valid=True)
    bench.pass_time(11)
    assert len(bench.fired) >= 2
    for number, name in enumerate(bench.fired):
        bench.in_force(name)
        if number:
            bench.disprove(name)
        else:
            bench.prove(name)
    bench.end_job()
    bench.pass_time(1)
    ineffective = bench.facts(FaultIneffective)
    assert len(ineffective) == len(bench.fired) - 1
    assert all(each.is_optional for each in ineffective)


def test_a_storm_of_which_nothing_took_effect_proves_nothing() -> None:
    """The job was over first: that is unknown, and not green."""
    bench = storm_bench()
    bench.form("n1", "n2", "n3")
    bench.steps(2)
    bench.give_verdicts("storm", valid=True)
    bench.end_job()
    bench.pass_time(1)
    (finding,) = [each for each in bench.facts(FaultIneffective) if not each.is_optional]
    assert finding.id == "storm"
    assert "took effect before the job ended" in finding.reason


def test_a_check_that_is_unmet_ends_the_run_and_is_shown() -> None:
    """It is a clause like any other, judged once."""
    bench = Bench(scenario({"id": "half", "at": "2s", "check": [{"restarts": 0}]}))
    bench.pass_time(3)
    bench.give_verdicts("half", valid=False)
    assert bench.end is not None
    assert bench.end.outcome == "unmet"
    assert bench.verdict("half[0]") == "invalid"


def test_a_check_that_holds_lets_the_run_go_on_and_what_waits_for_it() -> None:
    """`after: half` is the moment when it was judged."""
    bench = Bench(
        scenario(
            {"id": "half", "at": "2s", "check": "ranks"},
            {"after": "half + 1s", "id": "next", "kill": "n2"},
        )
    )
    bench.start_nodes("n1", "n2")
    bench.form("n1", "n2")
    bench.pass_time(2)
    bench.give_verdicts("half", valid=True)
    assert bench.fired == []
    bench.pass_time(1)
    assert bench.fired == ["next"]
    assert bench.verdict("half[0]") == "valid"


# --- replay


def test_a_replay_hits_whom_the_first_run_hit() -> None:
    """The seed is the same, and so are the targets, even if the seed would choose others."""
    random_kill = scenario({"id": "hit", "at": "1s", "kill": "random"}, nodes=4)
    first = Bench(random_kill, seed=1)
    chosen = play(first)
    pinned = first.engine.resolved
    assert list(pinned) == ["hit"]
    text = encode_plan(make_plan(random_kill, 1), targets=pinned)
    others = {play(Bench(random_kill, plan=decode_plan(text), seed=seed)) for seed in range(6)}
    assert others == {chosen}
    unpinned = {play(Bench(random_kill, seed=seed)) for seed in range(6)}
    assert len(unpinned) > 1, "without the plan, chance would choose others"


def play(bench: Bench) -> str:
    """Run to the fault and return its target."""
    nodes = ("n1", "n2", "n3", "n4")
    bench.start_nodes(*nodes)
    bench.form(*nodes)
    bench.pass_time(1)
    return bench.targets("hit")[0]


def test_what_was_named_is_not_pinned() -> None:
    """A rank or node by name means the same anyhow: the plan stays the same to the byte."""
    named = scenario({"id": "hit", "at": "1s", "kill": "rank 2"}, nodes=4)
    bench = Bench(named, seed=1)
    play(bench)
    assert bench.engine.resolved == {}


def test_a_target_of_the_plan_that_is_missing_is_said() -> None:
    """A replay that cannot do the same proves nothing, and names what was not there."""
    given = scenario({"id": "hit", "at": "1s", "kill": "random"}, nodes=4)
    plan = decode_plan(encode_plan(make_plan(given, 1), targets={"hit": PinnedTargets(ranks=(3,))}))
    bench = Bench(given, plan=plan)
    bench.start_nodes("n1", "n2", "n3", "n4")
    bench.form("n1", "n2", "n3")
    bench.pass_time(1)
    (finding,) = bench.facts(FaultIneffective)
    assert finding.reason == "the plan's target rank 3 is not there this time"


# --- the provider


def fresh(seed: int) -> Any:  # noqa: ANN401 (Faker learns its methods at run time)
    """Return a user's Faker with our provider."""
    faker = Faker()
    faker.add_provider(ElasticProvider)
    faker.seed_instance(seed)
    return faker


def test_a_users_own_seeding_is_the_plans_seed() -> None:
    """`faker.seed_instance` is all there is to it."""
    plan = fresh(3).fault_plan(nodes=4, seconds=5)
    assert plan == fresh(3).fault_plan(nodes=4, seconds=5)
    assert plan != fresh(4).fault_plan(nodes=4, seconds=5)
    one = fresh(3).elastic_fault(nodes=4, faults=["network"])
    assert set(one) & {"partition", "degrade"}
    for entry in plan:
        read_entry(entry, built_in_faults())


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"faults": ["gpu"]}, "'gpu' cannot be drawn"),
        ({"nodes": 2, "exclude": ["n5"]}, "'n5' cannot be left out"),
        ({"nodes": 1, "faults": ["node"]}, "there is nothing to draw node from"),
        ({"nodes": 0}, "nodes=0: a whole number of at least 1 is expected"),
        ({"nodes": "3"}, "nodes='3': a whole number"),
        ({"nproc": 0}, "nproc=0: a whole number"),
        ({"seconds": 0}, "both must be more than nothing"),
        ({"max_faults": 0}, "both must be more than nothing"),
    ],
)
def test_what_cannot_be_drawn_is_refused(asked: dict[str, Any], message: str) -> None:
    """With what was asked, and what there is."""
    with pytest.raises(UsageError, match=message):
        fresh(1).fault_plan(**asked)


# --- which faults there are to draw


@pytest.mark.parametrize("fault", BUILT_IN, ids=lambda fault: fault.name)
def test_every_fault_is_drawn_or_says_why_not(fault: type[Fault]) -> None:
    """A new fault needs a recipe, or one sentence in `NOT_DRAWN`."""
    is_drawn = any(recipe.fault == fault.name for recipe in RECIPES)
    assert is_drawn != bool(NOT_DRAWN.get(fault.name))


def test_no_recipe_and_no_reason_is_for_a_fault_that_is_not_there() -> None:
    """Renaming a fault does not lose its recipe."""
    names = {fault.name for fault in BUILT_IN}
    assert {recipe.fault for recipe in RECIPES} | set(NOT_DRAWN) == names


@given(seed=st.integers(0, 2**31))
def test_each_recipe_draws_its_own_fault_for_the_smallest_job_that_it_fits(seed: int) -> None:
    """Two nodes with one worker each; and what it draws parses, and heals if it can be healed."""
    names = ("n1", "n2")
    job = JobShape(ranks=2, nodes=names[1:], all_nodes=names, proxies=("store",))
    catalog = built_in_faults()
    for recipe in catalog.recipes:
        assert recipe.fits(job)
        drawn = recipe.draw(Random(seed), job)
        assert set(drawn) <= {recipe.fault, "for"}
        entry = read_entry({**drawn, "at": "1s"}, catalog)
        action = catalog.parse(recipe.fault, drawn[recipe.fault])
        assert action.needs in {None, recipe.needs}
        assert action.is_healable == (entry.for_s is not None)


def test_all_that_a_fault_can_be_is_drawn_some_time() -> None:
    """Every way to hang, every shape and mode of a cut, every class of traffic, every toxic."""
    told: dict[str, set[str]] = {}
    for seed in range(400):
        for recipe in RECIPES:
            job = JobShape(
                ranks=4,
                nodes=("n2", "n3", "n4"),
                all_nodes=("n1", "n2", "n3", "n4"),
                proxies=("store",),
            )
            value = recipe.draw(Random(seed), job)[recipe.fault]
            words = told.setdefault(recipe.fault, set())
            words |= {str(each) for pair in value.items() for each in pair if each is not None}
    assert {"stop", "gil", "collective"} <= told["hang"]
    shapes = {"isolate", "from", "between", "halves", "ring", "bridge", "pairs"}
    assert {*shapes, "drop", "reject", "hold"} <= told["partition"]
    damage = {"latency", "jitter", "loss", "burst_loss", "duplicate", "reorder", "corrupt", "rate"}
    assert {*damage, "uniform", "normal", "pareto", "exponential"} <= told["degrade"]
    for name in ("partition", "flap", "degrade", "reset"):
        assert {"rendezvous", "store", "liveness", "collectives"} <= told[name]
    assert {"wrong", "missing", "slow"} <= told["names"]
    assert {"latency", "bandwidth", "slow_close", "slicer", "timeout"} <= told["toxic"]
    assert {"limit_data", "reset_peer"} <= told["toxic"]
    assert {"torn", "truncate", "flip"} <= told["corrupt"]
    assert {"rendezvous", "workers"} <= told["freeze_store"]
    assert {"rendezvous", "workers", *WORDS} <= told["foreign_bytes"]


class Terminate(WorkerFault):
    """A worker gets SIGTERM. Stands for an operator's kill. Does not stand for: SIGKILL."""

    name = "terminate"
    proof = "it was delivered"

    def inject(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        yield from ()
        return f"{id}: {targets} {context.now()}"


def _terminate(random: Random, job: JobShape) -> dict[str, Any]:
    return {"terminate": {"worker": f"rank {random.randrange(job.ranks)}"}}


def test_a_users_fault_is_drawn_by_its_own_recipe() -> None:
    """By its kind, which may be a new one, or by its name; the others stay as they are."""
    registry = built_in_faults()
    recipe = Recipe(fault="terminate", kind="mine", draw=_terminate)
    registry.add(Terminate, recipes=[recipe])
    for asked in ("mine", "terminate"):
        plan = make_plan(stormy(faults=[asked]), 3, registry.recipes)
        names = {each.entry.action.name for each in plan.entries if each.id in plan.storm_ids}
        assert names == {"terminate"}
    assert make_plan(stormy(), 3, registry.recipes) == make_plan(stormy(), 3)
    with pytest.raises(UsageError, match="recipe of 'kill' with the fault 'stop_it'"):
        registry.add(
            type("StopIt", (Terminate,), {"name": "stop_it", "__doc__": "It stops."}),
            recipes=[Recipe(fault="kill", kind="mine", draw=_terminate)],
        )


@pytest.mark.parametrize(
    ("storm", "message"),
    [
        ({"faults": ["gpu"]}, "'gpu' cannot be drawn"),
        ({"faults": ["crash"]}, "'crash' cannot be drawn: the node would not come back"),
        ({"faults": ["toxic"]}, "there is nothing to draw 'toxic' for: of 2 nodes 1 may be hit"),
        ({"faults": ["node"], "exclude": ["n1", "n2"]}, "there is nothing to draw 'node' for"),
        ({"exclude": ["n7"]}, "no node called 'n7' is there"),
        ({"max": 9}, "can use up the 3 restarts"),
    ],
)
def test_a_storm_that_cannot_be_is_found_before_anything_starts(
    storm: dict[str, Any], message: str
) -> None:
    """With the reason, where it is one of the faults that storms leave out."""
    given = scenario(nodes=2, storm={"max": 2, **storm})
    given = given.model_copy(update={"job": given.job.model_copy(update={"max_restarts": 3})})
    messages = [each.message for each in check_scenario(CheckedScenario(spec=given, actions=()))]
    assert len(messages) == 1
    assert message in messages[0]
