"""Which address of this machine the other nodes shall use (R14)."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pytest_elastic.channel import numeric_address, socket_address
from pytest_elastic.config import Endpoint
from pytest_elastic.errors import UsageError
from pytest_elastic.workers.store.name_lookup import addresses_of, resolve

__all__ = [
    "OwnAddress",
    "address_as_said",
    "address_towards",
    "check_loopback",
    "interface_addresses",
    "is_loopback",
    "known_here",
    "own_address",
    "tentative_addresses",
]

# Addresses for documentation (RFC 5737, RFC 3849): they are routed by the default route.
_ANYBODY = ("192.0.2.1", "2001:db8::1")
_SIOCGIFADDR = 0x8915
# IFA_F_TENTATIVE: of an address about which the kernel still asks other machines.
_TENTATIVE = 0x40
_LOOPBACK = "127.0.0.1"
# A datagram socket needs a port to be connected; nothing is sent there.
_ANY_PORT = 9
# How long a launcher that has not begun yet waits for names.
_PATIENCE_S = 5.0
# The share of its time that a lookup may take where the last known addresses would do.
_SHARE_IF_KNOWN = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnAddress:
    """An address of this machine, and what a person should know of that choice ("": nothing).

    `is_said`: it is the user's own word, and stays.
    """

    address: str
    doubt: str = ""
    is_said: bool = False


def own_address(endpoints: Sequence[Endpoint], *, timeout_s: float = _PATIENCE_S) -> OwnAddress:
    """Return the address towards where nodes meet, as names are known now (`address_towards`).

    Takes `timeout_s` at most; a name without an answer by then counts as one that is not known.
    """
    share_s = timeout_s / (len(endpoints) + 1)  # the last is the machine's own name

    def look_up(host: str) -> Sequence[str]:
        with contextlib.suppress(OSError, UnicodeError):
            return addresses_of(host, share_s, share_if_known=_SHARE_IF_KNOWN)
        return ()

    return address_towards(endpoints, look_up)


def address_towards(
    endpoints: Sequence[Endpoint], look_up: Callable[[str], Sequence[str]]
) -> OwnAddress:
    """Return the address that this machine uses towards the first endpoint that has one.

    Or else towards others at all. That needs no name of its own, and picks the right one of several
    interfaces. It is a loopback address only where nodes meet at one, or where there is no other:
    many a machine takes its own name for 127.0.1.1. It is an IPv6 address of a single link (fe80::)
    only where the user named the interface: to dial it, other nodes need the name of their
    interface to that link. `look_up` is asked once for each name.
    """
    known = {endpoint.host: look_up(endpoint.host) for endpoint in endpoints}
    is_here = _meet_at_loopback(endpoints)
    is_on_link = any("%" in host for host in known)
    tentative = tentative_addresses()
    ways: tuple[Callable[[], Sequence[str]], ...] = (
        *(lambda found=found: _towards(found) for found in known.values()),
        lambda: _towards(_ANYBODY),
        lambda: look_up(socket.gethostname()),
        interface_addresses,
    )
    for way in ways:
        for address in way():
            if (not is_on_link and _is_of_one_link(address)) or address in tentative:
                continue
            if is_here or not is_loopback(address):
                return OwnAddress(
                    address=address, doubt="" if is_here else _doubt_of_names(known, address)
                )
    doubt = "" if is_here else _nobody_reaches(_LOOPBACK)
    return OwnAddress(address=_LOOPBACK, doubt=doubt)


def known_here(host: str) -> Sequence[str]:
    """Return the addresses of a host that need no lookup: of `localhost`, or a literal.

    `localhost` is the loopback address also where no file or server says so (RFC 6761, 6.3).
    """
    if _is_loopback_literal(host):
        with contextlib.suppress(OSError):
            return resolve(host)
        return (_LOOPBACK,)
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        return (host,)
    return ()


def check_loopback(address: str) -> None:
    """Raise UsageError for a loopback address that leads nowhere: workers could not meet there."""
    if not is_loopback(address):
        return
    if (error := _why_unreachable(address)) is not None:
        other = _LOOPBACK if ":" in address else "::1"
        hint = "Is the loopback interface up? `ip link set lo up`"
        if _why_unreachable(other) is None:
            hint = f"This machine has {other} for itself: say --local-addr={other}"
        raise UsageError(
            f"this node is known to the others as {address}, to which no connection can be made "
            f"here ({error.strerror})",
            hint=hint,
        ) from error


def _why_unreachable(address: str) -> OSError | None:
    """Return why no packet can be sent to a literal address; None if one can."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect(socket_address(address, _ANY_PORT))
    except OSError as error:
        return error
    return None


