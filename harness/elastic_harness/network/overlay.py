"""Several faults in one place: what each has laid over it, and what lies there together.

Pure. The owner of a layer may take it away again, in any order; what remains is what the others
laid.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

__all__ = ["Overlay"]

P = TypeVar("P")
V = TypeVar("V")


class Overlay(Generic[P, V]):
    """The layers on all places, by owner, the newest last."""

    def __init__(self) -> None:
        self._layers: dict[P, dict[str, V]] = {}

    def impose(self, owner: str, places: Iterable[P], layer: V) -> Mapping[P, Mapping[str, V]]:
        """Lay something over places, for what `owner` has there; return what is there now."""
        found = {}
        for place in places:
            layers = found[place] = self._layers.setdefault(place, {})
            layers.pop(owner, None)
            layers[owner] = layer
        return found

    def lift(self, owner: str) -> Mapping[P, Mapping[str, V]]:
        """Take away everything that `owner` laid; return what is left in those places."""
        changed = [place for place, layers in self._layers.items() if owner in layers]
        for place in changed:
            del self._layers[place][owner]
        return {place: self._layers[place] for place in changed}

    def of(self, place: P) -> Mapping[str, V]:
        """Return what lies over a place now."""
        return self._layers.get(place, {})
