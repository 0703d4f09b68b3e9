"""Our rendezvous under stock torchrun, found by its entry point; see `torchrun_lives`."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

from tests.conformance.torchrun_lives import one_budget, survivor_and_newcomer

pytestmark = pytest.mark.slow


def test_torchrun_can_name_our_rendezvous() -> None:
    """By an entry point that names what torch calls, and whose handler answers to the name."""
    (found,) = metadata.entry_points(group="torchrun.handlers", name="pytest-elastic")
    assert callable(found.load()())


def test_stock_torchrun_goes_on_without_a_dead_node_and_takes_another_in(tmp_path: Path) -> None:
    """With its own c10d, the dead node is never noticed (#111646) and the new one ends the job."""
    assert survivor_and_newcomer(tmp_path, "pytest-elastic", 120.0) == {
        "goes on without the dead node": True,
        "takes another in": True,
        "gives every round a store of its own": True,
        "succeeds": True,
    }


def test_stock_torchrun_has_one_budget_for_the_job(tmp_path: Path) -> None:
    """With its own c10d, each node has the whole budget to itself (#108158)."""
    codes, printed = one_budget(tmp_path, "pytest-elastic")
    assert codes == [1, 1], printed
    assert "the only restart is used up" in printed
    assert "for the 3" not in printed
