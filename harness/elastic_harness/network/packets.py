"""The little of IPv4 and TCP that a switch must know: flows, segments, and how a router says no.

A *frame* is what a TUN device with `IFF_VNET_HDR` gives and takes: a virtio header of ten bytes,
and an IP packet. The header lets the kernel hand over as one what would leave a network card as
many segments (`gso_size` bytes each), with their checksums left to the card.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from typing import NamedTuple

__all__ = [
    "FRAME_HEAD_BYTES",
    "Ends",
    "carve",
    "ends_of",
    "flow_of",
    "frame_of",
    "harm",
    "opens_connection",
    "refusal_of",
    "reset_onwards",
    "segments_in",
    "spoil",
]

FRAME_HEAD_BYTES = 10
_HEADER_BYTES = 20
_FRAME_HEAD = struct.Struct("=BBHHHH")
_NO_OFFLOAD = bytes(FRAME_HEAD_BYTES)
_ICMP, _TCP, _UDP = 1, 6, 17
_NEEDS_CHECKSUM = 0x01
_FIN, _SYN, _RST, _PSH, _ACK, _CWR = 0x01, 0x02, 0x04, 0x08, 0x10, 0x80


def segments_in(frame: bytes) -> int:
    """Return how many packets of a real link a frame stands for."""
    gso_size: int = _FRAME_HEAD.unpack_from(frame)[3]
    if gso_size == 0:
        return 1
    data_bytes = len(frame) - FRAME_HEAD_BYTES - _head_bytes(frame[FRAME_HEAD_BYTES:])
    return max(-(-data_bytes // gso_size), 1)


def frame_of(packet: bytes) -> bytes:
    """Return the frame of a packet that has nothing left to do."""
    return _NO_OFFLOAD + packet


def carve(frame: bytes, lost: Collection[int]) -> list[bytes]:
    """Return what is left of a TCP frame without some of its segments: a frame for each run."""
    flags, kind, _, gso_size, checksum_start, checksum_offset = _FRAME_HEAD.unpack_from(frame)
    packet = frame[FRAME_HEAD_BYTES:]
    head_bytes, count = _head_bytes(packet), segments_in(frame)
    left = [number for number in range(count) if number not in lost]
    firsts = [number for number in left if number - 1 not in left]
    lasts = [number for number in left if number + 1 not in left]
    frames = []
    for first, last in zip(firsts, lasts, strict=True):
        data = packet[head_bytes + first * gso_size : head_bytes + (last + 1) * gso_size]
        run = _with_data(packet[:head_bytes], data, first, gso_size, is_last=last + 1 == count)
        is_single = first == last
        head = _FRAME_HEAD.pack(
            flags,
            0 if is_single else kind,
            head_bytes,
            0 if is_single else gso_size,
            checksum_start,
            checksum_offset,
        )
        frames.append(head + run)
    return frames


def harm(frame: bytes, lost: Collection[int], corrupt: Collection[int]) -> list[bytes]:
    """Return what arrives of a frame of which some segments do not, or not whole."""
    spoilt = spoil(frame, corrupt) if corrupt else []
    missing = {*lost, *corrupt}
    if len(missing) == segments_in(frame):
        return spoilt
    return [*carve(frame, missing), *spoilt]


def spoil(frame: bytes, units: Collection[int]) -> list[bytes]:
    """Return those segments of a frame, each with one bit turned over and the checksum it had.

    As a bad cable does it: the receiver's kernel finds out and discards the segment. The checksum
    that is otherwise left to the card is filled in first, or it would not be checked.
    """
    if _FRAME_HEAD.unpack_from(frame)[3] == 0:
        return [_spoilt(frame)]
    everything = set(range(segments_in(frame)))
    return [_spoilt(part) for unit in units for part in carve(frame, everything - {unit})]


def _spoilt(frame: bytes) -> bytes:
    flags, _, _, _, start, offset = _FRAME_HEAD.unpack_from(frame)
    packet = bytearray(frame[FRAME_HEAD_BYTES:])
    if flags & _NEEDS_CHECKSUM:
        # What stands in its place is the sum of the pseudo header, to be counted in.
        struct.pack_into(">H", packet, start + offset, _checksum(bytes(packet[start:])))
    packet[-1] ^= 0x10
    return frame_of(bytes(packet))


class Ends(NamedTuple):
    """Both ends of a packet: the last octet of an address, and a port."""

    source: int
    source_port: int
    target: int
    target_port: int


def ends_of(frame: bytes) -> Ends | None:
    """Return both ends of a TCP or UDP packet; None for what has no ports."""
    if frame[FRAME_HEAD_BYTES + 9] not in {_TCP, _UDP}:
        return None
    start = FRAME_HEAD_BYTES + (frame[FRAME_HEAD_BYTES] & 0x0F) * 4
    source_port, target_port = struct.unpack_from(">HH", frame, start)
    return Ends(
        frame[FRAME_HEAD_BYTES + 15], source_port, frame[FRAME_HEAD_BYTES + 19], target_port
    )


def opens_connection(frame: bytes) -> bool | None:
    """Tell whether a TCP segment begins a connection; None for what belongs to none."""
    if frame[FRAME_HEAD_BYTES + 9] != _TCP:
        return None
    start = FRAME_HEAD_BYTES + (frame[FRAME_HEAD_BYTES] & 0x0F) * 4
    return bool(frame[start + 13] & _SYN)


def _head_bytes(packet: bytes) -> int:
    start = (packet[0] & 0x0F) * 4
    return start + (packet[start + 12] >> 4) * 4


def _with_data(head: bytes, data: bytes, first: int, gso_size: int, *, is_last: bool) -> bytes:
    """Return a part of a segmented packet, as a network card would have sent it."""
    made = bytearray(head + data)
    start = (made[0] & 0x0F) * 4
    (identity,) = struct.unpack_from(">H", made, 4)
    struct.pack_into(">HH", made, 2, len(made), (identity + first) & 0xFFFF)
    struct.pack_into(">H", made, 10, 0)
    struct.pack_into(">H", made, 10, _checksum(bytes(made[:start])))
    (sequence,) = struct.unpack_from(">I", made, start + 4)
    struct.pack_into(">I", made, start + 4, (sequence + first * gso_size) & 0xFFFFFFFF)
    if first:
        made[start + 13] &= ~_CWR & 0xFF
    if not is_last:
        made[start + 13] &= ~(_FIN | _PSH) & 0xFF
    # The rest of the checksum is left to the card: here it is that of the pseudo header alone.
    pseudo = bytes(made[12:20]) + struct.pack(">BBH", 0, _TCP, len(made) - start)
    struct.pack_into(">H", made, start + 16, ~_checksum(pseudo) & 0xFFFF)
    return bytes(made)


def flow_of(frame: bytes) -> bytes:
    """Return what frames of one connection and direction have in common."""
    start = FRAME_HEAD_BYTES + (frame[FRAME_HEAD_BYTES] & 0x0F) * 4
    return frame[FRAME_HEAD_BYTES + 9 : FRAME_HEAD_BYTES + 10] + frame[start : start + 4]


def refusal_of(packet: bytes) -> bytes | None:
    """Return what a gateway that refuses `packet` sends back: a TCP reset, else ICMP unreachable.

    None when there must be no answer (RFC 1122: never about an ICMP error, a reset or a fragment).
    """
    if len(packet) < _HEADER_BYTES:
        return None
    start = (packet[0] & 0x0F) * 4
    is_later_fragment = struct.unpack_from(">H", packet, 6)[0] & 0x1FFF
    if is_later_fragment:
        return None
    if packet[9] == _TCP and len(packet) >= start + 20:
        return _reset_of(packet, start)
    if packet[9] == _ICMP and len(packet) > start and packet[start] not in {0, 8}:
        return None
    return _unreachable(packet, start)


def reset_onwards(packet: bytes) -> bytes | None:
    """Return the reset that `packet`'s receiver would get from its sender; None if not of TCP."""
    start = (packet[0] & 0x0F) * 4
    if packet[9] != _TCP or len(packet) < start + 20:
        return None
    source, target, sequence, acknowledged = struct.unpack_from(">HHII", packet, start)
    return _reset(
        (packet[12:16], source), (packet[16:20], target), sequence, acknowledged, _RST | _ACK
    )


