"""The switch: a process through which every packet between nodes passes.

Each node's `eth0` is a TUN device whose descriptor was handed to us. A packet is read from one
descriptor and written to another; what happens in between is decided by the `Link` of that
direction. A link without a policy costs a dictionary-free look into a table and two system calls.

Nobody is ever told that an address does not exist: silence is what an unplugged machine answers.
"""

from __future__ import annotations

import contextlib
import errno
import heapq
import os
import random
import socket
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import assert_never

from elastic_harness.conversation import Conversation, Reply
from elastic_harness.network import packets
from elastic_harness.network.link_model import (
    DropReason,
    Fate,
    FateKind,
    Link,
    LinkCounters,
    LinkMode,
    LinkPolicy,
    Pair,
)
from pytest_elastic.boot.role import Program, Role
from pytest_elastic.channel import JsonObject
from pytest_elastic.loop import Loop, Timer

__all__ = [
    "Switch",
    "SwitchRole",
    "counters_from_fields",
    "policy_from_fields",
    "policy_to_fields",
]

_FRAME_BYTES = packets.FRAME_HEAD_BYTES + 65536
# Where the version and the last part of the destination are, in a frame.
_VERSION = packets.FRAME_HEAD_BYTES
_TARGET = packets.FRAME_HEAD_BYTES + 16
# How many packets of one node are passed on before the others get their turn: one reading of the
# clock and one epoll for that many, and still under a millisecond for 65 000-byte packets.
_BATCH = 32
# A held link keeps at most this much. A TCP connection never has more than its window under way.
_MAX_HELD_PACKETS = 8192


class _Port:
    """One attached device. `lanes` has, for each last octet of an address, the way there."""

    __slots__ = ("fd", "is_dark", "lanes", "name", "octet")

    def __init__(self, name: str, octet: int, fd: int) -> None:
        self.name = name
        self.octet = octet
        self.fd = fd
        self.is_dark = False
        self.lanes: list[_Lane | None] = [None] * 256


class _Lane:
    """The way from one port to another: its link, and whether packets simply pass."""

    __slots__ = ("is_clear", "link", "source", "target")

    def __init__(self, source: _Port, target: _Port, link: Link) -> None:
        self.source = source
        self.target = target
        self.link = link
        self.is_clear = link.policy.is_transparent


