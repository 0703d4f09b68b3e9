"""Hooks that a conftest.py or another plugin may implement."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elastic_harness.faults.registry import FaultRegistry

__all__ = ["pytest_elastic_register_faults"]


def pytest_elastic_register_faults(registry: FaultRegistry) -> None:
    """Make faults of your own known, by `registry.add(Class)`, to scenario files and tests alike.

    Called when scenario files are collected and again before the first run; each time with a
    registry that knows the built-in faults only. `docs/faults.md` shows how a fault is written.
    """
