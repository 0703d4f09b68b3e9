"""Several faults on one link: what each has laid over it, and what that makes together.

Pure. Whoever owns a layer may take it away again, in any order; what remains is what the others
laid. Overlapping partitions are down together: a link is up when no layer cuts it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from elastic_harness.network.link_model import HEALTHY, LinkMode, LinkPolicy, Pair

__all__ = ["Overlay", "combine"]

# What a packet meets first on a link with several faults: a cut that answers, one that swallows,
# one that only delays.
_STRENGTH = (LinkMode.REJECT, LinkMode.DROP, LinkMode.HOLD)


def combine(policies: Iterable[LinkPolicy]) -> LinkPolicy:
    """Return the policy of a link that has all of these.

    Delays add up, chances combine as those of links in a row, the narrowest rate holds.
    """
    layers = list(policies)
    if not layers:
        return HEALTHY
    cut = [layer.mode for layer in layers if not layer.up]
    rates = [layer.rate_bytes_per_s for layer in layers if layer.rate_bytes_per_s is not None]
    return LinkPolicy(
        up=not cut,
        mode=min(cut, key=_STRENGTH.index) if cut else LinkMode.DROP,
        latency_s=sum(layer.latency_s for layer in layers),
        jitter_s=sum(layer.jitter_s for layer in layers),
        loss=_any_of(layer.loss for layer in layers),
        duplicate=_any_of(layer.duplicate for layer in layers),
        reorder=_any_of(layer.reorder for layer in layers),
        rate_bytes_per_s=min(rates, default=None),
    )


def _any_of(chances: Iterable[float]) -> float:
    none = 1.0
    for chance in chances:
        none *= 1.0 - chance
    return 1.0 - none


class Overlay:
    """The layers on all links."""

    def __init__(self) -> None:
        self._layers: dict[Pair, dict[str, LinkPolicy]] = {}

    def impose(
        self, owner: str, pairs: Sequence[Pair], policy: LinkPolicy
    ) -> Mapping[Pair, LinkPolicy]:
        """Lay `policy` over links (replacing what `owner` has there); return what holds now."""
        for pair in pairs:
            self._layers.setdefault(pair, {})[owner] = policy
        return {pair: combine(self._layers[pair].values()) for pair in pairs}

    def lift(self, owner: str) -> Mapping[Pair, LinkPolicy]:
        """Take away everything that `owner` laid; return what now holds on those links."""
        changed: dict[Pair, LinkPolicy] = {}
        for pair, layers in self._layers.items():
            if layers.pop(owner, None) is not None:
                changed[pair] = combine(layers.values())
        return changed
