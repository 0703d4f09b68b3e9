"""The names that a node knows: an /etc/hosts and a name service of its own.

They are shown in place of those that all nodes share, once a fault has changed a name.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from elastic_harness.cluster.node import namespace as ns
from elastic_harness.network.names import answer_to, question_in
from pytest_elastic.loop import Loop

__all__ = ["HOSTS_FILE", "NodeNames"]

_ADDRESS = ("127.0.0.1", 53)
# By name: the address (None: there is none), the seconds that an answer takes, and whose lie it is.
KnownNames = Mapping[str, tuple[str | None, float, str]]
# As long as glibc would wait; it asks a second time only when no answer has come by then.
_RESOLV_CONF = f"nameserver {_ADDRESS[0]}\noptions timeout:30 attempts:2\n"
# Names are asked for one by one; more at once than this is no resolver.
_MAX_WAITING = 1024

HOSTS_FILE = "/etc/hosts"
_RESOLV_FILE = "/etc/resolv.conf"
_SWITCH_FILE = "/etc/nsswitch.conf"
_ORDER = ["hosts:", "files", "dns"]


class NodeNames:
    """Shows the node's processes other names. `folder` is a descriptor of where its files are.

    The server writes the table `hosts` there; the resolver's settings are written here: for what is
    not in the table, our name service is asked, and no other.
    """

    def __init__(self, loop: Loop, folder: int) -> None:
        self._loop = loop
        self._folder = folder
        self._mounted: list[str] = []
        self._service: NameService | None = None

    @property
    def asked(self) -> Mapping[str, Mapping[str, int]]:
        """How often the name service was asked for which name, by whose change that is."""
        return {} if self._service is None else self._service.asked

    def show(self, served: Mapping[str, Sequence[Any]]) -> str:
        """Show the node's own table, without the names that are `served`; return the table.

        Without any it is the table of all nodes again.
        """
        if served:
            self._bind_over(HOSTS_FILE, "hosts")
            if self._service is None:
                self._service = NameService(self._loop)
            self._service.tell({name: (each[0], each[1], each[2]) for name, each in served.items()})
            self._write("resolv.conf", _RESOLV_CONF)
            self._bind_over(_RESOLV_FILE, "resolv.conf")
            if (switch := _switch_of()) is not None:
                self._write("nsswitch.conf", switch)
                self._bind_over(_SWITCH_FILE, "nsswitch.conf")
        elif self._service is not None:
            self._service.close()
            self._service = None
            for path in list(self._mounted):
                self._unbind(path)
        with open(HOSTS_FILE) as hosts:
            return hosts.read()

    def _bind_over(self, path: str, name: str) -> None:
        if path not in self._mounted:
            source = os.open(name, os.O_PATH | os.O_CLOEXEC, dir_fd=self._folder)
            try:
                ns.bind_mount(source, path)
            finally:
                os.close(source)
            self._mounted.append(path)

    def _unbind(self, path: str) -> None:
        if path in self._mounted:
            ns.unmount(path)
            self._mounted.remove(path)

    def _write(self, name: str, text: str) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        fd = os.open(name, flags, 0o644, dir_fd=self._folder)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)


def _switch_of() -> str | None:
    """Return the machine's own order of name services with ours next to the table, if it is not so.

    On many machines another service comes first, which answers beside the node's network.
    """
    try:
        with open(_SWITCH_FILE) as file:
            lines = file.read().splitlines()
    except OSError:
        return None  # the C library's own order then is the table, then a name service
    found = [line for line in lines if line.split()[:1] == _ORDER[:1]]
    if [line.split() for line in found] == [_ORDER]:
        return None
    return "\n".join([*(line for line in lines if line not in found), " ".join(_ORDER), ""])


class NameService:
    """Serves until `close`.

    `asked` counts the questions about names that it knows: by whose they are, and by name.
    """

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._names: KnownNames = {}
        self._waiting = 0
        self.asked: dict[str, dict[str, int]] = {}
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        try:
            self._socket.bind(_ADDRESS)
        except OSError:
            self._socket.close()
            raise
        loop.watch(self._socket.fileno(), on_readable=self._read)

    def tell(self, names: KnownNames) -> None:
        """Know these names from now on; there are no others."""
        self._names = names

    def close(self) -> None:
        """Serve no more; who waits for an answer gets none."""
        self._loop.unwatch(self._socket.fileno())
        self._socket.close()

    def _read(self) -> None:
        try:
            message, asker = self._socket.recvfrom(512)
        except OSError:
            return
        question = question_in(message)
        if question is None or self._waiting >= _MAX_WAITING:
            return
        address, slow_s, owner = self._names.get(question.name, (None, 0.0, ""))
        if question.name in self._names:
            by_name = self.asked.setdefault(owner, {})
            by_name[question.name] = by_name.get(question.name, 0) + 1
        self._waiting += 1

        def answer() -> None:
            self._waiting -= 1
            if self._socket.fileno() >= 0:
                self._send(answer_to(question, address), asker)

        self._loop.call_at(self._loop.now() + slow_s, answer)

    def _send(self, message: bytes, asker: tuple[str, int]) -> None:
        try:
            self._socket.sendto(message, asker)
        except OSError:
            return  # the asker has gone