def address_as_said(local_addr: str, endpoints: Sequence[Endpoint], *, said: str) -> OwnAddress:
    """Return the address that the user gave for this node (`said`: by which option).

    A name that only stands for this machine itself here (Debian's `127.0.1.1`) says nothing about
    the address: then it is the one towards the endpoints. Raises UsageError.
    """
    try:
        found = resolve(local_addr)
    except OSError as error:
        raise UsageError(
            f"{said}={local_addr}: no such address ({error.strerror})",
            hint="Expected a name or an IP address of this machine, as `ip address` shows.",
        ) from error
    usable = [each for each in found if "%" in local_addr or not _is_of_one_link(each)]
    if not usable:
        raise UsageError(
            f"{said}={local_addr}: a link-local address needs its interface, to which other nodes "
            "must have one of the same name",
            hint=f"As in {said}={local_addr}%eth0; an address that is not link-local is better.",
        )
    is_literal = _is_loopback_literal(local_addr)
    for address in usable:
        if is_literal or not is_loopback(address):
            return OwnAddress(address=address, is_said=True)
    towards = own_address(endpoints)
    return OwnAddress(
        address=towards.address,
        doubt=_guess_of({local_addr: usable}, towards.address),
    )


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
    found += [address for address, flags in _ipv6_flags() if not flags & _TENTATIVE]
    return [
        each
        for each in found
        if not is_loopback(each) and not ipaddress.ip_address(each).is_link_local
    ]


def tentative_addresses() -> frozenset[str]:
    """Return this machine's IPv6 addresses that are tentative: they cannot be bound yet."""
    return frozenset(address for address, flags in _ipv6_flags() if flags & _TENTATIVE)


def _ipv6_flags() -> list[tuple[str, int]]:
    """Return the addresses of IPv6, each with what the kernel says of it (IFA_F_*)."""
    with contextlib.suppress(OSError), open("/proc/net/if_inet6", encoding="ascii") as lines:
        words = [line.split() for line in lines]
        return [(str(ipaddress.ip_address(bytes.fromhex(w[0]))), int(w[4], 16)) for w in words]
    return []


def _doubt_of_names(known: Mapping[str, Sequence[str]], address: str) -> str:
    """Return what is doubtful where all names lead back to this machine, as it seems from here."""
    found = [each for addresses in known.values() for each in addresses]
    if not found or not all(map(is_loopback, found)):
        return ""
    return _guess_of({name: each for name, each in known.items() if each}, address)


def _guess_of(known: Mapping[str, Sequence[str]], address: str) -> str:
    names = ", ".join(f"{name} is {', '.join(each)}" for name, each in known.items())
    return (
        f"{names} on this machine, so that its way to the others had to be guessed: it is known to "
        f"them as {address}, of {', '.join(interface_addresses())} (--local-addr gives another)"
    )


def _nobody_reaches(address: str) -> str:
    return (
        f"this node is known to the others as {address}, which no other machine can reach: it has "
        "no other address (--local-addr gives one)"
    )


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


def is_loopback(address: str) -> bool:
    """Tell whether an IP address is this machine's own for itself alone."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _is_of_one_link(address: str) -> bool:
    """Tell whether an address is one of IPv6 that means nothing without an interface."""
    return ":" in address and ipaddress.ip_address(address.partition("%")[0]).is_link_local


def _towards(addresses: Sequence[str]) -> list[str]:
    """Return the own addresses that are used towards others; none where there is no way.

    There may be a way, and no address of that family.
    """
    found = []
    for address in addresses:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        # Connecting a datagram socket sends nothing; it only asks the routing table.
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect(socket_address(address, _ANY_PORT))
            found.append(numeric_address(sock.getsockname()))
    return [each for each in found if each not in {"0.0.0.0", "::"}]
