"""Hosts torch's TCPStores, the endpoint's and those of the rounds, on addresses of this machine.

Everything here blocks, and is called on threads of the store service only; `store_client` asks the
stores.
"""

from __future__ import annotations

import errno
import functools
import ipaddress
import os
import socket
from datetime import timedelta
from typing import TYPE_CHECKING

from pytest_elastic.channel import listen, listen_on_free_port, socket_address
from pytest_elastic.errors import StoreUnreachable
from pytest_elastic.name_servers import without_name_servers
from pytest_elastic.port_range import PortRange
from pytest_elastic.workers.store.name_lookup import addresses_of
from pytest_elastic.workers.store.own_address import is_loopback, tentative_addresses

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch does not list it

__all__ = ["NameUnknown", "PortInUse", "host_store", "open_store", "prepare", "where_to_bind"]

# A name that is looked up for longer is one that is not known yet; nodes ask for it again.
_LOOK_UP_S = 4.0


class NameUnknown(StoreUnreachable):
    """A name has no address yet, as far as this machine can tell."""


class PortInUse(StoreUnreachable):
    """Another process listens there: perhaps that of a job which is about to end."""


def where_to_bind(host: str, *, is_forced: bool) -> str:
    """Return the address to host the endpoint's store on; raises StoreUnreachable if not here.

    Raises NameUnknown for a name without an address, which may get one later, and for an address
    of this machine that the kernel gives out later.

    A literal address is bound exactly, so that several can be used side by side on one machine. A
    name means this machine when one of its addresses is ours, and is served at that address alone.
    It is served on all interfaces where that would keep others out: several of its addresses are
    ours, it is a loopback address here alone (127.0.1.1 in Debian's `/etc/hosts`), or, with
    `is_forced`, none is ours (a Kubernetes service's).
    """
    addresses = _resolve(host)
    if checked := tentative_addresses().intersection(addresses):
        raise NameUnknown(
            f"{', '.join(sorted(checked))} is an address of this machine that cannot be used yet: "
            "the kernel still looks whether another machine has it (duplicate address detection)"
        )
    ours = [address for address in addresses if _is_ours(address)]
    if not ours and not is_forced:
        raise StoreUnreachable(f"{host} ({', '.join(addresses)}) is not an address of this machine")
    is_literal = host in addresses or host == "localhost"
    if ours and (is_literal or (len(ours) == 1 and not is_loopback(ours[0]))):
        return ours[0]
    return "::" if socket.has_dualstack_ipv6() else "0.0.0.0"


def prepare() -> None:
    """Import what the other functions need: the one thing here that takes a second."""
    import torch.distributed  # noqa: F401


def host_store(host: str, port: int) -> tuple[TCPStore, int]:
    """Open a store that listens on `host` (an address) and `port` (0: any); returns both."""
    try:
        listener = _listen_dual(port) if host == "::" else listen(host, port)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        said = f"cannot listen on {host}:{port}: {why}"
        if error.errno == errno.EADDRINUSE:
            raise PortInUse(f"{said}: another process listens there") from error
        raise StoreUnreachable(said) from error
    return _serve(listener, host)


def open_store(host: str, ports: PortRange | None, after: int | None) -> tuple[TCPStore, int]:
    """Open a store on a free port (see `listen_on_free_port`); returns both."""
    try:
        listener = listen_on_free_port(host, ports, after=after)
    except OSError as error:
        why = error.strerror or str(error)
        raise StoreUnreachable(f"cannot listen on {host}: {why}") from error
    return _serve(listener, host)


def _serve(listener: socket.socket, host: str) -> tuple[TCPStore, int]:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch does not list it

    bound = listener.getsockname()[1]
    # The store's own client dials this: any address that leads to the listener.
    dialled = {"::": "::1", "0.0.0.0": "127.0.0.1"}.get(host, host)
    make = functools.partial(
        TCPStore,
        dialled,
        bound,
        is_master=True,
        timeout=timedelta(seconds=30),
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )
    with without_name_servers():
        try:
            store = make()
        except NotImplementedError:  # torch 2.7: only its older server takes a listener
            store = make(use_libuv=False)
    return store, bound


def _listen_dual(port: int) -> socket.socket:
    sock = socket.create_server(
        ("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=512
    )
    sock.setblocking(False)
    return sock


def _resolve(host: str) -> list[str]:
    try:
        return addresses_of(host, _LOOK_UP_S)
    except UnicodeError as error:
        raise StoreUnreachable(f"{host!r} is no name of a host: {error}") from error
    except TimeoutError as error:
        raise NameUnknown(str(error.strerror)) from error
    except OSError as error:
        raise NameUnknown(f"the name {host} is not known here: {error.strerror}") from error


def _is_ours(address: str) -> bool:
    """Tell whether an interface of this machine carries the address: it can be bound."""
    version = ipaddress.ip_address(address.partition("%")[0]).version
    family = socket.AF_INET6 if version == 6 else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.bind(socket_address(address, 0))
    except OSError as error:
        # A machine without IPv6 may know a name by an address of it all the same.
        return error.errno not in {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}
    return True