class Switch:
    """The table of ports and links, and what travels between them. Runs in a loop of its own."""

    def __init__(self, loop: Loop, control: socket.socket) -> None:
        self._loop = loop
        self._ports: dict[int, _Port] = {}
        self._links: dict[Pair, Link] = {}
        self._seed = ""
        self._buffer = bytearray(_FRAME_BYTES)
        self._view = memoryview(self._buffer)
        self._on_way: list[tuple[float, int, _Lane, bytes]] = []
        self._sent_off = 0
        self._timer: Timer | None = None
        self._held: dict[Pair, deque[tuple[_Lane, bytes]]] = {}
        self._held_packets = 0
        self._control = Conversation(
            loop, control, on_request=self._obey, on_closed=lambda _: loop.stop()
        )

    def close(self) -> None:
        """Close every device and the control connection."""
        for port in list(self._ports.values()):
            self._detach(port)
        self._control.close()

    # --- packets ------------------------------------------------------------------------------

    def _read(self, port: _Port) -> None:
        """Pass on what a node sends."""
        buffer, view, lanes = self._buffer, self._view, port.lanes
        for _ in range(_BATCH):
            try:
                size = os.readv(port.fd, (buffer,))
            except BlockingIOError:
                return
            except OSError:  # the device is going away: its node has ended
                return
            if buffer[_VERSION] >> 4 != 4 or buffer[_TARGET] != 10:  # multicast, to nobody here
                continue
            lane = lanes[buffer[_TARGET + 3]] or self._find_lane(port, buffer[_TARGET + 3])
            if lane is None:
                continue
            if not lane.is_clear:
                self._pass_slowly(lane, bytes(view[:size]))
                continue
            link = lane.link
            link.packets += 1
            link.bytes += size - _VERSION
            try:
                os.write(lane.target.fd, view[:size])
                link.delivered += 1
            except OSError as error:
                self._count_failed_write(lane, error)

    def _find_lane(self, port: _Port, octet: int) -> _Lane | None:
        target = self._ports.get(octet)
        if target is None:
            return None
        lane = _Lane(port, target, self._link((port.name, target.name)))
        lane.is_clear = lane.is_clear and not (port.is_dark or target.is_dark)
        port.lanes[octet] = lane
        return lane

    def _pass_slowly(self, lane: _Lane, frame: bytes) -> None:
        link = lane.link
        size = len(frame) - _VERSION
        if lane.source.is_dark or lane.target.is_dark:
            link.packets += 1
            link.bytes += size
            link.count_drop(DropReason.DOWN)
            return
        now = self._loop.now()
        units = packets.segments_in(frame)
        fate = link.offer(size, packets.flow_of(frame), now, units=units)
        self._carry_out(lane, frame, fate, now)

    def _carry_out(self, lane: _Lane, frame: bytes, fate: Fate, now: float) -> None:
        match fate.kind:
            case FateKind.LEAVE:
                parts = packets.carve(frame, fate.lost_units) if fate.lost_units else (frame,)
                for when in fate.leave_at:
                    for part in parts:
                        self._send(lane, part, when, now)
                self._wake_for_next()
            case FateKind.HOLD:
                self._hold(lane, frame)
            case FateKind.REJECT:
                answer = packets.refusal_of(frame[_VERSION:])
                if answer is not None:
                    with contextlib.suppress(OSError):
                        os.write(lane.source.fd, packets.frame_of(answer))
            case FateKind.DROP:
                pass
            case _:
                assert_never(fate.kind)

    def _send(self, lane: _Lane, frame: bytes, when: float, now: float) -> None:
        if when <= now:
            self._deliver(lane, frame)
        else:
            self._sent_off += 1
            heapq.heappush(self._on_way, (when, self._sent_off, lane, frame))

    def _deliver(self, lane: _Lane, packet: bytes) -> None:
        if lane.target.fd < 0 or lane.target.is_dark or lane.source.is_dark:
            lane.link.count_drop(DropReason.DOWN)
            return
        try:
            os.write(lane.target.fd, packet)
        except OSError as error:
            self._count_failed_write(lane, error)
        else:
            lane.link.count_delivery()

    def _count_failed_write(self, lane: _Lane, error: OSError) -> None:
        """Count a packet that a device did not take; a device whose node has ended is no fault."""
        is_gone = error.errno in {errno.EBADF, errno.EIO, errno.EBADFD}
        lane.link.count_drop(DropReason.DOWN if is_gone else DropReason.DEVICE)

    def _hold(self, lane: _Lane, packet: bytes) -> None:
        if self._held_packets >= _MAX_HELD_PACKETS:
            lane.link.count_drop(DropReason.HOLD_FULL)
            return
        self._held_packets += 1
        pair = (lane.source.name, lane.target.name)
        self._held.setdefault(pair, deque()).append((lane, packet))

    def _release(self, pair: Pair) -> None:
        """Send what a link held, in order, under the policy that holds now."""
        queue = self._held.pop(pair, deque())
        self._held_packets -= len(queue)
        now = self._loop.now()
        for lane, packet in queue:
            if lane.target.fd < 0:
                lane.link.count_drop(DropReason.DOWN)
                continue
            size, units = len(packet) - _VERSION, packets.segments_in(packet)
            fate = lane.link.decide(size, packets.flow_of(packet), now, units=units)
            self._carry_out(lane, packet, fate, now)

    def _wake_for_next(self) -> None:
        if not self._on_way:
            return
        when = self._on_way[0][0]
        if self._timer is not None and not self._timer.is_cancelled:
            if self._timer.when <= when:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._deliver_due)

    def _deliver_due(self) -> None:
        now = self._loop.now()
        while self._on_way and self._on_way[0][0] <= now:
            _, _, lane, packet = heapq.heappop(self._on_way)
            if lane.link.may_deliver():
                self._deliver(lane, packet)
            elif lane.link.policy.mode is LinkMode.HOLD:
                self._hold(lane, packet)
            else:
                lane.link.count_drop(DropReason.DOWN)
        self._wake_for_next()

    # --- orders -------------------------------------------------------------------------------

    def _obey(self, op: str, fields: JsonObject, fds: list[int], reply: Reply) -> None:
        match op:
            case "attach":
                self._attach(fields["name"], fields["octet"], fds[0])
            case "detach":
                self._detach_name(fields["name"])
            case "darken":
                self._darken(fields["name"])
            case "set_policy":
                self._set_policy(fields["pairs"], policy_from_fields(fields["policy"]))
            case "counters":
                reply.done({"links": self._count()})
                return
            case "reset":
                self._reset(fields["seed"])
            case _:
                reply.failed(f"the switch does not know how to '{op}'")
                return
        reply.done({"ports": sorted(port.name for port in self._ports.values())})

    def _attach(self, name: str, octet: int, fd: int) -> None:
        old = self._ports.get(octet)
        if old is not None:
            self._detach(old)
        os.set_blocking(fd, False)
        port = self._ports[octet] = _Port(name, octet, fd)
        self._loop.watch(fd, on_readable=lambda: self._read(port))

    def _detach_name(self, name: str) -> None:
        for port in list(self._ports.values()):
            if port.name == name:
                self._detach(port)

    def _detach(self, port: _Port) -> None:
        self._loop.unwatch(port.fd)
        os.close(port.fd)
        port.fd = -1
        del self._ports[port.octet]
        for other in self._ports.values():
            other.lanes[port.octet] = None

    def _darken(self, name: str) -> None:
        """Let nothing of a node through any more, whatever becomes of its links' policies."""
        for port in self._ports.values():
            if port.name == name:
                port.is_dark = True
                self._forget_lanes(port)

    def _forget_lanes(self, port: _Port) -> None:
        port.lanes[:] = [None] * 256
        for other in self._ports.values():
            other.lanes[port.octet] = None

    def _set_policy(self, pairs: Sequence[Sequence[str]], policy: LinkPolicy) -> None:
        for source, target in pairs:
            self._link((source, target)).change_policy(policy)
        for port in self._ports.values():
            for lane in port.lanes:
                if lane is not None:
                    dark = lane.source.is_dark or lane.target.is_dark
                    lane.is_clear = lane.link.policy.is_transparent and not dark
        for source, target in pairs:
            if policy.up or policy.mode is not LinkMode.HOLD:
                self._release((source, target))

    def _link(self, pair: Pair) -> Link:
        link = self._links.get(pair)
        if link is None:
            # A stream for each link: a packet more on one moves no draw of another.
            stream = random.Random(f"{self._seed}:link:{pair[0]}>{pair[1]}")
            link = self._links[pair] = Link(stream)
        return link

    def _count(self) -> list[list[Any]]:
        rows: list[list[Any]] = []
        for (source, target), link in sorted(self._links.items()):
            count = link.counters()
            dropped = {reason.value: number for reason, number in count.dropped.items()}
            rows.append([source, target, count.packets, count.bytes, count.delivered, dropped])
        return rows

    def _reset(self, seed: str) -> None:
        """Take everything off and forget all links."""
        for port in list(self._ports.values()):
            self._detach(port)
        self._links.clear()
        self._on_way.clear()
        self._held.clear()
        self._held_packets = 0
        self._seed = seed