def _reset(
    source: tuple[bytes, int],
    target: tuple[bytes, int],
    sequence: int,
    acknowledged: int,
    flags: int,
) -> bytes:
    reset = struct.pack(
        ">HHIIBBHHH", source[1], target[1], sequence, acknowledged, 0x50, flags, 0, 0, 0
    )
    pseudo = source[0] + target[0] + struct.pack(">BBH", 0, _TCP, len(reset))
    reset = reset[:16] + struct.pack(">H", _checksum(pseudo + reset)) + reset[18:]
    return _ip_header(source[0], target[0], _TCP, len(reset)) + reset


def _reset_of(packet: bytes, start: int) -> bytes | None:
    """Answer a segment with a reset that its sender accepts (RFC 9293, section 3.5.2)."""
    source, target, sequence, acknowledged = struct.unpack_from(">HHII", packet, start)
    flags = packet[start + 13]
    if flags & _RST:
        return None
    data_bytes = len(packet) - start - (packet[start + 12] >> 4) * 4
    here, there = (packet[16:20], target), (packet[12:16], source)
    if flags & _ACK:
        return _reset(here, there, acknowledged, 0, _RST)
    taken = sequence + data_bytes + bool(flags & _SYN) + bool(flags & _FIN)
    return _reset(here, there, 0, taken & 0xFFFFFFFF, _RST | _ACK)


def _unreachable(packet: bytes, start: int) -> bytes:
    """Answer with ICMP 'administratively prohibited', quoting the packet as far as RFC 792 asks."""
    body = struct.pack(">BBHI", 3, 13, 0, 0) + packet[: start + 8]
    body = body[:2] + struct.pack(">H", _checksum(body)) + body[4:]
    return _ip_header(packet[16:20], packet[12:16], _ICMP, len(body)) + body


def _ip_header(source: bytes, target: bytes, protocol: int, body_bytes: int) -> bytes:
    head = struct.pack(
        ">BBHHHBBH4s4s", 0x45, 0, _HEADER_BYTES + body_bytes, 0, 0, 64, protocol, 0, source, target
    )
    return head[:10] + struct.pack(">H", _checksum(head)) + head[12:]


def _checksum(data: bytes) -> int:
    """Return the Internet checksum (RFC 1071): one's complement of the one's complement sum."""
    if len(data) % 2:
        data += b"\0"
    # A sum of 16-bit digits with end-around carry is the number modulo 65 535.
    total = int.from_bytes(data, "big") % 0xFFFF
    return ~(total or 0xFFFF) & 0xFFFF
