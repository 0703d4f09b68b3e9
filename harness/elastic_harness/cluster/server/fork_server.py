"""A warm interpreter from which the servers of several clusters are forked: torch is imported once.

Importing torch takes two seconds of a processor, and starting a cluster server anew takes that each
time. Who starts several (a check-up runs one job on each processor) starts this first, by
`server_process.sharing_one_interpreter`. It serves its own user only, and ends with its owner; what
was forked from it has owners of its own, and goes on.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import struct
import tempfile
from collections.abc import Mapping
from typing import Any, Final

from elastic_harness.cluster.server.supervisor import Supervisor
from pytest_elastic.boot.descriptors import close_all_but
from pytest_elastic.boot.role import Program, Role

__all__ = ["FDS", "ForkServer", "peer_of"]

# The control socket, a pidfd of whose cluster it is, and the file for errors, in this order.
FDS: Final = ("control_fd", "owner_fd", "errors_fd")
# Of one who asks: it has all that it is to send when it connects.
_PATIENCE_S: Final = 10.0
_LONGEST_REQUEST: Final = 4 << 20


def peer_of(connection: socket.socket) -> int:
    """Return the user at the other end of a Unix socket."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    _, user, _ = struct.unpack("3i", credentials)
    return int(user)


class ForkServer:
    """Fork a supervisor for each who asks, until the owner has ended."""

    def __init__(self, argument: Mapping[str, Any]) -> None:
        self._listener = socket.socket(fileno=argument["listener_fd"])
        self._owner_fd = int(argument["owner_fd"])

    def run(self) -> Role | Program:
        """Serve; returns in forked children only."""
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # whose cluster it is watches it
        poll = select.poll()
        poll.register(self._owner_fd, select.POLLIN)
        poll.register(self._listener, select.POLLIN)
        while True:
            ready = [fd for fd, _ in poll.poll()]
            if self._owner_fd in ready:
                os._exit(0)
            connection, _ = self._listener.accept()
            connection.settimeout(_PATIENCE_S)
            with connection, contextlib.suppress(OSError, ValueError):
                if peer_of(connection) == os.geteuid():
                    role = _serve(connection)
                    if role is not None:
                        self._listener.detach()  # all is closed in the child
                        return role


def _serve(connection: socket.socket) -> Supervisor | None:
    """Fork as asked; returns the child's role in the child."""
    text, fds, _, _ = socket.recv_fds(connection, 1 << 16, len(FDS))
    try:
        while len(text) < _LONGEST_REQUEST and (more := connection.recv(1 << 16)):
            text += more
        request = json.loads(text)
        pid = os.fork() if len(fds) == len(FDS) else -1
        if pid > 0:
            pidfd = os.pidfd_open(pid)
            socket.send_fds(connection, [str(pid).encode()], [pidfd])
            os.close(pidfd)
    except BaseException:
        pid = -1
        raise
    finally:
        if pid != 0:
            for fd in fds:
                os.close(fd)
    if pid != 0:
        return None
    connection.detach()
    return _become_supervisor(request, *fds)


def _become_supervisor(
    request: Mapping[str, Any], control_fd: int, owner_fd: int, errors_fd: int
) -> Supervisor:
    """Be as the asker's own child would be, had it been started and not forked."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.dup2(errors_fd, 2)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environ"])
    tempfile.tempdir = None  # another environment may name another folder
    close_all_but((control_fd, owner_fd))
    argument = {**request["argument"], "control_fd": control_fd, "owner_fd": owner_fd}
    return Supervisor(argument)
