"""The ports on which a node may listen, where a firewall lets only some through. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["PortRange"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PortRange:
    """The TCP ports on which this node may listen: `first` to `last`, both included."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"

    def after(self, port: int) -> Sequence[int]:
        """Return every port of the range once, beginning with the one behind `port`."""
        ports = range(self.first, self.last + 1)
        begin = (port + 1 - self.first) % len(ports)
        return (*ports[begin:], *ports[:begin])
