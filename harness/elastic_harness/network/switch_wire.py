"""What is said to a switch and what it answers, as JSON values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from elastic_harness.network.link_model import (
    BurstLoss,
    Distribution,
    DropReason,
    Flap,
    Layers,
    LinkCounters,
    LinkMode,
    LinkPolicy,
    Pair,
)

__all__ = [
    "counters_from_fields",
    "counters_to_fields",
    "layers_from_fields",
    "layers_to_fields",
    "policy_from_fields",
    "policy_to_fields",
]

_PLAIN = (
    "up",
    "latency_s",
    "jitter_s",
    "loss",
    "duplicate",
    "reorder",
    "corrupt",
    "rate_bytes_per_s",
    "resets",
)
_COUNTS = ("packets", "bytes", "delivered", "delayed", "duplicated")


def policy_to_fields(policy: LinkPolicy) -> dict[str, Any]:
    """Return a policy as a JSON object."""
    return {
        **{name: getattr(policy, name) for name in _PLAIN},
        "mode": policy.mode.value,
        "distribution": policy.distribution.value,
        "bursts": [[burst.enter, burst.leave, burst.loss] for burst in policy.bursts],
        "flaps": [[flap.down_s, flap.up_s, flap.mode.value] for flap in policy.flaps],
    }


def policy_from_fields(fields: Mapping[str, Any]) -> LinkPolicy:
    """Return the policy that a JSON object stands for."""
    return LinkPolicy(
        **{name: fields[name] for name in _PLAIN},
        mode=LinkMode(fields["mode"]),
        distribution=Distribution(fields["distribution"]),
        bursts=tuple(
            BurstLoss(enter=enter, leave=leave, loss=loss)
            for enter, leave, loss in fields["bursts"]
        ),
        flaps=tuple(
            Flap(down_s=down_s, up_s=up_s, mode=LinkMode(mode))
            for down_s, up_s, mode in fields["flaps"]
        ),
    )


def layers_to_fields(layers: Layers) -> list[list[Any]]:
    """Return the layers of a link as JSON rows, in their order."""
    return [[owner, policy_to_fields(policy)] for owner, policy in layers]


def layers_from_fields(rows: Sequence[Sequence[Any]]) -> Layers:
    """Return the layers that JSON rows stand for."""
    return tuple((owner, policy_from_fields(fields)) for owner, fields in rows)


def counters_to_fields(links: Mapping[Pair, LinkCounters]) -> list[list[Any]]:
    """Return the counters of links as JSON rows, in the order of the links' names."""
    return [[source, target, _row(links[source, target])] for source, target in sorted(links)]


def counters_from_fields(rows: Sequence[Sequence[Any]]) -> dict[Pair, LinkCounters]:
    """Return the counters of each link that the switch answered with."""
    return {(source, target): _counters(row) for source, target, row in rows}


def _row(counters: LinkCounters) -> dict[str, Any]:
    return {
        **{name: getattr(counters, name) for name in _COUNTS},
        "dropped": {reason.value: number for reason, number in counters.dropped.items()},
        "classes": {name: _row(each) for name, each in counters.classes.items()},
        "by_owner": counters.by_owner,
    }


def _counters(row: Mapping[str, Any]) -> LinkCounters:
    return LinkCounters(
        **{name: row[name] for name in _COUNTS},
        dropped={DropReason(reason): number for reason, number in row["dropped"].items()},
        classes={name: _counters(each) for name, each in row["classes"].items()},
        by_owner=row["by_owner"],
    )
