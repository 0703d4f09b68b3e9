"""The cluster server as a child of pytest: started warm, watched, and waited for."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from elastic_harness.cluster.cluster import ClusterError
from elastic_harness.conversation import Conversation, OnEvent
from pytest_elastic.boot.spawn import command_and_environ
from pytest_elastic.loop import Loop

__all__ = ["ServerProcess"]

_QUOTED_LINES = 20


class ServerProcess:
    """A running supervisor with its server; `on_ended` is called once both have ended.

    The child we see is the supervisor: it goes last, when nothing of the cluster is left.
    """

    def __init__(
        self,
        loop: Loop,
        argument: Mapping[str, Any],
        *,
        preload: Sequence[str],
        on_event: OnEvent,
        on_ended: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._on_ended = on_ended
        ours, theirs = socket.socketpair()
        owner_fd = os.pidfd_open(os.getpid())
        descriptors = {"control_fd": theirs.fileno(), "owner_fd": owner_fd}
        command, environ = command_and_environ(
            "elastic_harness.cluster.server.supervisor:make",
            {**argument, **descriptors},
            preload=preload,
        )
        self._errors_fd = os.memfd_create("cluster-server-errors", os.MFD_CLOEXEC)
        self._supervisor = subprocess.Popen(
            command,
            env=environ,
            pass_fds=tuple(descriptors.values()),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._errors_fd,
            start_new_session=True,
        )
        theirs.close()
        os.close(owner_fd)
        self.pid = self._supervisor.pid
        self._pidfd = os.pidfd_open(self.pid)
        loop.watch(self._pidfd, on_readable=self._on_supervisor_ended)
        self.conversation = Conversation(loop, ours, on_event=on_event, on_closed=lambda _: None)

    @property
    def fds(self) -> frozenset[int]:
        """The descriptors of this process that belong to the server."""
        return frozenset({self._pidfd, self._errors_fd, self.conversation.fileno()})

    def error(self, sentence: str) -> ClusterError:
        """Return an error that quotes what the server wrote last, for whoever has to find out."""
        text = os.pread(self._errors_fd, 1 << 20, 0).decode(errors="replace").strip()
        return ClusterError(sentence, hint="\n".join(text.splitlines()[-_QUOTED_LINES:]) or None)

    def _on_supervisor_ended(self) -> None:
        self._loop.unwatch(self._pidfd)
        self._supervisor.wait()
        self.conversation.close()
        self._on_ended()
        os.close(self._pidfd)
        os.close(self._errors_fd)
