"""What is measured: one fault each, from its injection to the first all-reduce after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_elastic.rdzv_conf import RendezvousConf

__all__ = ["CASES", "Case"]

_DEFAULTS = RendezvousConf()
# What a user gets who says nothing; the harness's own pace is four times as quick.
_PRODUCTION = {
    "beat_interval": f"{_DEFAULTS.beat_interval_s:g}",
    "lease": f"{_DEFAULTS.lease_s:g}",
    "drift": f"{_DEFAULTS.drift_s:g}",
    "min_round": f"{_DEFAULTS.min_round_s:g}",
    "newcomer_window": f"{_DEFAULTS.newcomer_window_s:g}",
    "linger": f"{_DEFAULTS.linger_s:g}",
    "store_timeout": f"{_DEFAULTS.store_timeout_s:g}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One measurement on 3 nodes with 2 workers each.

    `action` and `value` are a fault of the scenario vocabulary (none: forming is measured).
    `world_size` is what the job comes back with. `target` is the ratio to torchrun that must be
    reached, `target_s` an absolute bound where torchrun never comes back. `torchrun_limit_s` is how
    long torchrun is waited for. `conf` are settings of the rendezvous, where the pace of the
    harness is not meant; torchrun has no such settings, so it is not measured again. `args` are the
    worker's own.
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
    conf: Mapping[str, str] = field(default_factory=dict)
    args: tuple[str, ...] = ()


CASES = (
    Case(name="form", title="form the job", target=1 / 15),
    Case(
        name="worker-killed",
        title="one worker killed",
        action="kill",
        value="rank 3",
        target=1 / 15,
    ),
    # Above the grace of a failure, 3 s, there is what any failure costs.
    Case(
        name="peers-stuck",
        title="one worker killed, peers stuck in a collective",
        action="kill",
        value="rank 3",
        target=1 / 6,
        args=("--stuck",),
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
    # The node that hosts the endpoint's store, and with it the coordinator and rank 0.
    Case(
        name="store-host-killed",
        title="the agent of the store host is killed",
        action="kill_agent",
        value="store host",
        world_size=4,
        target_s=2.0,
        torchrun_limit_s=20.0,
    ),
    Case(
        name="store-host-crashes",
        title="the store host crashes (sockets close, no keeper is left to say so)",
        action="crash",
        value="store host",
        world_size=4,
        target_s=2.0,
        torchrun_limit_s=20.0,
    ),
    Case(
        name="store-host-power-cut",
        title="the store host loses power (silence)",
        action="power_cut",
        value="store host",
        world_size=4,
        target_s=2.0,
        torchrun_limit_s=20.0,
    ),
    Case(
        name="store-host-frozen",
        title="the store host is frozen (SIGSTOP)",
        action="pause",
        value={"node": "store host"},
        world_size=4,
        target_s=5.0,
        torchrun_limit_s=20.0,
    ),
    Case(
        name="store-host-killed-production",
        title="the agent of the store host is killed, production's pace",
        action="kill_agent",
        value="store host",
        world_size=4,
        target_s=12.0,
        conf=_PRODUCTION,
    ),
    Case(
        name="store-host-power-cut-production",
        title="the store host loses power, production's pace",
        action="power_cut",
        value="store host",
        world_size=4,
        target_s=12.0,
        conf=_PRODUCTION,
    ),
    Case(
        name="store-host-frozen-production",
        title="the store host is frozen, production's pace",
        action="pause",
        value={"node": "store host"},
        world_size=4,
        target_s=12.0,
        conf=_PRODUCTION,
    ),
)
