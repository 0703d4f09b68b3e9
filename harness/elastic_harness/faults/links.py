"""Policies in layers: several faults may lie over one link, and each is taken away by itself."""

from __future__ import annotations

from collections.abc import Sequence

from elastic_harness.network.link_model import HEALTHY, LinkPolicy, Pair

__all__ = ["LinkLayers", "combine"]


def combine(policies: Sequence[LinkPolicy]) -> LinkPolicy:
    """Return what several policies make of one link.

    Down if any is down (in the mode of the latest of those); delays add up; a packet must survive
    every loss; the slowest rate holds.
    """
    down = [policy for policy in policies if not policy.up]
    rates = [p.rate_bytes_per_s for p in policies if p.rate_bytes_per_s is not None]
    survives = repeats_not = keeps_turn = 1.0
    for policy in policies:
        survives *= 1 - policy.loss
        repeats_not *= 1 - policy.duplicate
        keeps_turn *= 1 - policy.reorder
    if not policies:
        return HEALTHY
    return LinkPolicy(
        up=not down,
        mode=down[-1].mode if down else HEALTHY.mode,
        latency_s=sum(policy.latency_s for policy in policies),
        jitter_s=sum(policy.jitter_s for policy in policies),
        loss=1 - survives,
        duplicate=1 - repeats_not,
        reorder=1 - keeps_turn,
        rate_bytes_per_s=min(rates) if rates else None,
    )


class LinkLayers:
    """Who has laid what over which link. Both methods return the links to change, by new policy."""

    def __init__(self) -> None:
        self._layers: dict[Pair, dict[str, LinkPolicy]] = {}

    def impose(
        self, owner: str, pairs: Sequence[Pair], policy: LinkPolicy
    ) -> list[tuple[LinkPolicy, list[Pair]]]:
        """Lay a policy over links; an owner's earlier one on the same link is replaced."""
        for pair in pairs:
            self._layers.setdefault(pair, {})[owner] = policy
        return self._changes(pairs)

    def lift(self, owner: str) -> list[tuple[LinkPolicy, list[Pair]]]:
        """Take away everything of an owner."""
        touched = [pair for pair, layers in self._layers.items() if layers.pop(owner, None)]
        return self._changes(touched)

    def _changes(self, pairs: Sequence[Pair]) -> list[tuple[LinkPolicy, list[Pair]]]:
        changes: dict[LinkPolicy, list[Pair]] = {}
        for pair in dict.fromkeys(pairs):
            policy = combine(list(self._layers.get(pair, {}).values()))
            changes.setdefault(policy, []).append(pair)
        return list(changes.items())
