"""A node's own /etc/hosts and name service, in place of those that all nodes share."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from elastic_harness.cluster.names.name_service import RESOLV_CONF, NameService
from elastic_harness.cluster.node import namespace as ns
from pytest_elastic.loop import Loop

__all__ = ["HOSTS_FILE", "NodeNames"]

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
            self._write("resolv.conf", RESOLV_CONF)
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
