"""Where a server keeps what nodes need from outside: the table of names, and their local disks.

With namespaces it is a tmpfs on the server's own /dev/shm, which ends with the server; without, a
directory of temporary files that the supervisor removes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping

from elastic_harness.cluster.node import namespace as ns
from elastic_harness.cluster.server import stale_resources
from elastic_harness.network.names import hosts_text

__all__ = ["Scratch"]


class Scratch:
    """The server's own folder."""

    def __init__(self, tag: str, *, is_isolated: bool) -> None:
        self._is_isolated = is_isolated
        self._names: dict[str, str] = {}
        self._mounted: set[str] = set()
        if is_isolated:
            self._folder = "/dev/shm"  # noqa: S108 (this process's own)
            ns.mount(ns.MOUNT_MARK, self._folder, "tmpfs", ns.MS_NOSUID | ns.MS_NODEV, "mode=755")
        else:
            self._folder = stale_resources.scratch_folder(tag)
            os.mkdir(self._folder, 0o700)
        self.hosts = f"{self._folder}/hosts"
        os.mkdir(f"{self._folder}/disks")
        os.mkdir(f"{self._folder}/names")
        self._changed: dict[str, Mapping[str, str | None]] = {}
        self._write_hosts()

    def disk(self, name: str) -> str:
        """Return the folder that holds a node's local disk."""
        return f"{self._folder}/disks/{name}"

    def make_temporary(self, name: str) -> None:
        """Give a node an empty folder of temporary files, where it has no /tmp of its own."""
        if not self._is_isolated:
            folder = stale_resources.temporary_folder(self._folder, name)
            shutil.rmtree(folder, ignore_errors=True)
            os.makedirs(folder, mode=0o700)

    def add_name(self, name: str, address: str) -> None:
        """Have every node, those that run included, know a name."""
        if self._names.get(name) != address:
            self._names[name] = address
            self._write_hosts()

    def names_folder(self, name: str) -> str:
        """Return the folder for a node's own table of names, made if it is not there."""
        folder = f"{self._folder}/names/{name}"
        os.makedirs(folder, mode=0o755, exist_ok=True)
        return folder

    def change_names(self, node: str, changes: Mapping[str, str | None]) -> None:
        """Write a node's own table: names with another address, or (None) without any."""
        if changes:
            self._changed[node] = changes
            self._write_hosts_of(node)
        else:
            self._changed.pop(node, None)

    def address_of(self, name: str) -> str | None:
        """Return the true address of a name."""
        return self._names.get(name)

    def make_disk(self, name: str, *, keep: bool) -> None:
        """Provide a node's disk, empty unless it is to be kept."""
        path = self.disk(name)
        if not keep:
            self._remove_disk(name)
        if os.path.isdir(path):
            return
        os.mkdir(path)
        if self._is_isolated:
            ns.mount(ns.MOUNT_MARK, path, "tmpfs", ns.MS_NOSUID | ns.MS_NODEV, "mode=1777")
            self._mounted.add(name)

    def clear(self) -> None:
        """Forget all names and disks."""
        self._names.clear()
        self._changed.clear()
        self._write_hosts()
        for name in os.listdir(f"{self._folder}/disks"):
            self._remove_disk(name)
        if not self._is_isolated:
            shutil.rmtree(stale_resources.temporary_folder(self._folder), ignore_errors=True)

    def _remove_disk(self, name: str) -> None:
        path = self.disk(name)
        if name in self._mounted:
            ns.unmount(path)
            self._mounted.discard(name)
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)

    def _write_hosts(self) -> None:
        """Write the table of names in place: nodes have this very file as their /etc/hosts."""
        _write_in_place(self.hosts, hosts_text(self._names))
        for node in self._changed:
            self._write_hosts_of(node)

    def _write_hosts_of(self, node: str) -> None:
        names: dict[str, str | None] = {**self._names, **self._changed[node]}
        known = {name: address for name, address in names.items() if address is not None}
        _write_in_place(f"{self.names_folder(node)}/hosts", hosts_text(known))


def _write_in_place(path: str, content: str) -> None:
    text = content.encode()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    os.pwrite(fd, text, 0)
    os.ftruncate(fd, len(text))
    os.close(fd)
