"""The kernel calls behind a node: namespaces, mounts, pids. One small function for each.

Everything here raises OSError with the act in its text. ctypes is loaded once, by the
process that imports this file: the server, its helpers and the dry run, never pytest itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import os

__all__ = [
    "CLONE_NEWIPC",
    "CLONE_NEWNET",
    "CLONE_NEWNS",
    "CLONE_NEWPID",
    "CLONE_NEWUSER",
    "CLONE_NEWUTS",
    "MOUNT_MARK",
    "NODE_NAMESPACES",
    "become_subreaper",
    "bind_mount",
    "bind_read_only",
    "die_with_parent",
    "enter_server_namespaces",
    "enter_user_namespace",
    "mount",
    "mount_served",
    "set_next_pid",
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

# What every file system of ours names as its source, where other software has a device: it is shown
# in /proc/self/mountinfo, and tells ours from all others.
MOUNT_MARK = "pytest-elastic"

MS_RDONLY = 0x1
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
    mount(MOUNT_MARK, "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)


def die_with_parent(signum: int) -> None:
    """Be sent `signum` (0: nothing) when the parent ends.

    It may have ended already: the caller has to check that afterwards.
    """
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


def bind_read_only(path: str) -> None:
    """Make `path` read-only in this mount namespace; mounts below it stay as they are."""
    mount(path, path, "", MS_BIND | MS_REC)
    # A user namespace has to keep the flags of the mount below. statvfs has the same numbers.
    kept = os.statvfs(path).f_flag & (MS_NOSUID | MS_NODEV | MS_NOEXEC)
    mount("none", path, "", MS_BIND | MS_REMOUNT | MS_RDONLY | kept)


def mount_served(path: str) -> tuple[int, int]:
    """Mount a file system over a directory that a process has to serve.

    Returns the descriptor that its requests come from, and one of the directory below. Until it is
    served, every look into the directory waits.
    """
    below = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fuse = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        os.close(below)
        raise
    options = f"fd={fuse},rootmode=40000,user_id={os.geteuid()},group_id={os.getegid()}"
    try:
        mount(
            MOUNT_MARK,
            path,
            "fuse",
            MS_NOSUID | MS_NODEV,
            f"{options},allow_other,default_permissions",
        )
    except OSError:
        os.close(below)
        os.close(fuse)
        raise
    return fuse, below


def unmount(target: str) -> None:
    """Take a mount away at once; what is still open of it lives on unseen."""
    _check(_libc.umount2(target.encode(), _MNT_DETACH), f"cannot unmount {target}")


def set_next_pid(pid: int) -> None:
    """Let the next process of this pid namespace be `pid`, where the kernel can be told.

    One that was built without checkpoints (CONFIG_CHECKPOINT_RESTORE) has no such file.
    """
    with contextlib.suppress(FileNotFoundError):
        write_file("/proc/sys/kernel/ns_last_pid", str(pid - 1))


def write_file(path: str, text: str) -> None:
    """Write an existing (kernel) file in one call."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
