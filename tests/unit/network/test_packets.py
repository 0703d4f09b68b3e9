"""Segments, flows and refusals, on packets made by hand."""

from __future__ import annotations

import struct

from elastic_harness.network import packets

HEAD = packets.FRAME_HEAD_BYTES
SYN, ACK, FIN, PSH, RST = 0x02, 0x10, 0x01, 0x08, 0x04


def checksum_is_right(data: bytes) -> bool:
    """Tell whether the 16-bit one's complement sum is all ones (RFC 1071)."""
    total: int = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total == 0xFFFF


def segment(flags: int, *, sequence: int = 1000, data: bytes = b"") -> bytes:
    """Return a TCP segment from 10.77.0.1:5000 to 10.77.0.2:80."""
    tcp = struct.pack(">HHIIBBHHH", 5000, 80, sequence, 777, 0x50, flags, 100, 0, 0) + data
    ip = struct.pack(
        ">BBHHHBBH4s4s",
        *(0x45, 0, 20 + len(tcp), 9, 0, 64, 6, 0),
        bytes((10, 77, 0, 1)),
        bytes((10, 77, 0, 2)),
    )
    return ip + tcp


def big_frame(segments: int, size: int = 100) -> bytes:
    """Return a frame that stands for several segments."""
    data = b"".join(bytes([number]) * size for number in range(segments))
    head = struct.pack("=BBHHHH", 1, 1, 40, size, 20, 16)
    return head + segment(ACK | PSH | FIN, data=data)


def tcp_of(packet: bytes) -> tuple[int, ...]:
    """Return the fields of a TCP header up to the window."""
    return struct.unpack_from(">HHIIBBH", packet, 20)


def test_a_syn_is_refused_as_by_a_closed_port() -> None:
    """The reset acknowledges the SYN, goes back where it came from, and checks out."""
    answer = packets.refusal_of(segment(SYN))
    assert answer is not None
    assert (answer[12:16], answer[16:20]) == (bytes((10, 77, 0, 2)), bytes((10, 77, 0, 1)))
    source, target, sequence, acknowledged, _, flags, _ = tcp_of(answer)
    assert (source, target, sequence, acknowledged, flags) == (80, 5000, 0, 1001, RST | ACK)
    assert checksum_is_right(answer[:20])
    pseudo = answer[12:20] + struct.pack(">HH", 6, len(answer) - 20)
    assert checksum_is_right(pseudo + answer[20:])


def test_data_is_refused_where_its_sender_expects_the_next_byte() -> None:
    """The reset's sequence number is what the segment acknowledged: any other would be ignored."""
    answer = packets.refusal_of(segment(ACK, data=b"hello"))
    assert answer is not None
    assert tcp_of(answer)[2:6] == (777, 0, 0x50, RST)


def test_a_reset_is_never_answered() -> None:
    """Else two refusals would answer each other for ever."""
    assert packets.refusal_of(segment(RST)) is None


def test_what_is_not_tcp_is_refused_by_icmp() -> None:
    """A datagram gets 'administratively prohibited', quoting its head."""
    datagram = bytearray(segment(0)[:20] + struct.pack(">HHHH", 53, 54, 8, 0))
    datagram[9] = 17
    answer = packets.refusal_of(bytes(datagram))
    assert answer is not None
    assert (answer[9], answer[20], answer[21]) == (1, 3, 13)
    assert answer[28:] == bytes(datagram)
    assert checksum_is_right(answer[20:])


def test_flows_are_told_apart_by_their_ports() -> None:
    """Packets of one direction of one connection have the same key, others have not."""
    one, again = bytes(HEAD) + segment(SYN), bytes(HEAD) + segment(ACK, data=b"x")
    other = bytearray(one)
    other[HEAD + 21] += 1
    assert packets.flow_of(one) == packets.flow_of(again) != packets.flow_of(bytes(other))


def test_segments_are_counted() -> None:
    """A frame stands for as many segments as its data fill."""
    assert packets.segments_in(bytes(HEAD) + segment(ACK, data=bytes(1400))) == 1
    assert packets.segments_in(big_frame(7)) == 7
    assert packets.segments_in(big_frame(7) + b"x") == 8


def test_lost_segments_are_carved_out_and_the_rest_stays_whole() -> None:
    """What is left are frames whose bytes have the sequence numbers they had before."""
    frame = big_frame(6)
    left = packets.carve(frame, {0, 3})
    assert [packets.segments_in(part) for part in left] == [2, 2]
    for part, first in zip(left, (1, 4), strict=True):
        packet = part[HEAD:]
        assert checksum_is_right(packet[:20])
        assert struct.unpack_from(">H", packet, 2)[0] == len(packet)
        assert tcp_of(packet)[2] == 1000 + 100 * first
        assert packet[40:] == bytes([first]) * 100 + bytes([first + 1]) * 100
    # Only the last segment of a burst ends it.
    assert [tcp_of(part[HEAD:])[5] for part in left] == [ACK, ACK | PSH | FIN]


def test_a_single_segment_that_is_left_is_an_ordinary_packet() -> None:
    """It must not claim to be several; its checksum is left to whoever takes it."""
    (part,) = packets.carve(big_frame(2), {1})
    flags, kind, _, gso_size, start, offset = struct.unpack_from("=BBHHHH", part)
    assert (flags, kind, gso_size, start, offset) == (1, 0, 0, 20, 16)
    packet = part[HEAD:]
    (partial,) = struct.unpack_from(">H", packet, 36)
    pseudo = packet[12:20] + struct.pack(">HH", 6, len(packet) - 20)
    total = sum(struct.unpack(">6H", pseudo))
    assert partial == (total & 0xFFFF) + (total >> 16)
