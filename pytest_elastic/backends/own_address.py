"""Which address of this machine the other nodes shall use (R14)."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Sequence

from pytest_elastic.channel import host_to_look_up
from pytest_elastic.config import Endpoint
from pytest_elastic.errors import UsageError

__all__ = ["own_address"]

# An address that is nobody's (RFC 5737): the way there is the way to anybody.
_ANYBODY = "192.0.2.1"


def own_address(local_addr: str | None, endpoints: Sequence[Endpoint], *, said: str) -> str:
    """Return an IP address of this machine.

    It is what the user said (`said`: by which option), or the address that this machine would use
    towards the first endpoint that has one, or towards others at all where nodes meet at none: that
    needs no name of its own, and picks the right one of several interfaces. Raises UsageError.
    """
    if local_addr:
        try:
            return str(socket.getaddrinfo(host_to_look_up(local_addr), None)[0][4][0])
        except OSError as error:
            raise UsageError(
                f"{said}={local_addr}: no such address ({error.strerror})",
                hint="Expected a name or an IP address of this machine, as `ip address` shows.",
            ) from error
    for endpoint in endpoints:
        with contextlib.suppress(OSError):
            return _towards(endpoint.host, endpoint.port or 9) or "127.0.0.1"
    # A name may become known later, when the host is up: the store service tries again.
    return _towards(_ANYBODY, 9) or (_address_by_name() if not endpoints else "127.0.0.1")


def _towards(host: str, port: int) -> str:
    """Return the address that is used towards a host, empty without a way; raises OSError."""
    found = socket.getaddrinfo(host_to_look_up(host), port, type=socket.SOCK_DGRAM)
    family, _, _, _, where = found[0]
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        try:
            # Connecting a datagram socket sends nothing; it only asks the routing table.
            sock.connect(where)
        except OSError:
            return ""
        return str(sock.getsockname()[0])


def _address_by_name() -> str:
    """Return the address that this machine's own name has: its network has no way out."""
    with contextlib.suppress(OSError):
        for entry in socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM):
            address = str(entry[4][0])
            if not ipaddress.ip_address(address.partition("%")[0]).is_loopback:
                return address
    return "127.0.0.1"
