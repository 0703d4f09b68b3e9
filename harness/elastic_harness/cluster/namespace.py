"""The kernel calls behind a node: namespaces, mounts, network devices. One small function for each.

Everything here raises OSError with the act in its text. ctypes is loaded once, by whoever imports
this file: the server, its helpers and the dry run, never pytest itself.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from collections.abc import Iterable

__all__ = [
    "CLONE_NEWIPC",
    "CLONE_NEWNET",
    "CLONE_NEWNS",
    "CLONE_NEWPID",
    "CLONE_NEWUSER",
    "CLONE_NEWUTS",
    "MTU",
    "NODE_NAMESPACES",
    "add_address",
    "become_subreaper",
    "bind_mount",
    "die_with_parent",
    "enter_server_namespaces",
    "enter_user_namespace",
    "mount",
    "open_tun",
    "set_next_pid",
    "set_up",
    "unmount",
    "unshare",
    "write_file",
]

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

# What a node has for itself; SysV and POSIX ipc objects are the cluster's.
NODE_NAMESPACES = CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWNET | CLONE_NEWPID

MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_REMOUNT = 0x20
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
_MNT_DETACH = 2

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36

_TUNSETIFF = 0x400454CA
_TUNSETPERSIST = 0x400454CB
_TUNSETOFFLOAD = 0x400454D0
_IFF_TUN, _IFF_NO_PI, _IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
_TUN_FLAGS = _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR
_TUN_F_CSUM, _TUN_F_TSO4, _TUN_F_TSO_ECN = 0x01, 0x02, 0x08
_SIOCGIFFLAGS, _SIOCSIFFLAGS = 0x8913, 0x8914
_SIOCSIFADDR, _SIOCSIFNETMASK = 0x8916, 0x891C
_SIOCSIFMTU, _SIOCSIFTXQLEN = 0x8922, 0x8943
_IFF_UP = 0x1

# An Ethernet's. The kernel still hands over up to 64 kB at a time (see `network.packets`), which is
# what makes the switch fast; but TCP counts, loses and repeats in segments of this size.
MTU = 1500
# The device's default of 500 packets overflows, silently, whenever the switch stalls for a moment.
QUEUE_PACKETS = 20000

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, act: str) -> None:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{act}: {os.strerror(code)}")


def unshare(flags: int) -> None:
    """Leave the namespaces in `flags` for new ones (the pid one begins with the next fork)."""
    _check(_libc.unshare(flags), "cannot make namespaces")


def enter_user_namespace() -> None:
    """Enter a user namespace in which our own user and group are mapped to themselves."""
    uid, gid = os.geteuid(), os.getegid()
    unshare(CLONE_NEWUSER)
    # After a change of identity the process is not dumpable and may not write its own maps.
    _check(_libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0), "cannot become dumpable")
    write_file("/proc/self/setgroups", "deny")
    write_file("/proc/self/uid_map", f"{uid} {uid} 1")
    write_file("/proc/self/gid_map", f"{gid} {gid} 1")


def enter_server_namespaces() -> None:
    """Give this process, pid 1 of a new pid namespace, mounts and ipc objects of its own."""
    unshare(CLONE_NEWNS | CLONE_NEWIPC)
    mount("none", "/", "", MS_REC | MS_PRIVATE)
    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)


def die_with_parent(signum: int) -> None:
    """Be sent `signum` when the parent ends; check afterwards that it has not ended already."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signum, 0, 0, 0), "cannot ask for a parent-death signal")


def become_subreaper() -> None:
    """Adopt descendants whose parents end."""
    _check(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "cannot become a subreaper")


def mount(source: str, target: str, kind: str, flags: int = 0, options: str = "") -> None:
    """Mount a file system of a kind on a directory."""
    _check(
        _libc.mount(
            source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode()
        ),
        f"cannot mount {kind or 'again'} on {target}",
    )


def bind_mount(source_fd: int, target: str) -> None:
    """Show what the path descriptor `source_fd` refers to at `target` as well."""
    mount(f"/proc/self/fd/{source_fd}", target, "", MS_BIND | MS_REC)


def unmount(target: str) -> None:
    """Take a mount away at once; what is still open of it lives on unseen."""
    _check(_libc.umount2(target.encode(), _MNT_DETACH), f"cannot unmount {target}")


def open_tun(name: str) -> int:
    """Create a TUN device in this network namespace and return its descriptor, non-blocking.

    It speaks in frames with a virtio header, and leaves checksums and segments to the other side.

    The device is persistent: it goes with its namespace, in the kernel's own time. To remove a
    device with its last descriptor takes the kernel 15 to 45 ms in which the closing process waits:
    for the switch, a stall of everybody.
    """
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        fcntl.ioctl(
            fd,
            _TUNSETIFF,
            struct.pack("16sH22x", name.encode(), _TUN_FLAGS),
        )
        fcntl.ioctl(fd, _TUNSETPERSIST, 1)
        fcntl.ioctl(fd, _TUNSETOFFLOAD, _TUN_F_CSUM | _TUN_F_TSO4 | _TUN_F_TSO_ECN)
    except OSError:
        os.close(fd)
        raise
    return fd


def add_address(name: str, address: str, netmask: str) -> None:
    """Give a device its address, the MTU and queue of a cluster link, and bring it up."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for request, number in ((_SIOCSIFMTU, MTU), (_SIOCSIFTXQLEN, QUEUE_PACKETS)):
            fcntl.ioctl(sock, request, struct.pack("16si20x", name.encode(), number))
        for request, text in ((_SIOCSIFADDR, address), (_SIOCSIFNETMASK, netmask)):
            packed = struct.pack(
                "16sH2x4s16x", name.encode(), socket.AF_INET, socket.inet_aton(text)
            )
            fcntl.ioctl(sock, request, packed)
        set_up(name)


def set_up(name: str) -> None:
    """Bring a network device up."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = struct.pack("16sH22x", name.encode(), 0)
        _, flags = struct.unpack_from("16sH", fcntl.ioctl(sock, _SIOCGIFFLAGS, request))
        request = struct.pack("16sH22x", name.encode(), flags | _IFF_UP)
        fcntl.ioctl(sock, _SIOCSIFFLAGS, request)


def set_next_pid(pid: int) -> None:
    """Let the next process of this pid namespace be `pid`."""
    write_file("/proc/sys/kernel/ns_last_pid", str(pid - 1))


def write_file(path: str, text: str) -> None:
    """Write an existing (kernel) file in one call."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def make_directories(paths: Iterable[str], mode: int = 0o755) -> None:
    """Make directories that may be there already."""
    for path in paths:
        os.makedirs(path, mode=mode, exist_ok=True)
