"""The switch: a process through which every packet between nodes passes.

Each node's `eth0` is a TUN device whose descriptor was handed to us. A packet is read from one
descriptor and written to another; what happens in between is decided by the `Link` of that
direction. A link without a policy costs a dictionary-free look into a table and two system calls.

Where nodes are on several machines, each has a switch for its own, and a trunk to every other. What
happens to a packet is decided where it comes from; on its target's machine it is only delivered.

A sender is never told that an address does not exist: an unplugged machine is silent.
"""

from __future__ import annotations

import contextlib
import errno
import heapq
import os
import socket
from collections.abc import Sequence

import msgspec
from typing_extensions import assert_never

from elastic_harness.conversation import Answer, Conversation, Reply
from elastic_harness.future import Future, gather
from elastic_harness.network import packets
from elastic_harness.network.alarm import Alarm
from elastic_harness.network.capture import Captures, describe_decision
from elastic_harness.network.lane import Lane, Packet, Port
from elastic_harness.network.link_counters import rows_of
from elastic_harness.network.link_model import (
    NO_CLASS,
    Decision,
    DecisionKind,
    DropReason,
    Layers,
    Link,
    LinkMode,
    Pair,
    Traffic,
)
from elastic_harness.network.traffic import TrafficTable
from elastic_harness.network.trunk import Trunk, trunk_over
from pytest_elastic.boot.role import Program, Role
from pytest_elastic.channel import JsonObject
from pytest_elastic.loop import Loop, Timer

__all__ = ["Switch", "SwitchRole"]

_FRAME_BYTES = packets.FRAME_HEAD_BYTES + 65536
# Where the version and the destination are, in a frame.
_VERSION = packets.FRAME_HEAD_BYTES
_TARGET = packets.FRAME_HEAD_BYTES + 16
_LEAST_FRAME_BYTES = packets.FRAME_HEAD_BYTES + 20
# How many packets of one node are passed on before the others get their turn: one reading of the
# clock and one epoll for that many, and still under a millisecond for 65 000-byte packets.
_BATCH = 32
# What is due so soon is due now: waiting for it would take longer.
_AT_ONCE_S = 1e-6
# Held links keep at most this much. A TCP connection never has more than its window under way.
_MAX_HELD_PACKETS = 8192
# And so much may be on its way on slow links, all together.
_MAX_PACKETS_ON_WAY = 65536
# Orders that are carried out when nothing that was sent before is on its way in a trunk any more.
_FLUSHES_TRUNKS = frozenset({"darken", "detach"})
# What writing to a device says whose node has ended.
_NODE_IS_GONE = frozenset({errno.EBADF, errno.EIO, errno.EBADFD})


