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


def tcp_of(packet: bytes | bytearray) -> tuple[int, ...]:
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
    """It must not claim to be several; the receiver computes its checksum."""
    (part,) = packets.carve(big_frame(2), {1})
    flags, kind, _, gso_size, start, offset = struct.unpack_from("=BBHHHH", part)
    assert (flags, kind, gso_size, start, offset) == (1, 0, 0, 20, 16)
    packet = part[HEAD:]
    (partial,) = struct.unpack_from(">H", packet, 36)
    pseudo = packet[12:20] + struct.pack(">HH", 6, len(packet) - 20)
    total = sum(struct.unpack(">6H", pseudo))
    assert partial == (total & 0xFFFF) + (total >> 16)


def test_a_spoilt_segment_has_one_bit_turned_and_a_checksum_that_tells() -> None:
    """The checksum that was left to the card is that of the data as they were."""
    frame = big_frame(3)
    (part,) = packets.spoil(frame, {1})
    assert part[:HEAD] == bytes(HEAD)
    packet = bytearray(part[HEAD:])
    pseudo = bytes(packet[12:20]) + struct.pack(">HH", 6, len(packet) - 20)
    assert tcp_of(packet)[2] == 1100
    assert not checksum_is_right(pseudo + packet[20:])
    packet[-1] ^= 0x10
    assert packet[40:] == bytes([1]) * 100
    assert checksum_is_right(pseudo + packet[20:])


def test_a_packet_with_a_checksum_of_its_own_is_spoilt_as_it_is() -> None:
    """One bit is turned over, nothing else."""
    frame = bytes(HEAD) + segment(ACK, data=b"hello")
    (part,) = packets.spoil(frame, {0})
    assert len(part) == len(frame)
    different = [i for i, (a, b) in enumerate(zip(frame, part, strict=True)) if a != b]
    assert different == [len(frame) - 1]


def test_the_other_end_is_reset_with_the_senders_own_numbers() -> None:
    """Only a reset with the number that is expected next ends a connection (RFC 5961)."""
    reset = packets.reset_onwards(segment(ACK, sequence=4242, data=b"x"))
    assert reset is not None
    assert (reset[12:16], reset[16:20]) == (bytes((10, 77, 0, 1)), bytes((10, 77, 0, 2)))
    assert tcp_of(reset)[:6] == (5000, 80, 4242, 777, 0x50, RST | ACK)
    pseudo = reset[12:20] + struct.pack(">HH", 6, len(reset) - 20)
    assert checksum_is_right(pseudo + reset[20:])


def test_both_ends_of_a_packet_are_read_and_what_opens_a_connection() -> None:
    """What is neither TCP nor UDP has no ports, and opens nothing."""
    frame = bytes(HEAD) + segment(SYN)
    assert packets.ends_of(frame) == (1, 5000, 2, 80)
    assert packets.opens_connection(frame) is True
    assert packets.opens_connection(bytes(HEAD) + segment(ACK)) is False
    other = bytearray(frame)
    other[HEAD + 9] = 1
    assert packets.ends_of(bytes(other)) is None
    assert packets.opens_connection(bytes(other)) is None
