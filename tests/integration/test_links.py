"""Links that are bad to TCP connections, what a capture shows, and that healing is no fault."""

from __future__ import annotations

import hashlib
import os
import re
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from elastic_harness.future import gather, wait_for
from elastic_harness.network.link_model import (
    HEALTHY,
    DropReason,
    LinkCounters,
    LinkMode,
    LinkPolicy,
)
from elastic_harness.report.noted_times import reach, read_link_uses
from elastic_harness.scenario.stage.clocks import LinkClock

from tests.cluster_bench import LIMIT_S, Bench

BOTH = [("n1", "n2"), ("n2", "n1")]


@pytest.fixture
def bench(cluster_bench: Bench, tmp_path: Path) -> Iterator[Bench]:
    """Lend the server, without nodes, and look for what the test left."""
    yield from cluster_bench.borrow(tmp_path)


def transfer(sender: socket.socket, receiver: socket.socket, data: bytes) -> bytes:
    """Send all of the data, and return what arrives until the sender ends."""

    def send() -> None:
        sender.sendall(data)
        sender.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=send)
    thread.start()
    received = bytearray()
    while part := receiver.recv(1 << 20):
        received += part
    thread.join()
    return bytes(received)


def test_corrupted_segments_are_found_out_and_sent_again(bench: Bench) -> None:
    """Also of those that the kernel hands over forty at a time; what arrives is what was sent."""
    bench.start("n1", "n2")
    ours, theirs = bench.connection("n1", "n2")
    bench.set_policy(BOTH, LinkPolicy(corrupt=0.03))
    data = os.urandom(2_000_000)
    with ours, theirs:
        received = transfer(ours, theirs, data)
    assert hashlib.sha256(received).digest() == hashlib.sha256(data).digest()
    corrupted = bench.counters().links["n1", "n2"].dropped[DropReason.CORRUPTED]
    shell = "grep ^Tcp: /proc/net/snmp"
    names, values = bench.output(bench.run("n2", "sh", "-c", shell)).splitlines()
    found = dict(zip(names.split(), values.split(), strict=True))["InCsumErrors"]
    assert int(found) == corrupted > 0


def test_an_order_to_reset_ends_the_connections_that_are_there(bench: Bench) -> None:
    """Both ends learn of it as soon as one of them says something; new connections are fine."""
    bench.start("n1", "n2")
    ours, theirs = bench.connection("n1", "n2")
    bench.set_policy(BOTH, LinkPolicy(resets=1))
    with ours, theirs:
        ours.send(b"are you there?")
        with pytest.raises(ConnectionResetError):
            ours.recv(1)
        with pytest.raises(ConnectionResetError):
            theirs.recv(100)
    # Once, or more often: a kernel that waits long for an answer says it again.
    assert bench.counters().links["n1", "n2"].dropped.keys() == {DropReason.RESET}
    again, there = bench.connection("n1", "n2")
    with again, there:
        again.send(b"yes")
        assert there.recv(3) == b"yes"


def test_changes_of_policies_lose_nothing_and_reorder_nothing(bench: Bench) -> None:
    """A stream of datagrams over a link that is slowed, held and healed twenty times is whole."""
    bench.start("n1", "n2")
    opened = [bench.sockets.open(node, datagram=True) for node in ("n1", "n2")]
    ours, theirs = wait_for(bench.loop, gather(opened), within_s=LIMIT_S)
    with ours, theirs:
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        theirs.bind((bench.cluster.nodes["n2"].address, 7001))
        theirs.settimeout(LIMIT_S)
        number = received = 0
        policies = (
            LinkPolicy(latency_s=0.02, jitter_s=0.01),
            LinkPolicy(up=False, mode=LinkMode.HOLD),
            LinkPolicy(rate_bytes_per_s=1e9),
            HEALTHY,
        )
        for policy in policies * 5:
            for _ in range(10):
                ours.sendto(struct.pack("=I", number), ("10.77.0.2", 7001))
                number += 1
            bench.set_policy([("n1", "n2")], policy)
            if policy is HEALTHY:
                while received < number:
                    assert struct.unpack("=I", theirs.recv(100)) == (received,)
                    received += 1
    counters = bench.counters()
    assert counters.links["n1", "n2"].dropped == {}
    assert counters.own_drops == {}


@dataclass(frozen=True)
class Seen:
    """A packet of a capture."""

    link: str
    packet: bytes
    length: int
    at_s: float
    comment: str