class Switch:
    """The table of ports and links, and what travels between them. Runs in a loop of its own."""

    def __init__(self, loop: Loop, control: socket.socket) -> None:
        self._loop = loop
        self._ports: dict[int, Port] = {}
        self._trunks: dict[int, Trunk] = {}  # by the number of the machine at the other end
        self._undelivered = 0
        self._links: dict[Pair, Link] = {}
        self._traffic = TrafficTable()
        self._captures = Captures()
        self._seed = ""
        self._buffer = bytearray(_FRAME_BYTES)
        self._view = memoryview(self._buffer)
        self._on_way: list[tuple[float, int, Packet, bytes]] = []
        self._sent_off = 0
        self._came = 0
        self._alarm = Alarm(loop, lambda: self._deliver_due(loop.now()))
        self._held: dict[Pair, list[Packet]] = {}
        self._waiting: list[tuple[Timer, Reply]] = []  # policies that come into force later
        self._held_packets = 0
        self._control = Conversation(
            loop, control, on_request=self._obey, on_closed=lambda _: loop.stop()
        )

    def close(self) -> None:
        """Close every device and the control connection."""
        for port in list(self._ports.values()):
            self._detach(port)
        for trunk in self._trunks.values():
            trunk.close()
        self._alarm.close()
        self._control.close()

    # --- packets ------------------------------------------------------------------------------

    def _read(self, port: Port) -> None:
        """Pass on what a node sends."""
        buffer, view, lanes = self._buffer, self._view, port.lanes
        for _ in range(_BATCH):
            try:
                size = os.readv(port.fd, (buffer,))
            except BlockingIOError:
                return
            except OSError:  # the device is going away: its node has ended
                return
            if buffer[_VERSION] >> 4 != 4 or buffer[_TARGET] != 10:  # multicast, or not for a node
                continue
            lane = lanes[buffer[_TARGET + 3]] or self._find_lane(port, buffer[_TARGET + 3])
            if lane is None:
                continue
            if not lane.is_clear:
                self._pass_slowly(lane, bytes(view[:size]))
                continue
            try:
                lane.target.put(view[:size])
            except OSError as error:
                lane.link.count_offer(size - _VERSION)
                self._count_failed_write(lane, error, NO_CLASS)
            else:
                lane.link.count_pass(size - _VERSION)

    def _find_lane(self, port: Port, octet: int) -> Lane | None:
        target = self._ports.get(octet)
        if target is None:
            return None
        pair = (port.name, target.name)
        lane = Lane(port, target, self._link(pair), self._captures.find(pair))
        lane.clear_up(self._loop.now())
        port.lanes[octet] = lane
        return lane

    def _pass_slowly(self, lane: Lane, frame: bytes) -> None:
        flow = packets.flow_of(frame)
        link = lane.link
        traffic = lane.classes_of(frame, flow, self._traffic) if link.tells_apart else NO_CLASS
        self._came += 1
        packet = Packet(lane, frame, flow, traffic, self._came)
        link.count_offer(packet.size, traffic)
        now = self._loop.now()
        if self._on_way and self._on_way[0][0] <= now:
            self._deliver_due(now)  # its timer is late, and this packet must not overtake any
        if lane.is_dark:
            link.count_drop(DropReason.DOWN, traffic=packet.traffic)
            return
        if link.is_transparent:
            # The last one that has to look, unless something is still on its way.
            lane.clear_up(now)
        self._decide(packet, now)

    def _decide(self, packet: Packet, now: float) -> None:
        lane, frame = packet.lane, packet.frame
        link = lane.link
        decision = link.decide(
            packet.size,
            packet.flow,
            now,
            units=packets.segments_in(frame) if link.loses else None,
            opens=packets.opens_connection(frame) if link.resets else None,
            traffic=packet.traffic,
        )
        if lane.capture is not None:
            lane.capture.add(lane.pair, frame[_VERSION:], now, describe_decision(decision, now))
        self._carry_out(packet, decision, now)

    def _carry_out(self, packet: Packet, decision: Decision, now: float) -> None:
        frame = packet.frame
        match decision.kind:
            case DecisionKind.LEAVE:
                parts: Sequence[bytes] = (frame,)
                if decision.lost_units or decision.corrupt_units:
                    parts = packets.harm(frame, decision.lost_units, decision.corrupt_units)
                for when in decision.leave_at:
                    for part in parts:
                        self._send(packet, part, when, now)
                if self._on_way:
                    self._wake_for_next()
            case DecisionKind.HOLD:
                self._hold(packet)
            case DecisionKind.REJECT:
                self._answer(packet.lane.source, packets.refusal_of(frame[_VERSION:]))
            case DecisionKind.RESET:
                self._answer(packet.lane.source, packets.refusal_of(frame[_VERSION:]))
                self._answer(packet.lane.target, packets.reset_onwards(frame[_VERSION:]))
            case DecisionKind.DROP:
                pass
            case _:
                assert_never(decision.kind)

    def _answer(self, port: Port, answer: bytes | None) -> None:
        if answer is not None:
            with contextlib.suppress(OSError):
                port.put(packets.frame_of(answer))

    def _send(self, packet: Packet, frame: bytes, when: float, now: float) -> None:
        if when <= now + _AT_ONCE_S:
            self._deliver(packet, frame)
        elif len(self._on_way) >= _MAX_PACKETS_ON_WAY:
            packet.lane.link.count_drop(DropReason.HOLD_FULL, traffic=packet.traffic)
        else:
            self._sent_off += 1
            heapq.heappush(self._on_way, (when, self._sent_off, packet, frame))

    def _deliver(self, packet: Packet, frame: bytes) -> None:
        lane = packet.lane
        if lane.is_dark:
            lane.link.count_drop(DropReason.DOWN, traffic=packet.traffic)
            return
        try:
            lane.target.put(frame)
        except OSError as error:
            self._count_failed_write(lane, error, packet.traffic)
        else:
            lane.link.count_delivery(packet.traffic)

    def _count_failed_write(self, lane: Lane, error: OSError, traffic: Traffic) -> None:
        """Count a packet that a device did not take; a device whose node has ended is no fault."""
        if error.errno in _NODE_IS_GONE:
            reason = DropReason.DOWN
        else:
            is_far = lane.target.fd < 0
            reason = DropReason.TRUNK if is_far else DropReason.DEVICE
        lane.link.count_drop(reason, traffic=traffic)

    def _deliver_from_afar(self, frame: memoryview) -> None:
        """Deliver what a trunk has brought; the switch at its other end has decided on it."""
        if len(frame) < _LEAST_FRAME_BYTES:
            return
        target = self._ports.get(frame[_TARGET + 3])
        if target is None or target.fd < 0 or target.is_dark:
            return
        try:
            target.put(frame)
        except OSError as error:
            if error.errno not in _NODE_IS_GONE:
                self._undelivered += 1

    def _hold(self, packet: Packet) -> None:
        if self._held_packets >= _MAX_HELD_PACKETS:
            packet.lane.link.count_drop(DropReason.HOLD_FULL, traffic=packet.traffic)
            return
        self._held_packets += 1
        self._held.setdefault(packet.lane.pair, []).append(packet)

    def _release(self, pair: Pair, now: float) -> None:
        """Send what a link held, in the order it came in, under the policy that holds now.

        What was on its way, and became due while the link held, was held after what came later. It
        has its decision, and arrives: others that were sent off after it may still be on their way.
        """
        queue = sorted(self._held.pop(pair, []), key=lambda packet: packet.number)
        self._held_packets -= len(queue)
        for packet in queue:
            if packet.is_decided:
                self._arrive(packet, packet.frame, now)
            elif packet.lane.is_dark:
                packet.lane.link.count_drop(DropReason.DOWN, traffic=packet.traffic)
            else:
                self._decide(packet, now)

    def _wake_for_next(self) -> None:
        if self._on_way:
            self._alarm.set(self._on_way[0][0])

    def _deliver_due(self, now: float) -> None:
        while self._on_way and self._on_way[0][0] <= now:
            _, _, packet, frame = heapq.heappop(self._on_way)
            self._arrive(packet, frame, now)
        self._wake_for_next()

    def _arrive(self, packet: Packet, frame: bytes, now: float) -> None:
        """End the way of a packet, at once or when its link lets go of it."""
        link, traffic = packet.lane.link, packet.traffic
        match link.stop_on_way(now, traffic):
            case None:
                self._deliver(packet, frame)
            case LinkMode.HOLD:
                self._hold(packet.as_decided(frame))
            case _:
                link.count_drop(DropReason.DOWN, traffic=traffic)

    # --- orders -------------------------------------------------------------------------------

    def _obey(self, op: str, fields: JsonObject, fds: list[int], reply: Reply) -> None:
        match op:
            case "attach":
                self._attach(fields["name"], fields["octet"], fds[0])
            case "attach_remote":
                trunk = self._trunks.get(fields["machine"])
                if trunk is None:
                    reply.failed(f"there is no trunk to machine {fields['machine']}")
                    return
                self._add_port(Port(fields["name"], fields["octet"], -1, trunk.put))
            case "add_trunk":
                self._add_trunk(fields["machine"], bytes.fromhex(fields["cookie"]), fds.pop())
            case "trunks":
                alive = [machine for machine, trunk in self._trunks.items() if trunk.is_alive]
                reply.done({"machines": alive})
                return
            case "detach":
                self._detach_name(fields["name"])
            case "darken":
                self._darken(fields["name"])
            case "lay":
                self._lay_at(fields, reply)
                return
            case "learn_traffic":
                self._learn_traffic(fields)
            case "capture":
                self._captures.begin(fields["name"], _pairs(fields), fds.pop(), self._loop.now())
                self._point_lanes_at_captures()
            case "captured":
                reply.done({"packets": self._captures.count(fields["name"])})
                return
            case "end_capture":
                reply.done({"packets": self._captures.end(fields["name"])})
                self._point_lanes_at_captures()
                return
            case "counters":
                reply.when_done(self._flush_trunks().then(lambda _: self._count()))
                return
            case "reset":
                self._reset(fields["seed"])
                flushed = self._flush_trunks(asks_idle=True)
                reply.when_done(flushed.then(lambda _: self._reset_trunks()))
                return
            case _:
                reply.failed(f"the switch does not know how to '{op}'")
                return
        if op in _FLUSHES_TRUNKS:
            reply.when_done(self._flush_trunks().then(lambda _: self._list_ports()))
        else:
            reply.done(self._list_ports().fields)

    def _lay_at(self, fields: JsonObject, reply: Reply) -> None:
        """Lay policies over links at the moment that is asked for, after those that came before.

        Answered when what was sent before it has arrived; with the moment at which it came into
        force.
        """

        def come_into_force() -> None:
            self._waiting = [each for each in self._waiting if each[1] is not reply]
            self._lay(fields)
            answer = Answer(fields={"at": self._loop.now()})
            reply.when_done(self._flush_trunks().then(lambda _: answer))

        now = self._loop.now()
        at = max(fields.get("at", now), *(timer.when for timer, _ in self._waiting), now)
        if at > now:
            self._waiting.append((self._loop.call_at(at, come_into_force), reply))
        else:
            come_into_force()

    def _list_ports(self) -> Answer:
        return Answer(fields={"ports": sorted(port.name for port in self._ports.values())})

    def _count(self) -> Answer:
        links = {pair: link.counters() for pair, link in self._links.items()}
        return Answer(fields={"links": rows_of(links), "own": self._own_drops()})

    def _flush_trunks(self, *, asks_idle: bool = False) -> Future[list[None]]:
        """Wait until the others have all that was sent to them; what stalls is not waited for."""
        return gather(trunk.flush(asks_idle=asks_idle) for trunk in self._trunks.values())

    def _attach(self, name: str, octet: int, fd: int) -> None:
        os.set_blocking(fd, False)
        port = Port(name, octet, fd)
        self._add_port(port)
        self._loop.watch(fd, on_readable=lambda: self._read(port))

    def _add_port(self, port: Port) -> None:
        old = self._ports.get(port.octet)
        if old is not None:
            self._detach(old)
        self._ports[port.octet] = port

    def _add_trunk(self, machine: int, cookie: bytes, fd: int) -> None:
        if machine in self._trunks:
            self._trunks[machine].close()
        trunk = trunk_over(
            self._loop, socket.socket(fileno=fd), cookie, on_frame=self._deliver_from_afar
        )
        self._trunks[machine] = trunk

    def _own_drops(self) -> dict[str, int]:
        """Return what no link has counted: what trunks did wrong, and what they brought in vain."""
        failures = sum(trunk.failures for trunk in self._trunks.values())
        own = {DropReason.TRUNK: failures, DropReason.DEVICE: self._undelivered}
        return {reason.value: number for reason, number in own.items() if number}

    def _detach_name(self, name: str) -> None:
        for port in list(self._ports.values()):
            if port.name == name:
                self._detach(port)

    def _detach(self, port: Port) -> None:
        if port.fd >= 0:
            self._loop.unwatch(port.fd)
            os.close(port.fd)
        port.detach()
        del self._ports[port.octet]
        for other in self._ports.values():
            other.lanes[port.octet] = None

    def _darken(self, name: str) -> None:
        """Let nothing of a node through any more, whatever becomes of its links' policies."""
        for port in self._ports.values():
            if port.name == name:
                port.is_dark = True
        self._clear_up_all(self._loop.now())

    def _lanes(self) -> list[Lane]:
        return [lane for port in self._ports.values() for lane in port.lanes if lane is not None]

    def _clear_up_all(self, now: float) -> None:
        """Look which lanes are clear; nothing that is due by now is on its way any more then."""
        self._deliver_due(now)
        for lane in self._lanes():
            lane.clear_up(now)

    def _lay(self, fields: JsonObject) -> None:
        pairs, traffic = _pairs(fields), fields["traffic"]
        layers = msgspec.convert(fields["layers"], Layers)
        # One moment for all of it: what is due by then has arrived, and nothing else is.
        now = self._loop.now()
        self._deliver_due(now)
        if traffic is not None:
            self._traffic.mind_port(traffic)
        for pair in pairs:
            self._link(pair).lay(layers, now, traffic=traffic)
        for lane in self._lanes():
            lane.known_flows.clear()
        for pair in pairs:
            # What is still to be held will be held again, in the same order.
            self._release(pair, now)
        self._clear_up_all(now)

    def _learn_traffic(self, fields: JsonObject) -> None:
        self._traffic.learn(
            {name: [(octet, port) for octet, port in ends] for name, ends in fields["ends"].items()}
        )
        for lane in self._lanes():
            lane.known_flows.clear()

    def _point_lanes_at_captures(self) -> None:
        now = self._loop.now()
        self._deliver_due(now)
        for lane in self._lanes():
            lane.capture = self._captures.find(lane.pair)
        self._clear_up_all(now)

    def _link(self, pair: Pair) -> Link:
        link = self._links.get(pair)
        if link is None:
            # A stream for each link: a packet more on one moves no draw of another.
            link = self._links[pair] = Link(f"{self._seed}:link:{pair[0]}>{pair[1]}")
        return link

    def _reset(self, seed: str) -> None:
        """Take everything off and forget all links."""
        for port in list(self._ports.values()):
            self._detach(port)
        self._captures.end_all()
        for timer, reply in self._waiting:
            timer.cancel()
            reply.failed("the switch was reset before that came into force")
        self._waiting.clear()
        self._links.clear()
        self._on_way.clear()
        self._held.clear()
        self._held_packets = 0
        self._traffic = TrafficTable()
        self._undelivered = 0
        self._seed = seed

    def _reset_trunks(self) -> Answer:
        for trunk in self._trunks.values():
            trunk.reset()
        return self._list_ports()


def _pairs(fields: JsonObject) -> list[Pair]:
    return [(source, target) for source, target in fields["pairs"]]


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
