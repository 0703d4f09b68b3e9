"""The keeper's side of the store service: start it when needed, pass calls on, notice its end.

Most nodes host no store: they ask the endpoint's for the coordinator, once. A service that has
nothing to look after for a while is let go, where the next one costs a fork only (15 ms). One of a
node that is named in etcd, or in a file, stays for as long as that stands: it is asked to renew it.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Collection

from pytest_elastic.boot.role import Role
from pytest_elastic.boot.spawn import command_and_environ, fork_and_execute
from pytest_elastic.channel import Channel, JsonObject
from pytest_elastic.loop import Loop, Timer
from pytest_elastic.workers import messages
from pytest_elastic.workers.messages import CallStore, Report, StoreAnswered, StoreServiceLost
from pytest_elastic.workers.store.service import StoreServiceRole

__all__ = ["StoreLink"]

_ROLE = "pytest_elastic.workers.store.service:StoreServiceRole"
# Longer than the pause between two tries to find a coordinator: such calls come in a row.
_IDLE_S = 2.0


class StoreLink:
    """At most one store service, and the calls it has not answered yet."""

    def __init__(self, loop: Loop, *, report: Callable[[Report], None]) -> None:
        self._loop = loop
        self._report = report
        self._channel: Channel | None = None
        self._pid: int | None = None
        self._leaving: set[int] = set()  # services that were let go, until they are reaped
        self._is_warm = False
        self._waiting: dict[int, CallStore] = {}
        self._hosted: set[int] = set()  # the ports of the stores that live in it
        self._is_in_office = False  # this node is named in a registry, as far as was answered
        self._idle: Timer | None = None

    @property
    def pids(self) -> Collection[int]:
        """The service's process, if there is one: it belongs to no group."""
        return self._leaving if self._pid is None else {self._pid, *self._leaving}

    def call(self, order: CallStore, *, is_warm: bool) -> Role | None:
        """Pass a call on. Returns a role in the child that is to be the service."""
        if self._pid is None and (role := self._start(is_warm=is_warm)) is not None:
            return role
        assert self._channel is not None, "a service that runs has a channel"
        self._waiting[order.id] = order
        self._channel.send(messages.encode(order))
        return None

    def ended(self, pid: int, exit_code: int) -> bool:
        """Tell whether the process that ended was the service, and report it if so."""
        if pid in self._leaving:
            self._leaving.remove(pid)
            return True
        if pid != self._pid:
            return False
        self._pid = None
        self._hosted.clear()
        if self._channel is not None:
            self._channel.close()
        reason = f"the store service ended with {exit_code}"
        waiting, self._waiting = self._waiting, {}
        for call_id in waiting:
            self._report(StoreAnswered(id=call_id, error=reason))
        self._report(StoreServiceLost(reason=reason))
        return True

    def give_up(self) -> None:
        """Have no service any more: its process is to be swept with everything else."""
        self._pid = None
        self._leaving.clear()

    def _start(self, *, is_warm: bool) -> Role | None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        pid = _fork_in_session() if is_warm else _spawn_cold(theirs)
        if pid == 0:
            ours.close()
            return StoreServiceRole({"channel_fd": theirs.detach()})
        theirs.close()
        self._pid = pid
        self._is_warm = is_warm
        self._channel = Channel(
            self._loop, ours, on_message=self._answered, on_closed=lambda _: None
        )
        return None

    def _answered(self, message: JsonObject, _fds: list[int]) -> None:
        answer: StoreAnswered = messages.decode(message, StoreAnswered)
        order = self._waiting.pop(answer.id, None)
        if order is None:
            return
        self._note(order, answer)
        if self._idle is not None:
            self._idle.cancel()
        if self._is_warm and self._is_idle:
            self._idle = self._loop.call_at(self._loop.now() + _IDLE_S, self._let_go)
        self._report(answer)

    def _note(self, order: CallStore, answer: StoreAnswered) -> None:
        """Note what the service hosts, and whether this node will renew what it holds."""
        match order.call:
            case "etcd_resign" | "file_resign":
                self._is_in_office = False  # it runs out by itself, if that failed
            case _ if answer.error:
                pass
            case "host_endpoint" | "open":
                if isinstance(answer.value, int):
                    self._hosted.add(answer.value)
            case "close":
                self._hosted.discard(int(order.arguments["port"]))
            case "etcd_campaign" | "file_campaign":
                self._is_in_office = bool(answer.value["is_won"])
            case "etcd_renew" | "file_renew":
                self._is_in_office = bool(answer.value)
            case _:
                pass

    @property
    def _is_idle(self) -> bool:
        return not self._waiting and not self._hosted and not self._is_in_office

    def _let_go(self) -> None:
        """Let an idle service end that hosts nothing."""
        if self._pid is None or self._channel is None or not self._is_idle:
            return
        self._leaving.add(self._pid)
        self._pid = None
        # It lives for as long as its channel does.
        self._channel.close()


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
