"""Where a switch's packets come from and go to: ports, and the lanes between them."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from functools import partial

from elastic_harness.network import packets
from elastic_harness.network.capture import Capture
from elastic_harness.network.link_model import Link, Traffic
from elastic_harness.network.traffic import TrafficTable

__all__ = ["Lane", "Packet", "Port"]

# How many flows' classes a lane remembers before it forgets them all.
_MAX_KNOWN_FLOWS = 4096


class Port:
    """One attached device, or (`fd` -1) a node of another machine, which `put` sends frames to.

    `lanes` has, for each last octet of an address, the way there.
    """

    __slots__ = ("fd", "is_attached", "is_dark", "lanes", "name", "octet", "put")

    def __init__(
        self,
        name: str,
        octet: int,
        fd: int,
        put: Callable[[bytes | memoryview], object] | None = None,
    ) -> None:
        self.name = name
        self.octet = octet
        self.fd = fd
        # No function of ours around the call: it is made for every packet.
        self.put = put or partial(os.write, fd)
        self.is_attached = True
        self.is_dark = False
        self.lanes: list[Lane | None] = [None] * 256

    def detach(self) -> None:
        """Take no more packets."""
        self.fd, self.put, self.is_attached = -1, _refuse, False


def _refuse(_: bytes | memoryview) -> None:
    raise OSError(errno.EBADF, "the port is detached")


class Lane:
    """The way from one port to another: its link, and whether packets simply pass."""

    __slots__ = ("capture", "is_clear", "known_flows", "link", "pair", "source", "target")

    def __init__(self, source: Port, target: Port, link: Link, capture: Capture | None) -> None:
        self.source = source
        self.target = target
        self.pair = (source.name, target.name)
        self.link = link
        self.capture = capture
        self.known_flows: dict[bytes, Traffic] = {}
        self.is_clear = False

    @property
    def is_dark(self) -> bool:
        """Tell whether nothing may pass, whatever the link's policy."""
        return self.source.is_dark or self.target.is_dark or not self.target.is_attached

    def clear_up(self, now: float) -> None:
        """Look whether packets may simply pass from now on."""
        self.is_clear = (
            self.link.is_transparent
            and self.capture is None
            and not self.is_dark
            and self.link.is_settled(now)
        )

    def classes_of(self, frame: bytes, flow: bytes, table: TrafficTable) -> Traffic:
        """Return the classes of a packet."""
        known = self.known_flows.get(flow)
        if known is None:
            if len(self.known_flows) >= _MAX_KNOWN_FLOWS:
                self.known_flows.clear()
            known = self.known_flows[flow] = table.classes_of(packets.ends_of(frame))
        return known


class Packet:
    """A packet that could not simply pass; `number` counts them as they came to the switch.

    One that `is_decided` was on its way already: its link has nothing more to decide.
    """

    __slots__ = ("flow", "frame", "is_decided", "lane", "number", "size", "traffic")

    def __init__(
        self, lane: Lane, frame: bytes, flow: bytes, traffic: Traffic, number: int
    ) -> None:
        self.lane = lane
        self.number = number
        self.frame = frame
        self.flow = flow
        self.traffic = traffic
        self.is_decided = False
        # In bytes, as a node sees it.
        self.size = len(frame) - packets.FRAME_HEAD_BYTES

    def as_decided(self, frame: bytes) -> Packet:
        """Return what of it was on its way, to be held there."""
        made = Packet(self.lane, frame, self.flow, self.traffic, self.number)
        made.is_decided = True
        return made
