"""The played world that fits a job's settings."""

from __future__ import annotations

from typing import Any

from elastic_simulation.granted import GrantedWorld
from elastic_simulation.world import World, settings
from pytest_elastic.rendezvous.settings import Settings

__all__ = ["formed", "new_world", "world_class"]


def world_class(config: Settings) -> type[World]:
    """Return the world for a job of these settings."""
    return GrantedWorld if config.is_granted else World


def new_world(config: Settings, **named: Any) -> World:  # noqa: ANN401 (those of World)
    """Return a world for a job of these settings."""
    return world_class(config)(config, **named)


def formed(
    *names: str, nodes: str = "", after_s: float = 2.0, config: Settings | None = None
) -> World:
    """Return a world whose first round has run for a while on these nodes."""
    world = new_world(config or settings(nodes or f"{len(names)}:{len(names)}"))
    world.start(*names)
    world.run_until(lambda: world.all_run(*names), within_s=5.0)
    world.run(after_s)
    return world