def policy_to_fields(policy: LinkPolicy) -> dict[str, Any]:
    """Return a policy as a JSON object."""
    return {
        "up": policy.up,
        "mode": policy.mode.value,
        "latency_s": policy.latency_s,
        "jitter_s": policy.jitter_s,
        "loss": policy.loss,
        "duplicate": policy.duplicate,
        "reorder": policy.reorder,
        "rate_bytes_per_s": policy.rate_bytes_per_s,
    }


def policy_from_fields(fields: Mapping[str, Any]) -> LinkPolicy:
    """Return the policy that a JSON object stands for."""
    return LinkPolicy(**{**fields, "mode": LinkMode(fields["mode"])})


def counters_from_fields(rows: Sequence[Sequence[Any]]) -> dict[Pair, LinkCounters]:
    """Return the counters of each link that the switch answered with."""
    return {
        (source, target): LinkCounters(
            packets=offered,
            bytes=size,
            delivered=delivered,
            dropped={DropReason(reason): number for reason, number in dropped.items()},
        )
        for source, target, offered, size, delivered, dropped in rows
    }


class SwitchRole:
    """The process that is the switch; it ends when its control connection does."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control

    def run(self) -> Role | Program:
        """Serve; never returns."""
        loop = Loop()
        Switch(loop, self._control)
        loop.run()
        os._exit(0)
