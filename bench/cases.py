"""What is measured: one fault each, from its injection to the first all-reduce after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["CASES", "Case"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One measurement on 3 nodes with 2 workers each.

    `action` and `value` are a fault of the scenario vocabulary (none: forming is measured).
    `world_size` is what the job comes back with. `target` is the ratio to torchrun that must be
    reached, `target_s` an absolute bound where torchrun never comes back. `torchrun_limit_s` is how
    long torchrun is waited for.
    """

    name: str
    title: str
    action: str | None = None
    value: object = None
    nodes: Mapping[str, int] = field(default_factory=lambda: {"initial": 3, "min": 2, "max": 3})
    world_size: int = 6
    target: float | None = None
    target_s: float | None = None
    torchrun_limit_s: float = 90.0


CASES = (
    Case(name="form", title="form the job", target=1 / 15),
    Case(
        name="worker-killed",
        title="one worker killed",
        action="kill",
        value="rank 3",
        target=1 / 15,
    ),
    Case(
        name="node-crashes",
        title="a node crashes (sockets close)",
        action="crash",
        value="n3",
        world_size=4,
        target=1 / 40,
    ),
    Case(
        name="node-leaves",
        title="a node leaves (SIGTERM)",
        action="leave",
        value="n3",
        world_size=4,
        target=1 / 40,
    ),
    Case(
        name="node-joins",
        title="a node joins",
        action="join",
        value={"nodes": 1},
        nodes={"initial": 2, "min": 2, "max": 3},
        world_size=6,
        target=1 / 10,
        torchrun_limit_s=120.0,
    ),
    Case(
        name="power-cut",
        title="a node loses power (silence)",
        action="power_cut",
        value="n3",
        world_size=4,
        target_s=3.0,
        torchrun_limit_s=20.0,
    ),
)
