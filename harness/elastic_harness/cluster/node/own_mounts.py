"""Which mounts are ours, among all those of a mount namespace.

The kernel does not say which process has mounted something, and on a machine that does other work
mounts come and go: containers, sessions of users, removable disks. So what is ours has to be known
by itself.
"""

from __future__ import annotations

import os
import re
import tempfile
from dataclasses import dataclass

from elastic_harness.cluster.limits import cgroups
from elastic_harness.cluster.node.namespace import MOUNT_MARK

__all__ = ["own_mounts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mount:
    """A line of `mountinfo`: `below` is the number of the mount that it stands on."""

    number: str
    below: str
    root: str
    place: str
    kind: str
    source: str


def own_mounts(mountinfo: str) -> dict[str, str]:
    """Return our mounts by number, as a person knows them; `mountinfo` is the text of that file.

    Ours are those that name us as their source, as every file system of a cluster does; those that
    show a session's folder, or stand in one; those in pytest's folders of temporary files, where
    tests mount what they mount; and whatever stands on one of these.
    """
    mounts = {mount.number: mount for mount in map(_read, mountinfo.splitlines())}
    temporary = f"{os.path.realpath(tempfile.gettempdir())}/pytest-of-"
    ours = {
        mount.number
        for mount in mounts.values()
        if mount.source == MOUNT_MARK
        or mount.place.startswith(temporary)
        or any(map(cgroups.is_tag, (*mount.root.split("/"), *mount.place.split("/"))))
    }
    found: dict[str, str] = {}
    for mount in mounts.values():
        upon, seen = mount, {mount.number}
        while upon.number not in ours and upon.below in mounts and upon.below not in seen:
            upon = mounts[upon.below]
            seen.add(upon.number)
        if upon.number in ours:
            found[mount.number] = f"{mount.kind} on {mount.place}"
    return found


def _read(line: str) -> _Mount:
    """Read one line: `36 35 98:0 /root /place rw,noatime master:1 - ext4 /dev/sda1 rw`."""
    before, _, after = line.partition(" - ")
    number, below, _, root, place, *_ = before.split(" ")
    kind, source, *_ = after.split(" ")
    return _Mount(
        number=number, below=below, root=_plain(root), place=_plain(place), kind=kind, source=source
    )


def _plain(text: str) -> str:
    """Undo the kernel's way with spaces and line breaks: a backslash and three octal digits."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)
