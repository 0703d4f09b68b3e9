"""A rendezvous of torch's, or of a package that offers one to torchrun, for our agents.

The driver of `bridge`: it runs the process that calls the handler, passes questions and answers,
and never waits. Whatever hangs in a handler, the agent goes on supervising its workers.
"""

from __future__ import annotations

import os
import signal
import socket
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from typing_extensions import assert_never

from pytest_elastic.backends import bridge_vocabulary as v
from pytest_elastic.backends.bridge import BridgeMachine
from pytest_elastic.boot.spawn import command_and_environ, fork_and_execute
from pytest_elastic.channel import Channel, JsonObject
from pytest_elastic.events.model import Event
from pytest_elastic.loop import Loop, Timer
from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous.driver.own_place import OwnPlace

__all__ = ["TorchBridge"]

_ROLE = "pytest_elastic.backends.handler_host:HandlerHostRole"
# How long the last words to the others may take: telling them, waiting for them, closing.
_CLOSE_S = 5.0
# Questions that are asked when the job is over for this node, and are waited for.
_LAST_WORDS = ("break_round", "end", "finish", "part")


class TorchBridge:
    """One node's rendezvous through a handler of torch's interface (see `ports.Rendezvous`).

    `place` is where the node is for the others: they hear of it when a round has formed, and it
    is looked at until then.
    """

    def __init__(
        self,
        loop: Loop,
        *,
        machine: BridgeMachine,
        place: OwnPlace,
        parameters: Mapping[str, Any],
        conf: Mapping[str, str],
        on_notice: Callable[[ports.Notice], None],
        on_event: Callable[[Event], None],
    ) -> None:
        self._loop = loop
        self._place = place
        self._has_joined = False
        self._entry: Mapping[str, Any] = {}  # what the others are to know of this node
        self._parameters = parameters
        self._conf = conf
        self._on_notice = on_notice
        self._on_event = on_event
        self._machine = machine
        self._inputs: deque[v.BridgeInput] = deque()
        self._asked: dict[int, str] = {}
        self._newest_id = 0
        self._channel: Channel | None = None
        self._pid = 0
        self._pidfd = -1
        self._on_closed: Callable[[], None] | None = None
        self._close_timer: Timer | None = None

    def start(self) -> None:
        """Start the process that calls the handler: it imports torch while the keeper does."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        argument = {
            "channel_fd": theirs.fileno(),
            "agent_pid": os.getpid(),
            "parameters": dict(self._parameters),
            "conf": dict(self._conf),
        }
        command, environ = command_and_environ(_ROLE, argument, hold=False)
        self._pid = fork_and_execute(command, environ, inherit=[theirs.fileno()])
        theirs.close()
        self._pidfd = os.pidfd_open(self._pid)
        self._loop.watch(self._pidfd, on_readable=self._on_ended)
        self._channel = Channel(
            self._loop, ours, on_message=self._received, on_closed=lambda _: None
        )
        self._ask(v.Ask(call="import", arguments={}))

    def open(self) -> None:
        """Have the handler made, and join."""
        self._ask(v.Ask(call="open", arguments={}))

    def request(self, request: ports.Request) -> None:
        """Pass on what the agent says."""
        self._tell(request)

    def close(self, on_closed: Callable[[], None]) -> None:
        """End the process, once it has said the last words that the others wait for."""
        self._on_closed = on_closed
        self._close_timer = self._loop.call_at(self._loop.now() + _CLOSE_S, self._finish)
        self._finish_when_silent()

    def _tell(self, given: v.BridgeInput) -> None:
        """Hand the machine an input, once all commands of the one before have been performed."""
        self._inputs.append(given)
        if len(self._inputs) > 1:
            return
        while self._inputs:
            for command in self._machine.step(self._inputs[0]):
                match command:
                    case v.Ask(call="join", arguments=arguments):
                        self._entry = arguments["entry"]
                        self._ask(v.Ask(call="join", arguments={}))
                    case v.Ask():
                        self._ask(command)
                    case v.Notify(notice=notice):
                        self._on_notice(notice)
                    case v.Emit(event=event):
                        self._on_event(event)
                    case _:
                        assert_never(command)
            self._inputs.popleft()

    def _ask(self, question: v.Ask) -> None:
        if self._channel is None:
            return
        self._newest_id += 1
        self._asked[self._newest_id] = question.call
        self._channel.send(
            {
                "id": self._newest_id,
                "call": question.call,
                "arguments": dict(question.arguments),
            }
        )

    def _received(self, message: JsonObject, _fds: list[int]) -> None:
        call = self._asked.pop(message["answers"], "")  # else it was not asked for
        said = message["said"]
        given: v.BridgeInput | None = said and msgspec.convert(said, v.FromHost)
        has_failed = isinstance(given, v.HandlerFailed)
        if call == "join" and not has_failed:
            self._introduce()
            return
        self._has_joined |= call == "introduce" and not has_failed
        # Last words were said as well as they could be.
        if given is not None and not (has_failed and call in _LAST_WORDS):
            self._tell(given)
        self._finish_when_silent()

    def _introduce(self) -> None:
        """Tell the members of the formed round this node's name and address."""

        def tell(address: str) -> None:
            if self._pidfd < 0:
                return  # the handler has gone, or this node leaves
            if (before := self._place.move(address)) is not None:
                before.close()
            entry = {**self._entry, "address": self._place.address}
            self._ask(v.Ask(call="introduce", arguments={"entry": entry}))

        if self._has_joined:
            tell(self._place.address)
        else:
            self._place.look_again(tell)

    def _on_ended(self) -> None:
        reason = f"the process that runs the rendezvous handler ended with {self._reap()}"
        self._tell(v.HostLost(reason=reason))
        self._finish_when_silent()

    def _reap(self) -> int:
        self._loop.unwatch(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = -1
        if self._channel is not None:
            self._channel.close()
        self._asked.clear()
        try:
            return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        except ChildProcessError:  # reaped with everything else, when the keeper was lost
            return -signal.SIGKILL

    def _finish_when_silent(self) -> None:
        if not any(call in _LAST_WORDS for call in self._asked.values()):
            self._finish()

    def _finish(self) -> None:
        if self._on_closed is None:
            return
        on_closed, self._on_closed = self._on_closed, None
        if self._close_timer is not None:
            self._close_timer.cancel()
        if self._pidfd >= 0:
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            self._reap()
        on_closed()
