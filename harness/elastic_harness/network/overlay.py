"""Several faults on one link: what each has laid over it, and what that makes together.

Pure. The owner of a layer may take it away again, in any order; what remains is what the others
laid. Overlapping partitions are down together: a link is up when no layer cuts it. Layers for a
class of traffic are kept apart from those for everything: a packet meets both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from elastic_harness.network.link_model import Layers, LinkPolicy, Pair

__all__ = ["Overlay", "Place"]

# A link, and the class of its traffic that a layer is for (None: everything).
Place = tuple[Pair, str | None]


class Overlay:
    """The layers on all links."""

    def __init__(self) -> None:
        self._layers: dict[Place, dict[str, LinkPolicy]] = {}

    def impose(
        self, owner: str, pairs: Sequence[Pair], policy: LinkPolicy, *, traffic: str | None = None
    ) -> Mapping[Place, Layers]:
        """Lay `policy` over links (replacing what `owner` has there); return what is there now."""
        places = [(pair, traffic) for pair in pairs]
        for place in places:
            self._layers.setdefault(place, {})[owner] = policy
        return {place: tuple(self._layers[place].items()) for place in places}

    def lift(self, owner: str) -> Mapping[Place, Layers]:
        """Take away everything that `owner` laid; return what is left on those links."""
        changed: dict[Place, Layers] = {}
        for place, layers in self._layers.items():
            if layers.pop(owner, None) is not None:
                changed[place] = tuple(layers.items())
        return changed
