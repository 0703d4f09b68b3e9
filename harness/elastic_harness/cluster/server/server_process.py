"""The cluster server as a child of pytest: started warm, watched, and waited for."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from elastic_harness.cluster.cluster import ClusterError
from elastic_harness.cluster.server.fork_server import peer_of
from elastic_harness.conversation import Conversation, OnEvent
from pytest_elastic.boot.spawn import command_and_environ
from pytest_elastic.loop import Loop

__all__ = ["VARIABLE", "ServerProcess", "sharing_one_interpreter"]

# Names the socket of a fork server, and in what surroundings it runs.
VARIABLE: Final = "ELASTIC_FORK_SERVER"
_QUOTED_LINES = 20
# What is inherited, and cannot be taken over from another process.
_INHERITED: Final = ("Uid", "Gid", "Groups", "Umask", "SigIgn", "SigBlk", "Cap", "NoNewPrivs")
_NAMESPACES: Final = ("cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts")


@contextlib.contextmanager
def sharing_one_interpreter(preload: Sequence[str]) -> Iterator[None]:
    """Have cluster servers with this preload forked from one interpreter, while this is open.

    Those of this process, and of processes that inherit its environment. One that is started in
    other surroundings (another user, control group, namespace or limit) has an interpreter of its
    own, as ever.
    """
    known = _connect(preload)
    if known is not None:
        known.close()  # the server waits for who has connected to say something
        yield
        return
    name = f"elastic-fork-server-{os.getpid()}-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{name}")
        listener.listen(64)
        owner_fd = os.pidfd_open(os.getpid())
        descriptors = {"listener_fd": listener.fileno(), "owner_fd": owner_fd}
        command, environ = command_and_environ(
            "elastic_harness.cluster.server.fork_server:ForkServer", descriptors, preload=preload
        )
        server = subprocess.Popen(
            command,
            env=environ,
            pass_fds=tuple(descriptors.values()),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(owner_fd)
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = f"{name}:{_surroundings(preload)}"
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before
        server.kill()
        server.wait()


def _surroundings(preload: Sequence[str]) -> str:
    """Return a name for what a process gets from its parent, and an interpreter at its start."""
    found = [sys.executable, sys.prefix, os.environ.get("PYTHONPATH", ""), *preload]
    with open("/proc/self/status", encoding="utf-8") as status:
        found += [line for line in status if line.startswith((*_INHERITED, "Cpus_allowed:"))]
    for name in ("cgroup", "limits", "oom_score_adj"):
        with open(f"/proc/self/{name}", encoding="utf-8") as file:
            found.append(file.read())
    for name in _NAMESPACES:
        with contextlib.suppress(FileNotFoundError):  # of time: not on every kernel
            found.append(os.readlink(f"/proc/self/ns/{name}"))
    found.append(str(os.getpriority(os.PRIO_PROCESS, 0)))
    return hashlib.sha256("\0".join(found).encode()).hexdigest()


def _connect(preload: Sequence[str]) -> socket.socket | None:
    """Connect to the fork server that this process may use, if there is one."""
    name, _, surroundings = os.environ.get(VARIABLE, "").partition(":")
    if not name or surroundings != _surroundings(preload):
        return None
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(f"\0{name}")
        if peer_of(connection) == os.geteuid():
            return connection
    except OSError:
        pass  # its owner has ended
    connection.close()
    return None


class ServerProcess:
    """A running supervisor with its server; `on_ended` is called once both have ended.

    The process we see is the supervisor: it goes last, when nothing of the cluster is left. It is
    our child, or forked for us by a fork server.
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
        self._errors_fd = os.memfd_create("cluster-server-errors", os.MFD_CLOEXEC)
        self._child: subprocess.Popen[bytes] | None = None
        self._argument, self._preload = argument, tuple(preload)
        self._pidfd = -1
        self.pid = 0
        ours, theirs = socket.socketpair()
        # The server's end of the conversation, and what tells it that we have ended.
        self._given = (theirs, os.pidfd_open(os.getpid()))
        self.conversation = Conversation(loop, ours, on_event=on_event, on_closed=lambda _: None)
        self._asked = _connect(preload)
        if self._asked is None:
            self._start()
        else:
            self._ask(self._asked)

    def _start(self) -> None:
        """Start an interpreter for it."""
        fds = (self._given[0].fileno(), self._given[1])
        command, environ = command_and_environ(
            "elastic_harness.cluster.server.supervisor:Supervisor",
            {**self._argument, "control_fd": fds[0], "owner_fd": fds[1]},
            preload=self._preload,
        )
        self._child = subprocess.Popen(
            command,
            env=environ,
            pass_fds=fds,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._errors_fd,
            start_new_session=True,
        )
        self._watch(self._child.pid, os.pidfd_open(self._child.pid))

    def _ask(self, asked: socket.socket) -> None:
        """Have a fork server start the supervisor: the answer comes when its imports are done."""
        fds = (self._given[0].fileno(), self._given[1], self._errors_fd)
        environ = {name: text for name, text in os.environ.items() if name != VARIABLE}
        request = {"argument": self._argument, "environ": environ, "cwd": os.getcwd()}
        text = json.dumps(request).encode()
        sent = socket.send_fds(asked, [text], fds)
        asked.sendall(text[sent:])
        asked.shutdown(socket.SHUT_WR)
        self._loop.watch(asked.fileno(), on_readable=self._on_answered)

    def _on_answered(self) -> None:
        asked, self._asked = self._asked, None
        assert asked is not None, "it is asked once"
        self._loop.unwatch(asked.fileno())
        try:
            text, pidfds, _, _ = socket.recv_fds(asked, 100, 1)
        except OSError:
            text, pidfds = b"", []
        asked.close()
        if pidfds:
            self._watch(int(text), pidfds[0])
        else:
            # It has ended, perhaps because something cannot be imported: the server says what.
            self._start()

    def _watch(self, pid: int, pidfd: int) -> None:
        self._given[0].close()
        os.close(self._given[1])
        self.pid, self._pidfd = pid, pidfd
        self._loop.watch(pidfd, on_readable=self._on_supervisor_ended)

    @property
    def fds(self) -> frozenset[int]:
        """The descriptors of this process that belong to the server."""
        return frozenset({self._pidfd, self._errors_fd, self.conversation.fileno()})

    def error(self, sentence: str) -> ClusterError:
        """Return an error that quotes what the server wrote last."""
        text = os.pread(self._errors_fd, 1 << 20, 0).decode(errors="replace").strip()
        return ClusterError(sentence, hint="\n".join(text.splitlines()[-_QUOTED_LINES:]) or None)

    def _on_supervisor_ended(self) -> None:
        self._loop.unwatch(self._pidfd)
        if self._child is not None:
            self._child.wait()
        os.close(self._pidfd)
        self.conversation.close()
        self._on_ended()
        os.close(self._errors_fd)
