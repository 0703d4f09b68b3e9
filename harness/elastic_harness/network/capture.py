"""What passed over links, in a file that tcpdump and scapy read.

The format is pcapng (draft-ietf-opsawg-pcapng): one interface for each link, named `n1>n2`, bare
IPv4 packets, times of the machine's clock, and with every packet a comment that says what became of
it (`delivered`, `dropped: lost`, `late by 0.2 s`). Packets are written as they came into the link.

The kernel leaves checksums and segments to the card: a packet may be 64 kB long and its checksum
unfinished, as in any capture on a machine with offloads.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Sequence
from typing import BinaryIO

from elastic_harness.network.link_model import Decision, DecisionKind, Pair

__all__ = ["MAX_BYTES", "SNAP_BYTES", "Capture", "Captures", "describe_decision"]

# Enough of each packet for all headers and the beginning of what is said.
SNAP_BYTES = 256
# A capture that is forgotten must not fill a disk; at 300 bytes each, 200 000 packets.
MAX_BYTES = 64 << 20

_SECTION, _INTERFACE, _PACKET = 0x0A0D0D0A, 1, 6
_BYTE_ORDER = 0x1A2B3C4D
# IPv4 without anything around it. (LINKTYPE_RAW would say so too, but libpcap 1.10, which tcpdump
# reads with, mistakes the second interface of that type for one of another type.)
_LINKTYPE_IPV4 = 228
_END, _COMMENT, _INTERFACE_NAME = 0, 1, 2
_ANY_LENGTH = 0xFFFFFFFFFFFFFFFF


class Capture:
    """Writes to a file that is its own from then on; `now` is on the clock of `started_at`."""

    def __init__(self, file: BinaryIO, *, started_at: float) -> None:
        self._file = file
        self._offset_s = time.time() - started_at
        self._interfaces: dict[Pair, int] = {}
        self._written = 0
        self.packets = 0
        self._write(
            _SECTION, struct.pack("<IHHQ", _BYTE_ORDER, 1, 0, _ANY_LENGTH) + _option(_END, b"")
        )

    @property
    def is_full(self) -> bool:
        """Tell whether the file has become as long as it may."""
        return self._written >= MAX_BYTES

    def add(self, pair: Pair, packet: bytes, now: float, comment: str) -> None:
        """Write down a packet that came into a link, and what became of it."""
        if self.is_full:
            return
        interface = self._interfaces.get(pair)
        if interface is None:
            interface = self._interfaces[pair] = len(self._interfaces)
            name = _option(_INTERFACE_NAME, f"{pair[0]}>{pair[1]}".encode())
            body = struct.pack("<HHI", _LINKTYPE_IPV4, 0, SNAP_BYTES) + name + _option(_END, b"")
            self._write(_INTERFACE, body)
        micros = int((now + self._offset_s) * 1e6)
        kept = packet[:SNAP_BYTES]
        head = struct.pack(
            "<IIIII", interface, micros >> 32, micros & 0xFFFFFFFF, len(kept), len(packet)
        )
        body = head + _padded(kept) + _option(_COMMENT, comment.encode()) + _option(_END, b"")
        self._write(_PACKET, body)
        self.packets += 1

    def flush(self) -> None:
        """Have everything that was written in the file."""
        self._file.flush()

    def close(self) -> None:
        """End the capture."""
        self._file.close()

    def _write(self, kind: int, body: bytes) -> None:
        length = 12 + len(body)
        block = struct.pack("<II", kind, length) + body + struct.pack("<I", length)
        self._file.write(block)
        self._written += length


class Captures:
    """The captures of a switch, by id. A packet is written down once, in the oldest that asks."""

    def __init__(self) -> None:
        self._all: dict[str, tuple[Capture, list[Pair]]] = {}

    def begin(self, id: str, pairs: Sequence[Pair], fd: int, now: float) -> None:
        """Write what passes over these links to a file, whose descriptor is ours from now on."""
        self.end(id)
        self._all[id] = (Capture(os.fdopen(fd, "wb"), started_at=now), list(pairs))

    def find(self, pair: Pair) -> Capture | None:
        """Return where packets of a link are written down."""
        return next((capture for capture, pairs in self._all.values() if pair in pairs), None)

    def count(self, id: str) -> int:
        """Return how many packets a capture has, all of them in its file."""
        if id not in self._all:
            return 0
        capture, _ = self._all[id]
        capture.flush()
        return capture.packets

    def end(self, id: str) -> int:
        """End a capture and return how many packets it has; harmless twice."""
        if id not in self._all:
            return 0
        capture, _ = self._all.pop(id)
        capture.close()
        return capture.packets

    def end_all(self) -> None:
        """End every capture."""
        for id in list(self._all):
            self.end(id)


def describe_decision(decision: Decision, now: float) -> str:
    """Return in a few words what becomes of a packet."""
    if decision.kind is DecisionKind.HOLD:
        return "held"
    if decision.reason is not None:
        return f"dropped: {decision.reason.value}"
    late_s = max(decision.leave_at) - now
    words = [f"late by {late_s:.6f} s" if late_s > 0 else "delivered"]
    if len(decision.leave_at) > 1:
        words.append("twice")
    if decision.lost_units:
        words.append(f"without {len(decision.lost_units)} lost segments")
    if decision.corrupt_units:
        words.append(f"with {len(decision.corrupt_units)} corrupted segments")
    return ", ".join(words)


def _option(code: int, value: bytes) -> bytes:
    return struct.pack("<HH", code, len(value)) + _padded(value)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)
