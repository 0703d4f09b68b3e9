"""File systems that give no answer any more, as NFS without its server.

A call on a FUSE file system that no process serves waits until its device is closed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import subprocess
import sys
from pathlib import Path

from elastic_harness.cluster.disks import fuse_wire
from elastic_harness.cluster.disks.fuse_wire import MAX_WRITE, Opcode
from elastic_harness.cluster.disks.layer import DiskLayer

_DETACH = 2
_LIMIT_S = 60.0


class HangingDisks:
    """Mounts what gives no answer, until `close`."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._mounted: list[tuple[Path, int]] = []
        self._served: list[_Served] = []

    def hide(self, folder: Path) -> None:
        """Put a file system that hangs in the place of a folder."""
        self._mount(folder)

    def cover(self, folder: Path) -> None:
        """Lay a file system over a folder that passes everything on, until `hang`."""
        below = os.open(folder, os.O_PATH | os.O_CLOEXEC)
        self._served.append(_Served(self._mount(folder), below))
        os.close(below)
        (folder / "closed").touch()  # see `_answer`
        (folder / "closed").unlink()

    def hang(self) -> None:
        """Let what covers folders give no answer any more, to files that are open either."""
        while self._served:
            self._served.pop().stop()

    def close(self) -> None:
        """Let all who wait go on, with an error, and take the file systems away."""
        self.hang()
        while self._mounted:
            folder, device = self._mounted.pop()
            os.close(device)
            self._libc.umount2(os.fsencode(folder), _DETACH)

    def _mount(self, folder: Path) -> int:
        device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={device},rootmode=40000,user_id=0,group_id=0"
        path = os.fsencode(folder)
        assert self._libc.mount(b"hangs", path, b"fuse", 0, options.encode()) == 0, os.strerror(
            ctypes.get_errno()
        )
        self._mounted.append((folder, device))
        return device


class _Served:
    """A file system that a process serves; every request that it has read is answered.

    The kernel lets nobody be killed who waits for the answer to one that was read.
    """

    def __init__(self, device: int, below: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(device), str(below)],
            stdin=subprocess.PIPE,
            pass_fds=[device, below],
        )

    def stop(self) -> None:
        """Give no answer any more."""
        self._process.communicate(timeout=_LIMIT_S)
        assert self._process.returncode == 0


def _serve(device: int, below: int) -> None:
    """Serve until the end of standard input."""
    layer = DiskLayer(below)
    while True:
        ready, _, _ = select.select([0, device], [], [])
        if 0 in ready:
            return
        try:
            request = os.read(device, MAX_WRITE + (1 << 16))
            if (answer := _answer(layer, request)) is not None:
                os.write(device, answer)
        except OSError as error:
            if error.errno not in {errno.ENOENT, errno.EINTR}:  # who asked was interrupted
                raise


def _answer(layer: DiskLayer, data: bytes) -> bytes | None:
    request = fuse_wire.read_request(data)
    if request.opcode == Opcode.FLUSH:
        # The kernel does not ask again whether `close` is to wait, as with files read from NFS.
        return fuse_wire.error(request.unique, errno.ENOSYS)
    return layer.answer(data)[0]


if __name__ == "__main__":
    _serve(int(sys.argv[1]), int(sys.argv[2]))
