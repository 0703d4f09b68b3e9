"""The keeper's side of the store service: start it when needed, pass calls on, notice its end."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Collection
from typing import cast

from pytest_elastic.boot.role import Role
from pytest_elastic.boot.spawn import command_and_environ, fork_and_execute
from pytest_elastic.channel import Channel, JsonObject
from pytest_elastic.loop import Loop
from pytest_elastic.workers import messages
from pytest_elastic.workers.messages import CallStore, Report, StoreAnswered, StoreServiceLost
from pytest_elastic.workers.store_service import StoreServiceRole

__all__ = ["StoreLink"]

_ROLE = "pytest_elastic.workers.store_service:StoreServiceRole"


class StoreLink:
    """At most one store service, and the calls it has not answered yet."""

    def __init__(self, loop: Loop, *, report: Callable[[Report], None]) -> None:
        self._loop = loop
        self._report = report
        self._channel: Channel | None = None
        self._pid: int | None = None
        self._waiting: list[int] = []

    @property
    def pids(self) -> Collection[int]:
        """The service's process, if there is one: it belongs to no group."""
        return () if self._pid is None else (self._pid,)

    def call(self, order: CallStore, *, is_warm: bool) -> Role | None:
        """Pass a call on. Returns a role in the child that is to be the service."""
        if self._pid is None and (role := self._start(is_warm=is_warm)) is not None:
            return role
        assert self._channel is not None, "a service that runs has a channel"
        self._waiting.append(order.id)
        self._channel.send(messages.encode(order))
        return None

    def ended(self, pid: int, exit_code: int) -> bool:
        """Tell whether the process that ended was the service, and report it if so."""
        if pid != self._pid:
            return False
        self._pid = None
        if self._channel is not None:
            self._channel.close()
        reason = f"the store service ended with {exit_code}"
        waiting, self._waiting = self._waiting, []
        for call_id in waiting:
            self._report(StoreAnswered(id=call_id, error=reason))
        self._report(StoreServiceLost(reason=reason))
        return True

    def give_up(self) -> None:
        """Have no service any more: its process is to be swept with everything else."""
        self._pid = None

    def _start(self, *, is_warm: bool) -> Role | None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        pid = _fork_in_session() if is_warm else _spawn_cold(theirs)
        if pid == 0:
            return StoreServiceRole({"channel_fd": theirs.detach()})
        theirs.close()
        self._pid = pid
        self._channel = Channel(
            self._loop, ours, on_message=self._answered, on_closed=lambda _: None
        )
        return None

    def _answered(self, message: JsonObject, _fds: list[int]) -> None:
        answer = cast("StoreAnswered", messages.decode(message))
        if answer.id in self._waiting:
            self._waiting.remove(answer.id)
            self._report(answer)


def _fork_in_session() -> int:
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    pid = os.fork()
    if pid == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return pid


def _spawn_cold(theirs: socket.socket) -> int:
    command, environ = command_and_environ(_ROLE, {"channel_fd": theirs.fileno()}, hold=False)
    return fork_and_execute(command, environ, inherit=[theirs.fileno()])
