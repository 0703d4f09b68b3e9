"""Writes that a disk holds in their middle: half of the bytes are in the file, the rest is not yet.

The writer waits in the kernel meanwhile. A signal that it gets ends its wait with a short write, as
of any file: killed, it leaves its file torn, and one that lives on writes the rest itself.
"""

from __future__ import annotations

import errno
import os
import struct
from dataclasses import dataclass

from elastic_harness.cluster.disks import fuse_wire as wire
from elastic_harness.cluster.disks.fuse_wire import Request

__all__ = ["HeldWrites"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _HeldWrite:
    """A write of which `written` bytes are done; `rest` belongs at `offset`."""

    fd: int
    offset: int
    written: int
    rest: bytes


class HeldWrites:
    """The writes of one covered path that wait, by the number of the kernel's request."""

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
