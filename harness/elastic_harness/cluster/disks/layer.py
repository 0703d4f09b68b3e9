"""A file system that passes everything on to the directory below it, but as a policy lets it.

It answers the kernel's requests one by one. What is asked of it is asked of the directory that was
there before, through descriptors, so that it does not matter what is mounted over that meanwhile.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import stat
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from elastic_harness.cluster.disks import fuse_wire as wire
from elastic_harness.cluster.disks.fuse_wire import Opcode, Request
from elastic_harness.cluster.disks.policy import DiskCounters, DiskPolicy, combine

__all__ = ["DiskLayer"]

_ROOT = 1
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_TRUNC
# The file below is written at the offsets that the kernel says; appending is its business.
_DROPPED_FLAGS = os.O_APPEND | os.O_NOFOLLOW | os.O_CREAT | os.O_EXCL
_CHANGES = frozenset({
    Opcode.SETATTR, Opcode.SYMLINK, Opcode.MKNOD, Opcode.MKDIR, Opcode.UNLINK, Opcode.RMDIR,
    Opcode.RENAME, Opcode.RENAME2, Opcode.LINK, Opcode.WRITE, Opcode.CREATE, Opcode.FALLOCATE,
})  # fmt: skip
_KINDS = {
    Opcode.READ: "read",
    Opcode.WRITE: "write",
    Opcode.FALLOCATE: "write",
    Opcode.FSYNC: "sync",
    Opcode.FSYNCDIR: "sync",
}
_SIZE, _MODE, _UID, _GID, _ATIME, _MTIME, _ATIME_NOW, _MTIME_NOW = 8, 1, 2, 4, 16, 32, 128, 256


class _Node:
    """A file, directory or link that the kernel knows."""

    __slots__ = ("fd", "key", "lookups")

    def __init__(self, fd: int, key: tuple[int, int]) -> None:
        self.fd = fd
        self.key = key
        self.lookups = 1

    @property
    def path(self) -> str:
        """A path to it, whatever it is called now."""
        return f"/proc/self/fd/{self.fd}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _HeldWrite:
    """A write of which `written` bytes are done; `rest` belongs at `offset`."""

    fd: int
    offset: int
    written: int
    rest: bytes


class _HeldWrites:
    """The writes of one overlaid path that wait, by the number of the kernel's request.

    Half of the bytes are in the file, the rest is not yet; the writer waits in the kernel. A signal
    that it gets ends its wait with a short write, as of any file: killed, it leaves its file torn,
    and one that lives on writes the rest itself.
    """

    def __init__(self) -> None:
        self._held: dict[int, _HeldWrite] = {}

    def hold(self, request: Request) -> None:
        """Write the first half and keep the rest. Raises OSError."""
        fd, offset, size = struct.unpack_from("<QQI", request.body)
        data = request.body[40 : 40 + size]
        written = os.pwrite(fd, data[: size // 2], offset)
        self._held[request.unique] = _HeldWrite(
            fd=fd, offset=offset + written, written=written, rest=data[written:]
        )

    def interrupt(self, unique: int) -> bytes | None:
        """Return the answer to a writer that got a signal; None if it is not held."""
        held = self._held.pop(unique, None)
        return None if held is None else _done(unique, held.written)

    def release(self) -> list[bytes]:
        """Write what is left, and return the answers to all that wait."""
        waiting, self._held = self._held, {}
        return [_finished(unique, held) for unique, held in waiting.items()]


def _finished(unique: int, held: _HeldWrite) -> bytes:
    try:
        return _done(unique, held.written + os.pwrite(held.fd, held.rest, held.offset))
    except OSError as problem:
        return wire.error(unique, problem.errno or errno.EIO)


def _done(unique: int, written: int) -> bytes:
    return wire.reply(unique, struct.pack("<II", written, 0))


class DiskLayer:
    """The file system above the directory `below` (a descriptor, which it takes over)."""

    def __init__(self, below: int) -> None:
        found = os.fstat(below)
        root = _Node(below, (found.st_dev, found.st_ino))
        self._nodes: dict[int, _Node] = {_ROOT: root}
        self._ids: dict[tuple[int, int], int] = {root.key: _ROOT}
        self._last_id = _ROOT
        self._listings: dict[int, list[tuple[bytes, int, int]]] = {}
        self._policies: Mapping[str, DiskPolicy] = {}
        self._policy = DiskPolicy()
        self._written = 0
        self._held = _HeldWrites()
        self._operations = 0
        self._by_owner: dict[str, dict[str, int]] = {}
        self._held_file = ""
        self._handlers: dict[int, Callable[[Request], bytes]] = {
            Opcode.INIT: lambda request: wire.init_reply(request.body),
            Opcode.LOOKUP: lambda r: self._entry(r.node, r.body.rstrip(b"\0")),
            Opcode.GETATTR: lambda r: wire.attributes(os.fstat(self._nodes[r.node].fd)),
            Opcode.SETATTR: self._set_attributes,
            Opcode.READLINK: lambda r: os.fsencode(os.readlink("", dir_fd=self._nodes[r.node].fd)),
            Opcode.SYMLINK: self._symlink,
            Opcode.MKNOD: self._mknod,
            Opcode.MKDIR: self._mkdir,
            Opcode.UNLINK: self._unlink,
            Opcode.RMDIR: self._rmdir,
            Opcode.RENAME: lambda r: self._rename(r, 8),
            Opcode.RENAME2: lambda r: self._rename(r, 16),
            Opcode.LINK: self._link,
            Opcode.OPEN: self._open,
            Opcode.CREATE: self._create,
            Opcode.READ: self._read,
            Opcode.WRITE: self._write,
            Opcode.STATFS: self._statfs,
            Opcode.RELEASE: self._release,
            Opcode.FLUSH: lambda _: b"",
            Opcode.FSYNC: self._fsync,
            Opcode.FSYNCDIR: lambda _: b"",
            Opcode.OPENDIR: self._open_directory,
            Opcode.READDIR: self._read_directory,
            Opcode.RELEASEDIR: self._release_directory,
            Opcode.FALLOCATE: self._allocate,
        }

    @property
    def counters(self) -> DiskCounters:
        """What was counted so far."""
        return DiskCounters(
            operations=self._operations, by_owner=self._by_owner, held_file=self._held_file
        )

    def lay(self, policies: Mapping[str, DiskPolicy]) -> None:
        """Put policies in force, by owner, in place of those before."""
        policy = combine(policies.values())
        if policy.free_bytes != self._policy.free_bytes:
            self._written = 0
        self._policies, self._policy = dict(policies), policy

    def answer(self, data: bytes) -> tuple[bytes | None, float]:
        """Do what the kernel asks; returns the answer (None: none is wanted), and how late."""
        request = wire.read_request(data)
        match request.opcode:
            case Opcode.FORGET:
                self._forget(request.node, *struct.unpack_from("<Q", request.body))
                return None, 0.0
            case Opcode.BATCH_FORGET:
                for number in range(struct.unpack_from("<I", request.body)[0]):
                    self._forget(*struct.unpack_from("<QQ", request.body, 8 + 16 * number))
                return None, 0.0
            case Opcode.INTERRUPT:
                return self._held.interrupt(*struct.unpack_from("<Q", request.body)), 0.0
            case Opcode.DESTROY:
                return None, 0.0
            case Opcode.WRITE if self._is_to_be_held(request):
                return self._hold(request), 0.0
            case _:
                return self._answer(request), self._delay(request)

    def _is_to_be_held(self, request: Request) -> bool:
        pattern, node = self._policy.holds, self._nodes.get(request.node)
        size = struct.unpack_from("<QQI", request.body)[2]
        if pattern is None or node is None or size < 2:
            return False
        return fnmatch.fnmatch(self._name_of(node), pattern)

    def _name_of(self, node: _Node) -> str:
        """Return what a file is called now, below the overlaid path."""
        return os.path.relpath(os.readlink(node.path), os.readlink(self._nodes[_ROOT].path))

    def _hold(self, request: Request) -> bytes | None:
        try:
            self._held.hold(request)
        except OSError as problem:
            return wire.error(request.unique, problem.errno or errno.EIO)
        self._operations += 1
        self._count("held", lambda own: own.holds is not None)
        self._held_file = self._name_of(self._nodes[request.node])
        return None

    def release(self) -> list[bytes]:
        """Return the answers to writers that are no longer held in the middle of a write."""
        return [] if self._policy.holds is not None else self._held.release()

    def _answer(self, request: Request) -> bytes:
        handler = self._handlers.get(request.opcode)
        if handler is None:
            return wire.error(request.unique, errno.ENOSYS)
        self._operations += 1
        try:
            self._refuse(request)
            return wire.reply(request.unique, handler(request))
        except OSError as problem:
            return wire.error(request.unique, problem.errno or errno.EIO)
        except KeyError:
            return wire.error(request.unique, errno.ESTALE)

    def _refuse(self, request: Request) -> None:
        """Raise what the policy has in store for a request."""
        if self._policy.is_read_only and self._is_change(request):
            self._count("refused_read_only", lambda own: own.is_read_only)
            raise OSError(errno.EROFS, "read-only")
        kind = _KINDS.get(Opcode(request.opcode))
        if kind in self._policy.fails:
            self._count("failed", lambda own: kind in own.fails)
            raise OSError(errno.EIO, "failed")

    @staticmethod
    def _is_change(request: Request) -> bool:
        if request.opcode == Opcode.OPEN:
            return bool(struct.unpack_from("<I", request.body)[0] & _WRITING)
        return request.opcode in _CHANGES

    def _delay(self, request: Request) -> float:
        """Return how long the disk takes for a request, beyond what it really took."""
        policy, opcode = self._policy, request.opcode
        if opcode not in _KINDS and opcode not in _CHANGES and opcode != Opcode.OPEN:
            return 0.0
        delay_s = policy.latency_s
        rate = policy.rate if opcode in {Opcode.READ, Opcode.WRITE} else None
        if rate is not None:
            delay_s += struct.unpack_from("<QQI", request.body)[2] / rate
        if delay_s:
            self._count(
                "delayed",
                lambda own: bool(own.latency_s or (rate is not None and own.rate == rate)),
            )
        return delay_s

    def _count_full(self) -> None:
        self._count("refused_full", lambda own: own.free_bytes == self._policy.free_bytes)

    def _count(self, what: str, is_of: Callable[[DiskPolicy], bool]) -> None:
        """Count one more for the owners of the policies that it is of."""
        for owner, policy in self._policies.items():
            if is_of(policy):
                counted = self._by_owner.setdefault(owner, {})
                counted[what] = counted.get(what, 0) + 1

    # --- names and nodes ----------------------------------------------------------------------

    def _entry(self, parent: int, name: bytes) -> bytes:
        """Look a name up: the kernel knows its node from now on, once more."""
        flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, dir_fd=self._nodes[parent].fd)
        found = os.fstat(fd)
        key = (found.st_dev, found.st_ino)
        number = self._ids.get(key)
        if number is None:
            self._last_id += 1
            number = self._last_id
            self._nodes[number] = _Node(fd, key)
            self._ids[key] = number
        else:
            os.close(fd)
            self._nodes[number].lookups += 1
        return wire.entry(number, found)

    def _forget(self, number: int, lookups: int) -> None:
        node = self._nodes.get(number)
        if node is None or number == _ROOT:
            return
        node.lookups -= lookups
        if node.lookups <= 0:
            del self._nodes[number], self._ids[node.key]
            os.close(node.fd)

    def _folder(self, request: Request) -> int:
        return self._nodes[request.node].fd

    def _symlink(self, request: Request) -> bytes:
        name, target = wire.names_of(request.body)
        os.symlink(target, name, dir_fd=self._folder(request))
        return self._entry(request.node, name)

    def _mknod(self, request: Request) -> bytes:
        mode, device = struct.unpack_from("<II", request.body)
        name = wire.names_of(request.body[16:])[0]
        os.mknod(name, mode, device, dir_fd=self._folder(request))
        return self._entry(request.node, name)

    def _mkdir(self, request: Request) -> bytes:
        (mode,) = struct.unpack_from("<I", request.body)
        name = wire.names_of(request.body[8:])[0]
        os.mkdir(name, mode, dir_fd=self._folder(request))
        return self._entry(request.node, name)

    def _unlink(self, request: Request) -> bytes:
        os.unlink(request.body.rstrip(b"\0"), dir_fd=self._folder(request))
        return b""

    def _rmdir(self, request: Request) -> bytes:
        os.rmdir(request.body.rstrip(b"\0"), dir_fd=self._folder(request))
        return b""

    def _rename(self, request: Request, head: int) -> bytes:
        (target,) = struct.unpack_from("<Q", request.body)
        if head == 16 and struct.unpack_from("<I", request.body, 8)[0]:
            raise OSError(errno.EINVAL, "RENAME_EXCHANGE and RENAME_NOREPLACE are not supported")
        old, new = wire.names_of(request.body[head:])
        there = self._nodes[target].fd
        os.rename(old, new, src_dir_fd=self._folder(request), dst_dir_fd=there)
        return b""

    def _link(self, request: Request) -> bytes:
        (old,) = struct.unpack_from("<Q", request.body)
        name = wire.names_of(request.body[8:])[0]
        os.link(self._nodes[old].path, name, dst_dir_fd=self._folder(request))
        return self._entry(request.node, name)

    def _set_attributes(self, request: Request) -> bytes:
        valid, _, _, size, _, atime, mtime, _, atime_ns, mtime_ns, _, mode, _, uid, gid, _ = (
            struct.unpack_from("<II6Q8I", request.body)
        )
        node = self._nodes[request.node]
        found = os.fstat(node.fd)
        if valid & _SIZE:
            os.truncate(node.path, size)
        if valid & _MODE:
            os.chmod(node.path, stat.S_IMODE(mode))
        if valid & (_UID | _GID):
            os.chown(node.path, uid if valid & _UID else -1, gid if valid & _GID else -1)
        if valid & (_ATIME | _MTIME):
            given_a = atime * 10**9 + atime_ns if valid & _ATIME else found.st_atime_ns
            given_m = mtime * 10**9 + mtime_ns if valid & _MTIME else found.st_mtime_ns
            if valid & (_ATIME_NOW | _MTIME_NOW):
                os.utime(node.path)
            else:
                os.utime(node.path, ns=(given_a, given_m))
        return wire.attributes(os.fstat(node.fd))

    # --- files --------------------------------------------------------------------------------

    def _open(self, request: Request) -> bytes:
        (flags,) = struct.unpack_from("<I", request.body)
        node = self._nodes[request.node]
        fd = os.open(node.path, (flags & ~_DROPPED_FLAGS) | os.O_CLOEXEC)
        return struct.pack("<QII", fd, 0, 0)

    def _create(self, request: Request) -> bytes:
        flags, mode = struct.unpack_from("<II", request.body)
        name = wire.names_of(request.body[16:])[0]
        kept = flags & ~(os.O_APPEND | os.O_NOFOLLOW)
        fd = os.open(name, kept | os.O_CREAT | os.O_CLOEXEC, mode, dir_fd=self._folder(request))
        return self._entry(request.node, name) + struct.pack("<QII", fd, 0, 0)

    def _read(self, request: Request) -> bytes:
        fd, offset, size = struct.unpack_from("<QQI", request.body)
        return os.pread(fd, size, offset)

    def _write(self, request: Request) -> bytes:
        fd, offset, size = struct.unpack_from("<QQI", request.body)
        data = request.body[40 : 40 + size]
        if self._policy.free_bytes is not None:
            left = self._policy.free_bytes - self._written
            if left <= 0:
                self._count_full()
                raise OSError(errno.ENOSPC, "full")
            data = data[:left]
        written = os.pwrite(fd, data, offset)
        self._written += written
        return struct.pack("<II", written, 0)

    def _allocate(self, request: Request) -> bytes:
        fd, offset, length, mode = struct.unpack_from("<QQQI", request.body)
        if mode:
            raise OSError(errno.EOPNOTSUPP, "no holes")
        if self._policy.free_bytes is not None:
            self._count_full()
            raise OSError(errno.ENOSPC, "full")
        os.posix_fallocate(fd, offset, length)
        return b""

    def _fsync(self, request: Request) -> bytes:
        os.fsync(struct.unpack_from("<Q", request.body)[0])
        return b""

    def _release(self, request: Request) -> bytes:
        os.close(struct.unpack_from("<Q", request.body)[0])
        return b""

    def _statfs(self, _: Request) -> bytes:
        free = self._policy.free_bytes
        is_full = free is not None and free <= self._written
        return wire.statfs(os.statvfs(self._nodes[_ROOT].path), is_full=is_full)

    # --- directories --------------------------------------------------------------------------

    def _open_directory(self, request: Request) -> bytes:
        node = self._nodes[request.node]
        listing = [(b".", os.fstat(node.fd).st_ino, stat.S_IFDIR), (b"..", 1, stat.S_IFDIR)]
        with os.scandir(node.path) as found:
            for each in found:
                kind = stat.S_IFLNK if each.is_symlink() else stat.S_IFREG
                kind = stat.S_IFDIR if each.is_dir(follow_symlinks=False) else kind
                listing.append((os.fsencode(each.name), each.inode(), kind))
        self._last_id += 1
        self._listings[self._last_id] = listing
        return struct.pack("<QII", self._last_id, 0, 0)

    def _read_directory(self, request: Request) -> bytes:
        number, offset, size = struct.unpack_from("<QQI", request.body)
        told = b""
        for position, (name, inode, kind) in enumerate(self._listings[number][offset:], offset + 1):
            line = wire.directory_entry(name, inode, kind, position)
            if len(told) + len(line) > size:
                break
            told += line
        return told

    def _release_directory(self, request: Request) -> bytes:
        del self._listings[struct.unpack_from("<Q", request.body)[0]]
        return b""
