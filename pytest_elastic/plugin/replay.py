"""`--elastic-replay PLAN`: of all tests that were collected, the one whose plan it is."""

from __future__ import annotations

import pytest

from pytest_elastic.errors import UsageError
from pytest_elastic.plugin.hub import hub_of
from pytest_elastic.plugin.jobs import scenario_id
from pytest_elastic.plugin.scenario_items import ScenarioItem

__all__ = ["keep_replayed"]


def keep_replayed(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect all items but the one that the plan was made for; raises pytest.UsageError."""
    try:
        plan = hub_of(config).replay
    except UsageError as error:
        raise pytest.UsageError(str(error)) from error
    if plan is None:
        return
    wanted = (plan.scenario.id, plan.scenario.title)
    chosen = [item for item in items if _identity(item) == wanted]
    if items and not chosen:
        raise pytest.UsageError(
            f"--elastic-replay: none of the tests here is {wanted[0]!r}, for which that plan was "
            "made: name its file"
        )
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen


def _identity(item: pytest.Item) -> tuple[str, str]:
    if isinstance(item, ScenarioItem):
        return item.loaded.scenario.id, item.loaded.scenario.title
    return scenario_id(item.name), item.nodeid