def read_pcapng(path: Path) -> list[Seen]:
    """Read a capture as the format's draft says (draft-ietf-opsawg-pcapng)."""
    data, place, links, seen = path.read_bytes(), 0, [], []
    while place < len(data):
        kind, length = struct.unpack_from("<II", data, place)
        assert length % 4 == 0
        assert struct.unpack_from("<I", data, place + length - 4) == (length,)
        body = data[place + 8 : place + length - 4]
        place += length
        if kind == 0x0A0D0D0A:
            assert struct.unpack_from("<IHH", body) == (0x1A2B3C4D, 1, 0)
        elif kind == 1:
            assert struct.unpack_from("<H", body) == (228,)  # LINKTYPE_IPV4
            links.append(options(body[8:])[2].decode())
        else:
            assert kind == 6
            interface, high, low, kept, whole = struct.unpack_from("<IIIII", body)
            after = 20 + kept + -kept % 4
            comment = options(body[after:])[1].decode()
            at_s = ((high << 32) + low) / 1e6
            seen.append(Seen(links[interface], body[20 : 20 + kept], whole, at_s, comment))
    return seen


def options(data: bytes) -> dict[int, bytes]:
    """Read the options of a block, up to the one that ends them."""
    found: dict[int, bytes] = {}
    place = 0
    while True:
        code, length = struct.unpack_from("<HH", data, place)
        if code == 0:
            return found
        found[code] = data[place + 4 : place + 4 + length]
        place += 4 + length + -length % 4


def test_a_capture_shows_every_packet_of_a_link_and_what_became_of_it(bench: Bench) -> None:
    """In a format that other programs read; ended, it costs the link nothing any more."""
    bench.start("n1", "n2", "n3")
    path = bench.folder / "links.pcapng"
    wait_for(bench.loop, bench.network.capture("look", BOTH, str(path)), within_s=LIMIT_S)
    ours, theirs = bench.connection("n1", "n2")
    other, third = bench.connection("n1", "n3")
    bench.set_policy([("n1", "n2")], LinkPolicy(up=False))
    ours.send(b"into the void")
    dropped = {DropReason.DOWN}
    bench.until(
        lambda: bench.counters().links["n1", "n2"].dropped.keys() == dropped, "a dropped packet"
    )
    for end in (ours, theirs, other, third):
        end.close()
    counted = wait_for(bench.loop, bench.network.end_capture("look"), within_s=LIMIT_S)
    seen = read_pcapng(path)
    assert len(seen) == counted
    assert {each.link for each in seen} == {"n1>n2", "n2>n1"}
    first, second = seen[0], seen[1]
    assert (first.link, second.link) == ("n1>n2", "n2>n1")
    assert (first.packet[33], second.packet[33]) == (0x02, 0x12)  # SYN, SYN and ACK
    assert first.comment == "delivered"
    lost = next(each for each in seen if each.packet.endswith(b"void"))
    assert lost.comment == "dropped: down"
    assert lost.length == len(lost.packet)
    assert [each.at_s for each in seen] == sorted(each.at_s for each in seen)
    again = wait_for(bench.loop, bench.network.end_capture("look"), within_s=LIMIT_S)
    assert again == 0


def test_a_clock_of_links_writes_down_what_arrived_and_when_nothing_did(
    bench: Bench, tmp_path: Path
) -> None:
    """Three datagrams pass, two are cut off: the page's table of who could reach whom says so."""
    bench.start("n1", "n2")
    path = tmp_path / "counts.jsonl"
    clock = LinkClock(bench.loop, bench.cluster, str(path))
    opened = bench.sockets.open("n1", datagram=True)
    sender = wait_for(bench.loop, opened, within_s=LIMIT_S)

    def send(number: int) -> None:
        for _ in range(number):
            sender.sendto(b"?", (bench.cluster.nodes["n2"].address, 7001))

    def arrived() -> LinkCounters:
        return bench.counters().links["n1", "n2"]

    with sender:
        send(3)
        bench.until(lambda: arrived().delivered == 3, "three datagrams")
        clock.note(bench.counters().links)
        bench.set_policy(BOTH, LinkPolicy(up=False))
        send(2)
        bench.until(lambda: arrived().dropped == {DropReason.DOWN: 2}, "two that are cut off")
        clock.start()
        bench.counters()  # answers come in order: it has looked
    clock.close()
    names, rows = reach(read_link_uses(path.read_text().splitlines()), 0.0)
    assert names == ["n1", "n2"]
    assert re.fullmatch(r"3, 2 dropped, none from \S+ s to the end", rows[0][1][1])
