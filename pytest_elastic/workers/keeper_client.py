"""The agent's side of its keeper: start or adopt it, give orders, and survive its death.

The agent is a child subreaper too: when the keeper dies, everything that was below it becomes the
agent's, is killed, and only then is the loss reported.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pytest_elastic.boot.descriptors import wait_for
from pytest_elastic.boot.role import Role
from pytest_elastic.boot.spawn import command_and_environ, fork_and_execute
from pytest_elastic.channel import Channel, JsonObject
from pytest_elastic.credentials import Credentials
from pytest_elastic.errors import UsageError
from pytest_elastic.loop import Loop
from pytest_elastic.workers import messages, process_tree
from pytest_elastic.workers.keeper_settings import LINGER_S, KeeperSettings
from pytest_elastic.workers.messages import Dismiss, KeepListener, Order, Report
from pytest_elastic.workers.shared_memory import SharedMemoryHelpers, is_helper

__all__ = ["AdoptedKeeper", "Keeper", "fork_keeper"]

# Nothing tells of a helper's end in a process that does not watch its children.
_LOOK_S = 0.02
_ROLE = "pytest_elastic.workers.keeper:KeeperRole"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptedKeeper:
    """A keeper that was forked before the agent began: its process and our end of the channel."""

    pid: int
    sock: socket.socket


def fork_keeper(*, kill_margin_s: float, linger_s: float = LINGER_S) -> AdoptedKeeper | Role:
    """Fork a keeper off a warm launcher, before that has a second thread or a socket.

    In the launcher: the keeper, to be adopted by `Keeper.adopt`. In the child: the role that the
    launcher's own `run` must return at once.
    """
    agent_pid = os.getpid()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    pid = os.fork()
    if pid == 0:
        from pytest_elastic.workers.keeper import KeeperRole

        settings = KeeperSettings(
            channel_fd=theirs.detach(),
            agent_pid=agent_pid,
            kill_margin_s=kill_margin_s,
            linger_s=linger_s,
        )
        return KeeperRole(settings.as_argument())
    theirs.close()
    return AdoptedKeeper(pid=pid, sock=ours)


class Keeper:
    """One keeper, from `start` or `adopt` to `dismiss` or its death.

    `on_report` receives everything the keeper reports. `on_lost(reason)` is called once if it dies
    undismissed, when none of its descendants is left.
    """

    def __init__(
        self, loop: Loop, *, on_report: Callable[[Report], None], on_lost: Callable[[str], None]
    ) -> None:
        self._loop = loop
        self._on_report = on_report
        self._on_lost = on_lost
        self._channel: Channel | None = None
        self._pidfd = -1
        self._is_ready = False
        self._reason = ""
        self._exit_code = 0
        self._helpers = SharedMemoryHelpers(loop, on_gone=lambda: None)
        self._sweeper = process_tree.Sweeper(
            loop, reap=self._reap, on_swept=self._swept, spare=is_helper
        )
        self.pid = 0

    def start(
        self,
        *,
        kill_margin_s: float,
        warm: bool = True,
        preload: Sequence[str] = ("torch",),
        environ: Mapping[str, str] | None = None,
        linger_s: float = LINGER_S,
    ) -> None:
        """Start a keeper in a new interpreter; orders sent before it is ready wait for it.

        `warm` imports `preload` there first (a second for torch). Without it, workers are exec'ed.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        settings = KeeperSettings(
            channel_fd=theirs.fileno(),
            agent_pid=os.getpid(),
            kill_margin_s=kill_margin_s,
            linger_s=linger_s,
        )
        command, its_environ = command_and_environ(
            _ROLE, settings.as_argument(), preload=preload, hold=warm, base_environ=environ
        )
        pid = fork_and_execute(command, its_environ, inherit=[theirs.fileno()])
        theirs.close()
        self.adopt(ours, pid)

    def adopt(self, sock: socket.socket, pid: int) -> None:
        """Take over a keeper that is a child of this process already."""
        assert self._channel is None, "an agent has one keeper"
        process_tree.become_subreaper()
        self.pid = pid
        self._channel = Channel(
            self._loop, sock, on_message=self._received, on_closed=self._channel_closed
        )
        self._pidfd = os.pidfd_open(pid)
        self._loop.watch(self._pidfd, on_readable=self._lost)

    @property
    def has_begun(self) -> bool:
        """Tell whether it could import what was to be preloaded and has reported itself."""
        return self._is_ready or self._exit_code != UsageError.exit_code

    def work_done(self) -> int:
        """Return the processor time that the keeper and all below it have used, in clock ticks."""
        return process_tree.processor_ticks(self.pid)

    def send(self, order: Order, fds: Sequence[int] = ()) -> None:
        """Give an order; it is lost if the keeper is."""
        assert self._channel is not None, "a keeper is started before it is given orders"
        self._channel.send(messages.encode(order), fds)

    def keep_listener(
        self, listener: socket.socket, answer: JsonObject, credentials: Credentials | None = None
    ) -> None:
        """Have the keeper answer on `listener` with `answer` when this process is dead."""
        key = "" if credentials is None else credentials.key.hex()
        self.send(KeepListener(answer=answer, key=key), [listener.fileno()])

    def dismiss(self, timeout_s: float = 5.0) -> bool:
        """End the keeper and everything below it; blocks until it has, and tells whether it did.

        For the end of an agent: the loop does not run meanwhile.
        """
        if self._pidfd < 0:
            return True
        assert self._channel is not None, "a keeper that runs has a channel"
        if self._is_ready:
            self.send(Dismiss())
        else:
            # It may import for seconds yet. If it is ready all the same, and has started
            # something, that becomes ours with its death.
            process_tree.send_signal([self.pid], signal.SIGKILL)
        self._loop.unwatch(self._pidfd)
        ended = wait_for(self._pidfd, select.POLLIN, timeout_s)
        if ended:
            os.waitpid(self.pid, 0)
            ended = self._is_ready or _sweep_now(timeout_s)
        self._channel.close()
        os.close(self._pidfd)
        self._pidfd = -1
        return ended

    def _received(self, message: JsonObject, fds: list[int]) -> None:
        for fd in fds:
            os.close(fd)
        self._is_ready = True
        self._on_report(messages.decode(message, Report))

    def _channel_closed(self, reason: str) -> None:
        # It is dead, as its pidfd will say, or it cannot obey any more and has to be killed.
        if self._pidfd >= 0:
            process_tree.send_signal([self.pid], signal.SIGKILL)
            self._reason = f"the channel to the keeper ended: {reason}"

    def _lost(self) -> None:
        self._loop.unwatch(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = -1
        # A child of this process, which is the only one to reap it.
        _, status = os.waitpid(self.pid, 0)
        self._exit_code = os.waitstatus_to_exitcode(status)
        self._sweeper.sweep()

    def _swept(self) -> None:
        self._helpers.limit()
        self._tell_when_tidy()

    def _reap(self) -> None:
        _reap_all(self._helpers.ended)

    def _tell_when_tidy(self) -> None:
        """Say that it is lost, once no helper removes shared memory any more."""
        self._reap()
        if self._helpers.are_tidying:
            self._loop.call_at(self._loop.now() + _LOOK_S, self._tell_when_tidy)
            return
        assert self._channel is not None, "a keeper that was lost had a channel"
        # What it reported before its end has been read by now, unless the channel broke before.
        self._channel.close()
        if self._exit_code > 0:
            said = "what it has printed says why"
            self._on_lost(f"the keeper ended with {self._exit_code} ({said})")
            return
        reason = f"the keeper ended with {self._exit_code}"
        self._on_lost(f"{reason} ({self._reason})" if self._reason else reason)


def _sweep_now(timeout_s: float) -> bool:
    """Kill everything below this process, and tell whether that was done in time."""
    loop = Loop()
    sweeper = process_tree.Sweeper(loop, reap=_reap_all, on_swept=loop.stop)
    deadline = loop.now() + timeout_s
    sweeper.sweep()
    while sweeper.is_sweeping and loop.now() < deadline:
        loop.run_once(deadline - loop.now())
    loop.close()
    return not sweeper.is_sweeping


def _reap_all(tell: Callable[[int], None] = lambda _: None) -> None:
    """Reap whatever became a child of this process with the keeper's death, and tell of each."""
    with contextlib.suppress(ChildProcessError):
        while pid := os.waitpid(-1, os.WNOHANG)[0]:
            tell(pid)
