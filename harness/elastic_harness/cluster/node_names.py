"""A node's own /etc/hosts and name service, in place of those that all nodes share."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from elastic_harness.cluster import namespace as ns
from elastic_harness.cluster.slow_names import RESOLV_CONF, SlowNames
from pytest_elastic.loop import Loop

__all__ = ["HOSTS_FILE", "NodeNames"]

HOSTS_FILE = "/etc/hosts"
_RESOLV_FILE = "/etc/resolv.conf"


class NodeNames:
    """Shows the node's processes other names. `folder` is a descriptor of where its files are.

    The server writes the table `hosts` there; the resolver's settings are written here.
    """

    def __init__(self, loop: Loop, folder: int) -> None:
        self._loop = loop
        self._folder = folder
        self._covered: list[str] = []
        self._service: SlowNames | None = None

    @property
    def asked(self) -> int:
        """How many questions the slow name service has had."""
        return 0 if self._service is None else self._service.asked

    def show(self, *, is_own: bool, slow: Mapping[str, Sequence[Any]]) -> str:
        """Show the node's own table or the one of all, and serve slow names; return the table."""
        if is_own:
            self._cover(HOSTS_FILE, "hosts")
        if slow:
            if self._service is None:
                self._service = SlowNames(self._loop)
            self._service.tell({name: (found[0], found[1]) for name, found in slow.items()})
            self._write("resolv.conf", RESOLV_CONF)
            self._cover(_RESOLV_FILE, "resolv.conf")
        elif self._service is not None:
            self._service.close()
            self._service = None
            self._uncover(_RESOLV_FILE)
        if not is_own:
            self._uncover(HOSTS_FILE)
        with open(HOSTS_FILE) as hosts:
            return hosts.read()

    def _cover(self, path: str, name: str) -> None:
        if path not in self._covered:
            source = os.open(name, os.O_PATH | os.O_CLOEXEC, dir_fd=self._folder)
            try:
                ns.bind_mount(source, path)
            finally:
                os.close(source)
            self._covered.append(path)

    def _uncover(self, path: str) -> None:
        if path in self._covered:
            ns.unmount(path)
            self._covered.remove(path)

    def _write(self, name: str, text: str) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        fd = os.open(name, flags, 0o644, dir_fd=self._folder)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)
