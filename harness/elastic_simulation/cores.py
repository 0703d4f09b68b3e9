"""Which core the nodes of a simulated world run: the present one, or the Raft-shaped one."""

from __future__ import annotations

from typing import Any

from elastic_simulation.granted import GrantedWorld
from elastic_simulation.raft_granted import RaftGrantedWorld
from elastic_simulation.raft_world import RaftWorld
from elastic_simulation.random_faults import health, raft_health
from elastic_simulation.world import World
from pytest_elastic.rendezvous.model import Settings

__all__ = ["CORES", "choose_core", "health_of", "is_raft", "world_class"]

CORES = ("present", "raft")
_chosen = CORES[0]


def choose_core(name: str) -> None:
    """Let all worlds that are made from here on run a core of `CORES`."""
    global _chosen  # noqa: PLW0603 (until there is one core again)
    assert name in CORES, f"{name!r} is none of {CORES}"
    _chosen = name


def is_raft() -> bool:
    """Tell whether it is the Raft-shaped one."""
    return _chosen == "raft"


def world_class(settings: Settings) -> type[World]:
    """Return the world for a job of these settings."""
    if is_raft():
        return RaftGrantedWorld if settings.is_granted else RaftWorld
    return GrantedWorld if settings.is_granted else World


def health_of(world: World, **named: Any) -> health.Health:  # noqa: ANN401 (those of either)
    """Say what is not well yet; see `random_faults.health.health_of`."""
    judge = raft_health.health_of if is_raft() else health.health_of
    return judge(world, **named)
