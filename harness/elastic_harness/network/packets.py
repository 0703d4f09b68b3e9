"""The little of IPv4 and TCP that a switch must know: flows, and how a router says no."""

from __future__ import annotations

import struct

__all__ = ["HEADER_BYTES", "flow_of", "refusal_of"]

HEADER_BYTES = 20
_ICMP, _TCP, _UDP = 1, 6, 17
_FIN, _SYN, _RST, _ACK = 0x01, 0x02, 0x04, 0x10


def flow_of(packet: bytes) -> bytes:
    """Return what packets of one connection and direction have in common."""
    start = (packet[0] & 0x0F) * 4
    return packet[9:10] + packet[start : start + 4]


def refusal_of(packet: bytes) -> bytes | None:
    """Return what a gateway that refuses `packet` sends back: a TCP reset, else ICMP unreachable.

    None when there must be no answer (RFC 1122: never about an ICMP error, a reset or a fragment).
    """
    if len(packet) < HEADER_BYTES:
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


def _reset_of(packet: bytes, start: int) -> bytes | None:
    """Answer a segment with a reset that its sender accepts (RFC 9293, section 3.5.2)."""
    source, target, sequence, acknowledged = struct.unpack_from(">HHII", packet, start)
    flags = packet[start + 13]
    if flags & _RST:
        return None
    data_bytes = len(packet) - start - (packet[start + 12] >> 4) * 4
    if flags & _ACK:
        reset = struct.pack(">HHIIBBHHH", target, source, acknowledged, 0, 0x50, _RST, 0, 0, 0)
    else:
        taken = sequence + data_bytes + bool(flags & _SYN) + bool(flags & _FIN)
        reset = struct.pack(
            ">HHIIBBHHH", target, source, 0, taken & 0xFFFFFFFF, 0x50, _RST | _ACK, 0, 0, 0
        )
    pseudo = packet[16:20] + packet[12:16] + struct.pack(">BBH", 0, _TCP, len(reset))
    reset = reset[:16] + struct.pack(">H", _checksum(pseudo + reset)) + reset[18:]
    return _ip_header(packet[16:20], packet[12:16], _TCP, len(reset)) + reset


def _unreachable(packet: bytes, start: int) -> bytes:
    """Answer with ICMP 'administratively prohibited', quoting the packet as far as RFC 792 asks."""
    body = struct.pack(">BBHI", 3, 13, 0, 0) + packet[: start + 8]
    body = body[:2] + struct.pack(">H", _checksum(body)) + body[4:]
    return _ip_header(packet[16:20], packet[12:16], _ICMP, len(body)) + body


def _ip_header(source: bytes, target: bytes, protocol: int, body_bytes: int) -> bytes:
    head = struct.pack(
        ">BBHHHBBH4s4s", 0x45, 0, HEADER_BYTES + body_bytes, 0, 0, 64, protocol, 0, source, target
    )
    return head[:10] + struct.pack(">H", _checksum(head)) + head[12:]


def _checksum(data: bytes) -> int:
    """Return the Internet checksum (RFC 1071): one's complement of the one's complement sum."""
    if len(data) % 2:
        data += b"\0"
    # A sum of 16-bit digits with end-around carry is the number modulo 65 535.
    total = int.from_bytes(data, "big") % 0xFFFF
    return ~(total or 0xFFFF) & 0xFFFF
