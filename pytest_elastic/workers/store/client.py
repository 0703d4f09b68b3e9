"""A client of torch's TCPStore with time limits that hold, which torch's own client does not have.

torch's client looks the name of its peer's address up for its log lines, for as long as the
resolver takes, and waits for ever for a frozen host. This one speaks the few commands that are
needed over a socket of its own. The format (TCPStoreBackend.hpp) was tried with torch 2.7, 2.10 and
2.13: one byte for the command, texts with their length in eight bytes, keys with a slash before
them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
import time
from collections.abc import Iterator

from pytest_elastic.channel import socket_address
from pytest_elastic.errors import StoreUnreachable
from pytest_elastic.workers.store.name_lookup import addresses_of

__all__ = ["fetch", "publish", "swap"]

_VALIDATE, _SET, _COMPARE_SET, _GET, _CHECK, _PING = 0, 1, 2, 3, 5, 13
_MAGIC = 0x3C85F7CE
# The first words of a client: VALIDATE with the magic number, then PING with a number that the
# store sends back.
_GREETING = struct.Struct("<BIBI")
_PONG = struct.Struct("<I")
_SIZE = struct.Struct("<Q")
_IS_SET = {b"\0": True, b"\1": False}
# Records are a few kilobytes; a longer answer is not a store's.
_MAX_VALUE_BYTES = 16 * 1024 * 1024
# How much of a call's time a lookup may take where the last known addresses can be tried instead.
_LOOKUP_SHARE = 0.5
_POLL_S = 0.02


def publish(host: str, port: int, key: str, value: str, timeout_s: float) -> None:
    """Set a key; raises StoreUnreachable."""
    with _connected(host, port, timeout_s) as store:
        store.send(_SET, key, value)
        store.is_set(key)  # SET has no answer of its own


def fetch(host: str, port: int, key: str, timeout_s: float) -> str:
    """Wait for a key and return its value; raises StoreUnreachable, also when it is not set."""
    deadline = time.monotonic() + timeout_s
    with _connected(host, port, timeout_s) as store:
        while not store.is_set(key):
            left_s = deadline - time.monotonic()
            if left_s <= _POLL_S:
                raise StoreUnreachable(
                    f"the store at {host}:{port} has no key {key!r} after {timeout_s:g} s"
                )
            time.sleep(_POLL_S)
        return store.get(key)


def swap(  # noqa: PLR0917 (the first three say where, as everywhere here)
    host: str, port: int, key: str, expected: str, value: str | None, timeout_s: float
) -> str:
    """Set a key if it still holds what is expected, and return what it holds then.

    An empty text stands for a key that is not set; a value of None only looks.
    """
    with _connected(host, port, timeout_s) as store:
        is_set = store.is_set(key)
        if value is None or (expected and not is_set):
            # For a key that is not set, torch would return what was expected of it.
            return store.get(key) if is_set else ""
        store.send(_COMPARE_SET, key, expected, value)
        return store.read_text()


class _Connection:
    """A connection to one store; all waiting together ends at `deadline`."""

    def __init__(self, sock: socket.socket, where: str, deadline: float) -> None:
        self._sock = sock
        self._where = where
        self._deadline = deadline

    def greet(self) -> None:
        nonce = int.from_bytes(os.urandom(4), "little")
        self._sock.sendall(_GREETING.pack(_VALIDATE, _MAGIC, _PING, nonce))
        answer = self._read(_PONG.size)
        if answer != _PONG.pack(nonce):
            found = f"answered {answer!r}" if answer else "closed the connection"
            raise StoreUnreachable(
                f"what listens at {self._where} is not a torch store: it {found}"
            )

    def send(self, command: int, key: str, *values: str) -> None:
        texts = [f"/{key}".encode(), *(value.encode() for value in values)]
        packed = b"".join(_SIZE.pack(len(text)) + text for text in texts)
        count = _SIZE.pack(1) if command == _CHECK else b""  # CHECK takes several keys
        self._sock.settimeout(self._left_s())
        self._sock.sendall(bytes([command]) + count + packed)

    def is_set(self, key: str) -> bool:
        self.send(_CHECK, key)
        answer = self._read(1)
        if answer not in _IS_SET:
            raise self._broken(f"answered {answer!r} to CHECK" if answer else "")
        return _IS_SET[answer]

    def get(self, key: str) -> str:
        self.send(_GET, key)
        return self.read_text()

    def read_text(self) -> str:
        head = self._read(_SIZE.size)
        if len(head) < _SIZE.size:
            raise self._broken("")
        (size,) = _SIZE.unpack(head)
        if size > _MAX_VALUE_BYTES:
            raise self._broken(f"announced a value of {size} bytes (at most {_MAX_VALUE_BYTES})")
        text = self._read(size)
        if len(text) < size:
            raise self._broken("")
        return text.decode(errors="replace")

    def _read(self, size: int) -> bytes:
        """Return so many bytes, or fewer if the store closed the connection."""
        answer = bytearray()
        while len(answer) < size:
            self._sock.settimeout(self._left_s())
            if not (data := self._sock.recv(size - len(answer))):
                break
            answer += data
        return bytes(answer)

    def _left_s(self) -> float:
        if (left_s := self._deadline - time.monotonic()) <= 0:
            raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
        return left_s

    def _broken(self, what: str) -> StoreUnreachable:
        return StoreUnreachable(
            f"the store at {self._where} failed: it {what or 'closed the connection'}"
        )


@contextlib.contextmanager
def _connected(host: str, port: int, timeout_s: float) -> Iterator[_Connection]:
    """Connect, and make sure that a store answers; all errors become StoreUnreachable."""
    where = f"{host}:{port}"
    deadline = time.monotonic() + timeout_s
    addresses = _addresses(host, timeout_s)
    try:
        with _dial(addresses, port, deadline) as sock:
            store = _Connection(sock, where, deadline)
            store.greet()
            yield store
    except TimeoutError as error:
        raise StoreUnreachable(
            f"{where} accepted a connection or dropped it silently, and no store answered within"
            f" {timeout_s:g} s"
        ) from error
    except OSError as error:
        raise StoreUnreachable(f"cannot reach a store at {where}: {error.strerror}") from error


def _addresses(host: str, timeout_s: float) -> list[str]:
    try:
        return addresses_of(host, timeout_s, share_if_known=_LOOKUP_SHARE)
    except TimeoutError as error:
        raise StoreUnreachable(str(error.strerror)) from error
    except socket.gaierror as error:
        raise StoreUnreachable(f"the name {host} is not known here: {error.strerror}") from error
    except UnicodeError as error:
        raise StoreUnreachable(f"{host!r} is no name of a host: {error}") from error


def _dial(addresses: list[str], port: int, deadline: float) -> socket.socket:
    """Connect to the first address that lets us; raises what the first of them said.

    An address of a family that this machine has not tells nothing of the store. Of several
    addresses each gets its share of the time, as the first may be one that drops packets.
    """
    first: OSError | None = None
    for number, address in enumerate(addresses):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        left_s = deadline - time.monotonic()
        try:
            with contextlib.ExitStack() as until_connected:
                sock = until_connected.enter_context(socket.socket(family, socket.SOCK_STREAM))
                sock.settimeout(max(left_s / (len(addresses) - number), 0.001))
                sock.connect(socket_address(address, port))
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                until_connected.pop_all()
                return sock
        except OSError as error:
            if first is None or first.errno == errno.EAFNOSUPPORT:
                first = error
    assert first is not None, "a name that is known has an address"
    raise first
