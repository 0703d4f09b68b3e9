"""The words of FUSE, the kernel's protocol for file systems in processes: bytes in, values out.

After <linux/fuse.h>, protocol 7.31. Only what a file system that passes everything on has to know.
"""

from __future__ import annotations

import enum
import os
import stat
import struct
from dataclasses import dataclass

__all__ = [
    "MAX_WRITE",
    "Opcode",
    "Request",
    "attributes",
    "directory_entry",
    "entry",
    "error",
    "init_reply",
    "names_of",
    "read_request",
    "reply",
    "statfs",
]

MAX_WRITE = 1 << 20
_MINOR = 31
_ASYNC_READ, _BIG_WRITES, _PARALLEL_DIROPS, _MAX_PAGES = 1 << 0, 1 << 5, 1 << 18, 1 << 22

_IN = struct.Struct("<IIQQIIII")
_OUT = struct.Struct("<IiQ")
_ATTR = struct.Struct("<6Q10I")
_ENTRY = struct.Struct("<QQQQII")
_ATTR_OUT = struct.Struct("<QII")
_INIT_OUT = struct.Struct("<4I2HII2HI7I")
_STATFS = struct.Struct("<5Q4I6I")
_DIRENT = struct.Struct("<QQII")


class Opcode(enum.IntEnum):
    """What the kernel asks for."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    READLINK = 5
    SYMLINK = 6
    MKNOD = 8
    MKDIR = 9
    UNLINK = 10
    RMDIR = 11
    RENAME = 12
    LINK = 13
    OPEN = 14
    READ = 15
    WRITE = 16
    STATFS = 17
    RELEASE = 18
    FSYNC = 20
    FLUSH = 25
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    FSYNCDIR = 30
    CREATE = 35
    INTERRUPT = 36
    DESTROY = 38
    BATCH_FORGET = 42
    FALLOCATE = 43
    RENAME2 = 45


@dataclass(frozen=True, slots=True)
class Request:
    """One request: on which node (1 is the root), with what arguments."""

    opcode: int
    unique: int
    node: int
    body: bytes


def read_request(data: bytes) -> Request:
    """Return what the kernel has written."""
    _, opcode, unique, node, _, _, _, _ = _IN.unpack_from(data)
    return Request(opcode, unique, node, data[_IN.size :])


def reply(unique: int, body: bytes = b"") -> bytes:
    """Return the answer to a request that was done."""
    return _OUT.pack(_OUT.size + len(body), 0, unique) + body


def error(unique: int, code: int) -> bytes:
    """Return the answer to a request that failed with an errno."""
    return _OUT.pack(_OUT.size, -code, unique)


def init_reply(body: bytes) -> bytes:
    """Agree on what both sides know; nothing may be remembered, as others change the files too."""
    _, _, readahead, offered = struct.unpack_from("<4I", body)
    flags = offered & (_ASYNC_READ | _BIG_WRITES | _PARALLEL_DIROPS | _MAX_PAGES)
    pages = MAX_WRITE // 4096
    return _INIT_OUT.pack(
        7, _MINOR, readahead, flags, 16, 12, MAX_WRITE, 1, pages, 0, 0, *([0] * 7)
    )


def _attr(found: os.stat_result) -> bytes:
    seconds, nanos = [], []
    for at_ns in (found.st_atime_ns, found.st_mtime_ns, found.st_ctime_ns):
        whole, rest = divmod(at_ns, 10**9)
        seconds.append(whole)
        nanos.append(rest)
    return _ATTR.pack(
        found.st_ino,
        found.st_size,
        found.st_blocks,
        *seconds,
        *nanos,
        found.st_mode,
        found.st_nlink,
        found.st_uid,
        found.st_gid,
        found.st_rdev & 0xFFFFFFFF,
        found.st_blksize,
        0,
    )


def entry(node: int, found: os.stat_result) -> bytes:
    """Return a name's node, which is to be looked up again next time."""
    return _ENTRY.pack(node, 0, 0, 0, 0, 0) + _attr(found)


def attributes(found: os.stat_result) -> bytes:
    """Return a node's attributes, which are to be asked for again next time."""
    return _ATTR_OUT.pack(0, 0, 0) + _attr(found)


def statfs(found: os.statvfs_result, *, is_full: bool) -> bytes:
    """Return what is left of a disk: nothing, if it is said to be full."""
    left = (0, 0) if is_full else (found.f_bfree, found.f_bavail)
    return _STATFS.pack(
        found.f_blocks, *left, found.f_files, found.f_ffree,
        found.f_bsize, found.f_namemax, found.f_frsize, 0, *([0] * 6),
    )  # fmt: skip


def directory_entry(name: bytes, inode: int, mode: int, next_offset: int) -> bytes:
    """Return one line of a directory."""
    head = _DIRENT.pack(inode, next_offset, len(name), stat.S_IFMT(mode) >> 12)
    line = head + name
    return line + bytes(-len(line) % 8)


def names_of(data: bytes) -> list[bytes]:
    """Return the names that stand at the end of a request."""
    return data.split(b"\0")[:-1]
