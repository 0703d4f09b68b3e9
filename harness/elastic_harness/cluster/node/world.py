"""What a node sees that others do not: its network device, its name, its disks, its processes.

Built by the node's own pid 1, in namespaces that its parent has just made. The order matters:
descriptors of what is to be shown again are opened before something is mounted over it.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from elastic_harness.cluster.cluster import PRIVATE_TREES
from elastic_harness.cluster.node import device
from elastic_harness.cluster.node import namespace as ns

__all__ = ["NodePlan", "Surroundings", "build", "disk_path"]

DEVICE = "eth0"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a node's pid 1 keeps of its making: its device, and the folder of its own names."""

    device: int
    names: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlan:
    """A node to be built. All paths are those of the cluster server's mounts.

    `hosts` is the table of names that all nodes share, `names` the folder for the node's own. It
    sends no more than `mtu` bytes at a time, where that is given, and leaves no segments to others.
    """

    name: str
    index: int
    address: str
    is_isolated: bool
    hosts: str
    names: str
    disk: str
    shared: Sequence[str] = ()
    read_only: Sequence[str] = ()
    sysctls: Mapping[str, str] = field(default_factory=dict)
    mtu: int | None = None


def disk_path(shared: Sequence[str]) -> str:
    """Return where a node finds its local disk, given what is shared with the host."""
    tree = next(tree for tree in PRIVATE_TREES if tree not in shared)
    return f"{tree}/disk"


def build(plan: NodePlan) -> Surroundings:
    """Make the surroundings of a node around this process; returns two descriptors of them."""
    socket.sethostname(plan.name)
    fd = device.open_tun(DEVICE, offloads=plan.mtu is None)
    device.set_up("lo")
    names = _open_path(plan.names)
    _mount_private_trees(plan)
    for path in filter(os.path.exists, plan.read_only):
        ns.bind_read_only(path)
    # `eth0` would announce itself by IPv6 all the time, for nothing.
    _write_if_there(f"/proc/sys/net/ipv6/conf/{DEVICE}/disable_ipv6", "1")
    for name, value in plan.sysctls.items():
        ns.write_file(f"/proc/sys/net/{name.replace('.', '/')}", value)
    device.configure(DEVICE, plan.address, 24, mtu=plan.mtu or device.MTU)
    ns.set_next_pid(_first_pid(plan.index))
    return Surroundings(fd, names)


def _mount_private_trees(plan: NodePlan) -> None:
    trees = [tree for tree in PRIVATE_TREES if tree not in plan.shared]
    disk, hosts = _open_path(plan.disk), _open_path(plan.hosts)
    kept = {path: _open_path(path) for path in _shared_below(trees, plan.shared)}
    cgroups = _open_path("/sys/fs/cgroup") if os.path.isdir("/sys/fs/cgroup") else None
    ns.mount(ns.MOUNT_MARK, "/proc", "proc", ns.MS_NOSUID | ns.MS_NODEV | ns.MS_NOEXEC)
    for tree in trees:
        ns.mount(ns.MOUNT_MARK, tree, "tmpfs", ns.MS_NOSUID | ns.MS_NODEV, "mode=1777")
    for path, source in kept.items():
        _make_place(path, is_directory=os.path.isdir(f"/proc/self/fd/{source}"))
        _bind_and_close(source, path)
    os.mkdir(disk_path(plan.shared))
    _bind_and_close(disk, disk_path(plan.shared))
    _bind_and_close(hosts, "/etc/hosts")
    _mount_sys(cgroups)


def _mount_sys(cgroups: int | None) -> None:
    """Mount a sysfs of the node's own: it shows the devices of the namespace it is mounted in.

    Where parts of /sys are masked, as in some containers, the kernel refuses; then the node sees
    the host's devices there, which nothing we know of minds.
    """
    with contextlib.suppress(PermissionError):
        ns.mount(ns.MOUNT_MARK, "/sys", "sysfs", ns.MS_NOSUID | ns.MS_NODEV | ns.MS_NOEXEC)
        if cgroups is not None:
            ns.bind_mount(cgroups, "/sys/fs/cgroup")
    if cgroups is not None:
        os.close(cgroups)


def _shared_below(trees: Sequence[str], shared: Sequence[str]) -> list[str]:
    """Return the shared directories that a private tree would hide, outermost ones only."""
    below: list[str] = []
    for path in sorted(set(shared)):
        is_hidden = any(path.startswith(f"{tree}/") for tree in trees)
        if is_hidden and not any(path.startswith(f"{outer}/") for outer in below):
            below.append(path)
    return below


def _open_path(path: str) -> int:
    return os.open(path, os.O_PATH | os.O_CLOEXEC)


def _bind_and_close(source: int, target: str) -> None:
    ns.bind_mount(source, target)
    os.close(source)


def _make_place(path: str, *, is_directory: bool) -> None:
    os.makedirs(path if is_directory else os.path.dirname(path), exist_ok=True)
    if not is_directory:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC))


def _write_if_there(path: str, text: str) -> None:
    if os.path.exists(path):
        ns.write_file(path, text)


def _first_pid(index: int) -> int:
    """Return index x 1 000, so that no two nodes number alike, while the machine's limit allows."""
    with open("/proc/sys/kernel/pid_max") as limit:
        highest = int(limit.read())
    wraps, first = divmod(index * 1000, highest - 2000)
    # After a wrap not the same numbers again, and never those that a namespace keeps for itself.
    return first + 300 * wraps
