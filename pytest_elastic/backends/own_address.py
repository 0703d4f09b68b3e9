"""Which address of this machine the other nodes shall use (R14)."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import socket
import struct
from collections.abc import Iterator, Sequence

from pytest_elastic.channel import host_to_look_up, listen_on_free_port, numeric_address
from pytest_elastic.config import Endpoint
from pytest_elastic.errors import UsageError
from pytest_elastic.port_range import PortRange

__all__ = ["listen_as_node", "own_address", "why_doubtful"]

# Addresses that are nobody's (RFC 5737, RFC 3849): the way there is the way to anybody.
_ANYBODY = ("192.0.2.1", "2001:db8::1")
_SIOCGIFADDR = 0x8915
_LOOPBACK = "127.0.0.1"


def own_address(local_addr: str | None, endpoints: Sequence[Endpoint], *, said: str) -> str:
    """Return an IP address of this machine.

    It is what the user said (`said`: by which option), or the address that this machine would use
    towards the first endpoint that has one, or towards others at all: that needs no name of its
    own, and picks the right one of several interfaces. It is a loopback address only where nodes
    meet at one, or where there is no other: many a machine takes its own name for 127.0.1.1. It is
    an IPv6 address of a single link (fe80::) only where the user named the interface: to dial it,
    other nodes need the name of their interface to that link. Raises UsageError.
    """
    if local_addr:
        return _address_as_said(local_addr, said)
    is_here = _meet_at_loopback(endpoints)
    is_on_link = any("%" in endpoint.host for endpoint in endpoints)
    ways = (
        *(_towards(endpoint.host, endpoint.port or 9) for endpoint in endpoints),
        *(_towards(host, 9) for host in _ANYBODY),
        _addresses_of(socket.gethostname()),
        interface_addresses(),
    )
    for way in ways:
        for address in way:
            if not is_on_link and _is_of_one_link(address):
                continue
            if is_here or not is_loopback(address):
                return address
    return _LOOPBACK


def listen_as_node(address: str, ports: PortRange | None) -> socket.socket:
    """Return the listening socket at which the other nodes reach this one; raises UsageError."""
    try:
        return listen_on_free_port(address, ports, after=None)
    except OSError as error:
        raise UsageError(
            f"cannot listen on {address} for the other nodes: {error.strerror}",
            hint="An address of this machine is expected, and a port that no process uses.",
        ) from error


def why_doubtful(address: str, endpoints: Sequence[Endpoint]) -> str:
    """Return what a person should know of an address that was not said; empty: nothing.

    That is where the names of all endpoints lead back to this machine alone, as it seems from here,
    so that its address towards others was a guess, or that it has none.
    """
    if _meet_at_loopback(endpoints):
        return ""
    if is_loopback(address):
        return (
            f"this node is known to the others as {address}, which no other machine can reach: it "
            "has no other address (--local-addr gives one)"
        )
    known = {each.host: [*_addresses_of(each.host)] for each in endpoints}
    found = [address for addresses in known.values() for address in addresses]
    if not found or not all(map(is_loopback, found)):
        return ""
    names = ", ".join(f"{name} is {', '.join(each)}" for name, each in known.items() if each)
    return (
        f"{names} on this machine, so that its way to the others had to be guessed: it is known to "
        f"them as {address}, of {', '.join(interface_addresses())} (--local-addr gives another)"
    )


def _address_as_said(local_addr: str, said: str) -> str:
    try:
        found = socket.getaddrinfo(host_to_look_up(local_addr), None)
    except OSError as error:
        raise UsageError(
            f"{said}={local_addr}: no such address ({error.strerror})",
            hint="Expected a name or an IP address of this machine, as `ip address` shows.",
        ) from error
    for entry in found:
        address = numeric_address(entry[4])
        if "%" in local_addr or not _is_of_one_link(address):
            return address
    raise UsageError(
        f"{said}={local_addr}: a link-local address needs its interface, to which other nodes must "
        "have one of the same name",
        hint=f"As in {said}={local_addr}%eth0; an address that is not link-local is better.",
    )


def _is_of_one_link(address: str) -> bool:
    """Tell whether an address is one of IPv6 that means nothing without an interface."""
    return ":" in address and ipaddress.ip_address(address.partition("%")[0]).is_link_local


def is_loopback(address: str) -> bool:
    """Tell whether an IP address is this machine's own for itself alone."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def interface_addresses() -> Sequence[str]:
    """Return the addresses of this machine's interfaces that others may reach.

    One of IPv4 for each interface, and those of IPv6 that are not of a single link.
    """
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                request = struct.pack("256s", name.encode()[:15])
                found.append(socket.inet_ntoa(fcntl.ioctl(sock, _SIOCGIFADDR, request)[20:24]))
    with contextlib.suppress(OSError), open("/proc/net/if_inet6", encoding="ascii") as lines:
        found += [str(ipaddress.ip_address(bytes.fromhex(line.split()[0]))) for line in lines]
    return [
        each
        for each in found
        if not is_loopback(each) and not ipaddress.ip_address(each).is_link_local
    ]


def _meet_at_loopback(endpoints: Sequence[Endpoint]) -> bool:
    """Tell whether nodes meet on this machine, by the user's own word: an address, or localhost."""
    return bool(endpoints) and all(_is_loopback_literal(each.host) for each in endpoints)


def _is_loopback_literal(host: str) -> bool:
    if host.rstrip(".").lower() == "localhost":
        return True
    try:
        return is_loopback(host)
    except ValueError:
        return False


def _towards(host: str, port: int) -> Iterator[str]:
    """Return the addresses that are used towards a host; none where there is no way."""
    with contextlib.suppress(OSError, UnicodeError):
        found = socket.getaddrinfo(host_to_look_up(host), port, type=socket.SOCK_DGRAM)
        for family, _, _, _, where in found:
            # Connecting a datagram socket sends nothing; it only asks the routing table.
            with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as sock:
                sock.connect(where)
                yield numeric_address(sock.getsockname())


def _addresses_of(host: str) -> Iterator[str]:
    """Return the addresses that a name has here."""
    with contextlib.suppress(OSError, UnicodeError):
        for entry in socket.getaddrinfo(host_to_look_up(host), None, type=socket.SOCK_STREAM):
            yield numeric_address(entry[4])
