"""What every fault keeps, shown for each one of the registry: proven or not, and undone for good.

One test goes through all of them and names those that do not keep it: four hundred tests of a few
milliseconds each would cost more in what stands around them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

from elastic_harness.cluster.cluster import CAPABILITIES
from elastic_harness.faults.evidence import Evidence
from elastic_harness.faults.fault import LAYERS
from elastic_harness.faults.injector import FaultTask
from elastic_harness.faults.registry import built_in_faults
from elastic_harness.network.link_model import HEALTHY
from elastic_harness.scenario.engine.messages import FaultProved, Fire

from tests.unit.faults.bench import World
from tests.unit.faults.examples import EXAMPLES, Example

# Longer than any fault waits for its proof.
EVER_S = 200.0

HEALABLE = [
    name
    for name, each in EXAMPLES.items()
    if built_in_faults().parse(each.action, each.value).is_healable
]


def made(example: Example, *, numb: bool = False) -> World:
    """Return a world in which this can be done."""
    world = World(numb=numb)
    example.before(world)
    return world


def fired(example: Example, world: World) -> Fire:
    """Inject it, let the job show it, and return the order."""
    order = world.fire(example.action, example.value)
    world.pass_time(1)
    example.show(world)
    world.pass_time(5)
    return order


def remains(world: World) -> dict[str, object]:
    """Return all that faults can have left in a world, of what can be undone."""
    return {
        "stopped": [pid for pid, each in world.processes.items() if each.state == "T"],
        "frozen": set(world.cluster.frozen),
        "hanging": [
            pid
            for pid, each in world.processes.items()
            if each.orders and each.orders[-1].get("act") in {"hold_gil", "stand"}
        ],
        "links": {
            place: policy
            for place, policy in world.cluster.network.places.items()
            if policy != HEALTHY
        },
        "names": {
            node: changes
            for node, changes in world.cluster.names.changes.items()
            if changes and node in world.up
        },
        "toxics": dict(world.proxies.toxics),
        "proxies": dict(world.proxies.switched),
        "captures": dict(world.cluster.network.captures),
        "limits": dict(world.budget.limits),
        "files": dict(world.budget.files),
        "disks": dict(world.cluster.disks.policies),
        "clocks": dict(world.cluster.clock.offsets),
        "strangers": dict(world.strangers.sent),
    }


def undo(world: World, order: Fire) -> str:
    """Heal a fault by its own means, whatever has become of it; returns what is wrong."""
    fault = world.registry.parse(order.action, order.value)
    task = FaultTask(
        fault.heal(world.context, order.targets, id=order.entry_id),
        world.time,
        lambda _: None,
        entry_id=order.entry_id,
    )
    task.start()
    world.pass_time(60)
    assert task.is_done, "a heal ends"
    return "" if task.error is None else task.error.message


NOTHING = remains(World())


def broken_by(names: Iterable[str], check: Callable[[str], None]) -> dict[str, str]:
    """Return which do not pass a check, with what it says."""
    found: dict[str, str] = {}
    for name in names:
        try:
            check(name)
        except AssertionError as error:
            found[name] = str(error)
    return found


def test_there_is_an_example_of_every_fault() -> None:
    """A fault that is added is tested here, or this fails."""
    asked = {each.action for each in EXAMPLES.values()}
    assert asked == {each.name for each in built_in_faults() if not each.is_own}


def test_a_fault_declares_where_it_acts_and_what_it_needs() -> None:
    """A layer, and a capability that clusters know; where that depends, when it does."""

    def check(name: str) -> None:
        fault = built_in_faults().parse(EXAMPLES[name].action, EXAMPLES[name].value)
        assert fault.layer in LAYERS
        assert fault.needs is None or fault.needs in CAPABILITIES
        if fault.needs != fault.capability:
            assert fault.needs is not None
            assert fault.needs in fault.sometimes_needs

    assert broken_by(EXAMPLES, check) == {}


def test_a_fault_that_acts_is_proven() -> None:
    """Once, with what shows it."""

    def check(name: str) -> None:
        world = made(EXAMPLES[name])
        fired(EXAMPLES[name], world)
        said = [each.partition(":")[0] for each in world.story if not each.startswith("in force")]
        assert said == ["proved"], world.story

    assert broken_by(EXAMPLES, check) == {}


def test_a_fault_that_is_not_obeyed_has_failed() -> None:
    """Everything is answered and nothing happens: no fault takes the answer for its effect."""

    def check(name: str) -> None:
        example = EXAMPLES[name]
        world = made(example, numb=True)
        world.fire(example.action, example.value, meanwhile=example.refuse)
        world.pass_time(EVER_S)
        assert world.story[-1].startswith("failed: "), world.story
        assert not any(each.startswith("proved") for each in world.story)

    assert broken_by(EXAMPLES, check) == {}


def test_the_same_symptom_from_another_cause_proves_nothing() -> None:
    """Of another fault of the same kind, or of a process that ends or stops by itself."""

    def check(name: str) -> None:
        example = EXAMPLES[name]
        world = made(example)
        world.cluster.network.deaf.add("x")
        if example.comes_first:
            world.fire(example.action, example.value, meanwhile=example.same)
        else:
            world.fire(example.action, example.value)
            world.pass_time(1)
            example.same(world)
        world.pass_time(EVER_S)
        mine = [each for each in world.story_of("x") if not each.startswith("in force")]
        assert len(mine) == 1, mine
        assert mine[0].startswith("failed: "), mine

    assert broken_by(EXAMPLES, check) == {}


def test_evidence_has_facts() -> None:
    """Beside the sentence, for programs: JSON values, and never none."""

    def check(name: str) -> None:
        world = made(EXAMPLES[name])
        fired(EXAMPLES[name], world)
        (proved,) = [each for each in world.told if isinstance(each, FaultProved)]
        found = Evidence.of(proved.evidence)
        assert found.text
        assert json.loads(json.dumps(found.facts)) == found.facts != {}

    assert broken_by(EXAMPLES, check) == {}


def test_healing_twice_is_harmless() -> None:
    """By order, by the teardown, and by its own means: once it is undone, and nothing is left."""

    def check(name: str) -> None:
        world = made(EXAMPLES[name])
        order = fired(EXAMPLES[name], world)
        assert remains(world) != NOTHING, "there is something to be undone"
        world.heal()
        world.heal()
        world.pass_time(60)
        world.heal()
        healed = world.injector.heal_all()
        world.pass_time(60)
        assert world.story.count("undone") == 1
        assert healed.result() == {}
        assert remains(world) == NOTHING
        assert undo(world, order) == ""
        assert remains(world) == NOTHING
        assert undo(world, order) == ""

    assert broken_by(HEALABLE, check) == {}


def test_what_was_never_injected_can_be_healed() -> None:
    """Nothing is there, and nothing is done."""

    def check(name: str) -> None:
        world = made(EXAMPLES[name])
        fault = world.registry.parse(EXAMPLES[name].action, EXAMPLES[name].value)
        targets = fault.resolve(world.situation(), stream="x")
        order = Fire(
            entry_id="x", action=EXAMPLES[name].action, value=EXAMPLES[name].value, targets=targets
        )
        assert undo(world, order) == ""
        assert remains(world) == NOTHING

    assert broken_by(EXAMPLES, check) == {}


def test_a_fault_is_healed_after_what_it_hit_is_gone() -> None:
    """Nodes and workers may end under it; the heal is no failure, twice."""

    def check(name: str) -> None:
        world = made(EXAMPLES[name])
        order = fired(EXAMPLES[name], world)
        world.end_everything()
        world.heal()
        world.pass_time(60)
        assert world.story.count("undone") == 1, world.story
        assert undo(world, order) == ""
        left = {key: value for key, value in remains(world).items() if value != NOTHING[key]}
        assert left == {}

    assert broken_by(HEALABLE, check) == {}


def test_a_fault_is_healed_whenever_the_heal_comes() -> None:
    """Before the cluster has answered, before the proof, while it looks."""

    def check(name: str) -> None:
        for after_s in (0.0, 0.005, 0.05, 0.55, 2.0):
            world = made(EXAMPLES[name])
            world.fire(EXAMPLES[name].action, EXAMPLES[name].value)
            world.pass_time(after_s)
            world.heal()
            world.pass_time(60)
            assert world.story.count("undone") == 1, world.story
            assert remains(world) == NOTHING

    assert broken_by(HEALABLE, check) == {}
