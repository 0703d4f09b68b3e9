"""Who can be meant, shown for each parameter of each fault that says whom it hits.

What a run can have is accepted and resolved; what has no meaning there is one clear finding, before
anything starts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from elastic_harness.faults.built_in import BUILT_IN
from elastic_harness.faults.fault import Fault
from elastic_harness.faults.registry import built_in_faults
from elastic_harness.scenario.actions import CheckedScenario
from elastic_harness.scenario.model import Scenario

from tests.unit.faults.bench import World
from tests.unit.faults.examples import EXAMPLES

NODES = ("n1", "n2", "n3")
# Everything that a node or a worker can be called by; `exclude` beside it where there is one.
FORMS: tuple[object, ...] = (
    "rank 1",
    "n2",
    "store host",
    "rank 1 host",
    "random",
    "random 2",
    "minority",
    "majority",
    "newest",
    "all",
    ["n2", "rank 0"],
    {"any": "all", "exclude": "n1"},
    {"any": "random 2", "exclude": ["store host"]},
)
# What no run of three nodes with a worker each can have, and what is said about it.
NOBODY: Mapping[str, str] = {
    "n9": "there is no node 'n9'",
    "rank 3": "there is no rank 3",
    "random 4": "`random 4` asks for more than there are",
}
OF_LINKS = ("partition", "flap", "degrade", "reset", "capture")
NOT_EXCLUDED = ("random", "minority", "majority", "others")


def parameters() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield each fault, parameter that is a selector, and the other parameters of an example."""
    registry = built_in_faults()
    seen = set()
    for example in EXAMPLES.values():
        short = registry.shorthand(example.action) or ""
        given = example.value if isinstance(example.value, Mapping) else {short: example.value}
        for name, _ in registry.parse(example.action, example.value).selectors():
            if name != "exclude" and (example.action, name) not in seen:
                seen.add((example.action, name))
                others = {key: given[key] for key in given if key != name}
                # A name that is swapped is replaced by that of another node.
                yield example.action, name, others | ({"node": "n3"} if name == "of" else {})


def findings(action: str, value: Mapping[str, Any]) -> tuple[Fault, list[str]]:
    """Return a fault with these parameters, and what is found to be wrong with its targets."""
    fault = built_in_faults().parse(action, value)
    scenario = Scenario.model_validate(
        {
            "version": 1,
            "id": "x",
            "title": "Whom it hits",
            "job": {"script": "x.py"},
            "nodes": len(NODES),
            "timeline": [{"at": "1s", action: dict(value)}],
        }
    )
    found = [
        each.message for each in fault.findings(CheckedScenario(spec=scenario, actions=[fault]))
    ]
    return fault, [each for each in found if "proxy" not in each]


def test_there_are_selectors_to_be_tried() -> None:
    """Faults of workers, agents, nodes, links and stores have them."""
    tried = {action for action, _, _ in parameters()}
    assert {"kill", "pause", "crash", "partition", "names", "foreign_bytes", "run"} <= tried
    missed = {
        (fault.name, name)
        for fault in BUILT_IN
        for name, field in fault.model_fields.items()
        if "Selector" in str(field.annotation) and name != "exclude"
    } - {(action, name) for action, name, _ in parameters()}
    # The ends of links, of which an example has some; and whose disk a file is on.
    assert {action for action, _ in missed} <= {*OF_LINKS, "corrupt"}


def test_every_fault_takes_every_selector_that_can_mean_somebody() -> None:
    """Nothing is found to be wrong, and what is done to nodes and workers hits somebody."""
    for action, name, others in parameters():
        for form in FORMS:
            fault, wrong = findings(action, {**others, name: form})
            assert wrong == [], (action, name, form)
            if fault.layer != "network":  # what of links depends on both ends
                targets = fault.resolve(World().situation(), stream="x")
                assert targets.describe(), (action, name, form)


def test_every_fault_refuses_who_cannot_be_there() -> None:
    """A node or rank beyond those there can be, more than there are: one finding each."""
    for action, name, others in parameters():
        for form, why in NOBODY.items():
            _, wrong = findings(action, {**others, name: form})
            assert len(wrong) == 1, (action, name, form, wrong)
            assert wrong[0].startswith(why), (action, name, form)


def test_what_has_no_meaning_is_refused() -> None:
    """The gateway but for links, `others` but beside another side, chance in `exclude`."""
    for action, name, others in parameters():
        fault, wrong = findings(action, {**others, name: "gateway"})
        assert len(wrong) == 1, (action, name, wrong)
        if not fault.knows_gateway:
            assert wrong[0].startswith("the gateway is no node"), (action, name)
        if len(fault.selectors()) == 1:
            _, wrong = findings(action, {**others, name: "others"})
            assert wrong == ["`others` needs another side here"], (action, name)
        for term in NOT_EXCLUDED:
            _, wrong = findings(action, {**others, name: {"any": "all", "exclude": term}})
            assert len(wrong) == 1, (action, name, term, wrong)
            assert wrong[0].startswith(f"`{term}` cannot be excluded"), (action, name)
