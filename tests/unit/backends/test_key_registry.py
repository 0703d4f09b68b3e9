"""The registry in which a key names the leader, around the machine that decides (`KeyHolder`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pytest_elastic.backends.key_registry import KeyRegistry
from pytest_elastic.backends.registry_place import Where
from pytest_elastic.loop import Loop
from tests.unit.rendezvous.samples import settings_with


class NoCalls:
    """Calls to a place that nobody is to ask."""

    def ask_registry(
        self,
        kind: str,
        call: str,
        arguments: Mapping[str, Any],
        *,
        timeout_s: float,
        on_done: Callable[[Any, str], None],
    ) -> None:
        """Fail: nothing was taken that could be given back."""
        raise AssertionError(f"{kind} was asked to {call} ({arguments}, {timeout_s} s, {on_done})")


def test_a_node_that_ends_before_it_has_joined_gives_nothing_back() -> None:
    """It may be told to end while its files hang, before the registry is opened."""
    closed: list[bool] = []
    registry = KeyRegistry(
        Loop(),
        settings=settings_with("granted"),
        where=Where(kind="file", arguments={"path": "job", "run_id": "job"}, name="job"),
        calls=NoCalls(),
    )
    registry.close(lambda: closed.append(True))
    assert closed == [True]
