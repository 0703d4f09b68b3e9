"""torch's TCPStore, with what it lacks: deadlines that hold, and errors that say what was found.

Everything here blocks, and is called on threads of the store service only. A TCPStore client blocks
for ever against a port that accepts and does not answer (a frozen host, another service), whatever
its timeout: so each call first asks, with a socket of ours, whether a store answers there.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
import struct
import time
from datetime import timedelta
from typing import TYPE_CHECKING

from pytest_elastic.channel import host_to_look_up, listen
from pytest_elastic.errors import StoreUnreachable

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch does not list it

__all__ = ["check_answers", "fetch", "host_store", "prepare", "publish", "swap", "where_to_bind"]

# The first words of a TCPStore client since torch 2.4: VALIDATE with its magic number, then PING
# with a number that the store sends back.
_VALIDATE, _MAGIC, _PING = 0, 0x3C85F7CE, 13
_GREETING = struct.Struct("<BIBI")
_PONG = struct.Struct("<I")


def where_to_bind(host: str, *, is_forced: bool) -> str:
    """Return the address to host the endpoint's store on; raises StoreUnreachable if not here.

    A literal address is bound exactly, so that several can be used side by side on one machine. A
    name means this machine when one of its addresses is ours, and is then served on all of them:
    the others may know it by another address than this machine does (127.0.1.1 in `/etc/hosts`).
    """
    addresses = _resolve(host)
    ours = [address for address in addresses if _is_ours(address)]
    if not ours and not is_forced:
        raise StoreUnreachable(f"{host} ({', '.join(addresses)}) is not an address of this machine")
    if host in addresses or host == "localhost":
        return ours[0] if ours else "::"
    return "::" if socket.has_dualstack_ipv6() else "0.0.0.0"


def prepare() -> None:
    """Import what the other functions need: the one thing here that takes a second."""
    import torch.distributed  # noqa: F401


def host_store(host: str, port: int) -> tuple[TCPStore, int]:
    """Open a store that listens on `host` (an address) and `port` (0: any); returns both."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch does not list it

    try:
        listener = _listen_dual(port) if host == "::" else listen(host, port)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        whose = ": another process listens there" if error.errno == errno.EADDRINUSE else ""
        raise StoreUnreachable(f"cannot listen on {host}:{port}: {why}{whose}") from error
    bound = listener.getsockname()[1]
    # The store's own client dials this: any address that leads to the listener.
    dialled = {"::": "::1", "0.0.0.0": "127.0.0.1"}.get(host, host)
    store = TCPStore(
        dialled,
        bound,
        is_master=True,
        timeout=timedelta(seconds=30),
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )
    return store, bound


def publish(host: str, port: int, key: str, value: str, timeout_s: float) -> None:
    """Set a key; raises StoreUnreachable."""
    with _translated(host, port, timeout_s):
        _connect(host, port, timeout_s).set(key, value)


def fetch(host: str, port: int, key: str, timeout_s: float) -> str:
    """Wait for a key and return its value; raises StoreUnreachable, also when it is not set."""
    with _translated(host, port, timeout_s):
        deadline = time.monotonic() + timeout_s
        store = _connect(host, port, timeout_s)
        # Asked first: a wait that runs out makes torch print warnings of its own.
        while not store.check([key]):
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise StoreUnreachable(
                    f"the store at {host}:{port} has no key {key!r} after {timeout_s:g} s"
                )
            time.sleep(min(left_s, 0.02))
        value: bytes = store.get(key)
        return value.decode(errors="replace")


def swap(  # noqa: PLR0917 (the first three say where, as everywhere here)
    host: str, port: int, key: str, expected: str, value: str | None, timeout_s: float
) -> str:
    """Set a key if it still holds what is expected, and return what it holds then.

    An empty text stands for a key that is not set; a value of None only looks.
    """
    with _translated(host, port, timeout_s):
        store = _connect(host, port, timeout_s)
        is_set = store.check([key])
        if value is None or (expected and not is_set):
            # For a key that is not set, torch would return what was expected of it.
            return str(store.get(key), errors="replace") if is_set else ""
        return str(store.compare_set(key, expected, value), errors="replace")


def check_answers(host: str, port: int, timeout_s: float) -> None:
    """Make sure that a store answers at the address; raises StoreUnreachable saying what did."""
    where = f"{host}:{port}"
    nonce = int.from_bytes(os.urandom(4), "little")
    try:
        with _dial(host, port, timeout_s) as connection:
            connection.sendall(_GREETING.pack(_VALIDATE, _MAGIC, _PING, nonce))
            answer = b""
            while len(answer) < _PONG.size and (data := connection.recv(_PONG.size)):
                answer += data
    except TimeoutError as error:
        raise StoreUnreachable(
            f"{where} accepted a connection or dropped it silently, and no store answered within"
            f" {timeout_s:g} s"
        ) from error
    except socket.gaierror as error:
        raise StoreUnreachable(f"the name {host} is not known here: {error.strerror}") from error
    except OSError as error:
        raise StoreUnreachable(f"cannot reach a store at {where}: {error.strerror}") from error
    if answer != _PONG.pack(nonce):
        found = f"answered {answer!r}" if answer else "closed the connection"
        raise StoreUnreachable(f"what listens at {where} is not a torch store: it {found}")


def _dial(host: str, port: int, timeout_s: float) -> socket.socket:
    """Connect to the first address of a host that lets us; raises what the first of them said.

    An address of a family that this machine has not tells nothing of the store.
    """
    first: OSError | None = None
    found = socket.getaddrinfo(host_to_look_up(host), port, type=socket.SOCK_STREAM)
    for family, kind, proto, _, address in found:
        try:
            with contextlib.ExitStack() as until_connected:
                sock = until_connected.enter_context(socket.socket(family, kind, proto))
                sock.settimeout(timeout_s)
                sock.connect(address)
                until_connected.pop_all()
                return sock
        except OSError as error:
            if first is None or first.errno == errno.EAFNOSUPPORT:
                first = error
    assert first is not None, "a name that is known has an address"
    raise first


def _connect(host: str, port: int, timeout_s: float) -> TCPStore:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch does not list it

    check_answers(host, port, timeout_s)
    return TCPStore(
        host, port, is_master=False, timeout=timedelta(seconds=timeout_s), wait_for_workers=False
    )


class _translated(contextlib.AbstractContextManager["_translated"]):  # noqa: N801 (reads as a verb)
    """Turn torch's errors into ours; torch's classes are private names in places."""

    def __init__(self, host: str, port: int, timeout_s: float) -> None:
        self._where = f"{host}:{port}"
        self._timeout_s = timeout_s

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, RuntimeError | ValueError):
            text = str(error).partition("\n")[0]
            raise StoreUnreachable(f"the store at {self._where} failed: {text}") from error


def _listen_dual(port: int) -> socket.socket:
    sock = socket.create_server(
        ("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=512
    )
    sock.setblocking(False)
    return sock


def _resolve(host: str) -> list[str]:
    try:
        found = socket.getaddrinfo(host_to_look_up(host), None, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise StoreUnreachable(f"the name {host} is not known here: {error.strerror}") from error
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def _is_ours(address: str) -> bool:
    """Tell whether an interface of this machine carries the address: it can be bound."""
    version = ipaddress.ip_address(address.partition("%")[0]).version
    family = socket.AF_INET6 if version == 6 else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.bind((address, 0))
    except OSError as error:
        # A machine without IPv6 may know a name by an address of it all the same.
        return error.errno not in {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}
    return True
