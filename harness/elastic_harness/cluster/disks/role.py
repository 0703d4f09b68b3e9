"""The process that serves one overlaid path of one node: it reads requests, and answers in time.

It lives outside of the node, so that it is neither paused nor killed with it nor taken for one of
its processes; it ends with the connection to the cluster's server, or when the path is gone.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket

import msgspec

from elastic_harness.cluster.disks.fuse_wire import MAX_WRITE
from elastic_harness.cluster.disks.layer import DiskLayer
from elastic_harness.cluster.disks.policy import DiskPolicy
from elastic_harness.conversation import Conversation, Reply
from pytest_elastic.boot.role import Program, Role
from pytest_elastic.channel import JsonObject
from pytest_elastic.loop import Loop

__all__ = ["DiskRole"]

# A request is its head, the longest write, and some room.
_BUFFER_BYTES = MAX_WRITE + (1 << 16)


class DiskRole:
    """Serve what is attached, by the policies that owners have set."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._policies: dict[str, DiskPolicy] = {}
        self._layer: DiskLayer | None = None
        self._fuse = -1
        self._busy_until = 0.0

    def run(self) -> Role | Program:
        """Serve until the end; never returns."""
        os.umask(0)  # the kernel has applied the caller's
        self._loop = Loop()
        Conversation(
            self._loop, self._control, on_request=self._obey, on_closed=lambda _: os._exit(0)
        )
        while True:
            self._loop.run_once(None)

    def _obey(self, op: str, fields: JsonObject, fds: list[int], reply: Reply) -> None:
        match op:
            case "attach":
                self._fuse, below = fds
                os.set_blocking(self._fuse, False)
                self._layer = DiskLayer(below)
                self._loop.watch(self._fuse, on_readable=self._serve)
                reply.done()
            case "set":
                self._policies[fields["owner"]] = msgspec.convert(fields["policy"], DiskPolicy)
                self._apply(reply)
            case "unset":
                self._policies.pop(fields["owner"], None)
                self._apply(reply)
            case "count":
                assert self._layer is not None, "a path is attached first"
                reply.done(msgspec.to_builtins(self._layer.counters))
            case _:
                reply.failed(f"a disk does not know how to '{op}'")

    def _apply(self, reply: Reply) -> None:
        assert self._layer is not None, "a path is attached first"
        self._layer.lay(self._policies)
        for answer in self._layer.release():
            self._send(answer)
        reply.done()

    def _serve(self) -> None:
        assert self._layer is not None, "a path is attached first"
        try:
            data = os.read(self._fuse, _BUFFER_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno in {errno.EINTR, errno.ENOENT}:
                return  # the one who asked has been interrupted
            os._exit(0)  # the path is gone, with its node
        answer, delay_s = self._layer.answer(data)
        if answer is None:
            return
        now = self._loop.now()
        if not delay_s:
            self._send(answer)
            return
        # A disk does one thing after the other.
        self._busy_until = max(self._busy_until, now) + delay_s
        self._loop.call_at(self._busy_until, lambda: self._send(answer))

    def _send(self, answer: bytes) -> None:
        with contextlib.suppress(FileNotFoundError):  # the request was interrupted
            os.write(self._fuse, answer)
