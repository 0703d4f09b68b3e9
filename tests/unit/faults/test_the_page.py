"""docs/faults.md shows every fault, as the registry has it."""

from __future__ import annotations

import pytest
from elastic_harness.cluster.cluster import CAPABILITIES
from elastic_harness.faults.built_in import BUILT_IN
from elastic_harness.faults.fault import Fault

from tests.unit.faults import page


def test_the_tables_are_those_of_the_registry() -> None:
    """`python -m tests.unit.faults.page` writes them."""
    text = page.PAGE.read_text(encoding="utf-8")
    shown = text.partition(page.BEGIN)[2].partition(page.END)[0]
    assert shown.strip() == page.as_markdown()


@pytest.mark.parametrize("fault", BUILT_IN, ids=lambda fault: fault.name)
def test_every_fault_says_what_proves_it_and_what_it_does_not_stand_for(
    fault: type[Fault],
) -> None:
    """In its class: the page has nothing to add."""
    first, not_for = page.parts_of(fault)
    assert first
    assert not_for
    assert fault.proof
    words = (fault.capability or fault.sometimes_needs).split()
    assert not words or words[0] in CAPABILITIES
