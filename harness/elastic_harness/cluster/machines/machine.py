"""A machine as the cluster sees it: its agent, its clock, and what runs there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec

from elastic_harness.cluster.cluster import ClusterError
from elastic_harness.cluster.machines.link import Link
from elastic_harness.cluster.process import PIDS_OF_A_MACHINE, ProcessHandle, ProcessRef
from elastic_harness.conversation import Answer, Conversation, Reply
from elastic_harness.future import Future, Steps, run
from elastic_harness.network.link_model import Pair
from pytest_elastic.channel import JsonObject
from pytest_elastic.loop import Loop

__all__ = ["LEASE_S", "Machine"]

# A control link may be cut for a minute, and the machine is still ours.
LEASE_S: Final = 90.0
# An operation waits for the link, should that be cut.
_OPERATION_LIMIT_S: Final = LEASE_S + 30.0


class Machine:
    """One machine; `number` is its place among all, from 1 on."""

    def __init__(self, loop: Loop, number: int, name: str, *, has_our_clock: bool) -> None:
        self.number = number
        self.name = name
        self.address = ""
        self.processes: dict[int, ProcessHandle] = {}
        self.watched: dict[int, Future[int | None]] = {}
        self.trunk_port = 0
        self._loop = loop
        self._has_our_clock = has_our_clock
        self._link: Link | None = None
        self._talk: Conversation | None = None

    def open(
        self,
        link: Link,
        on_event: Callable[[Machine, str, JsonObject], None],
        on_request: Callable[[Machine, str, JsonObject, Reply], None],
        on_lost: Callable[[Machine, str], None],
    ) -> None:
        """Begin to talk, once the agent calls."""
        self._link = link
        self._talk = Conversation(
            self._loop,
            link.open,
            on_event=lambda event, told, _: on_event(self, event, told),
            on_request=lambda op, fields, _, reply: on_request(self, op, fields, reply),
            on_closed=lambda reason: on_lost(self, reason),
        )

    @property
    def clock_offset_s(self) -> float:
        """What is to be added to a time of the machine, for one of ours."""
        if self._has_our_clock or self._link is None:
            return 0.0
        return -self._link.clock.offset_s

    @property
    def clock_error_s(self) -> float:
        """By how much that may be wrong."""
        if self._has_our_clock or self._link is None:
            return 0.0
        return self._link.clock.error_s(self._loop.now())

    def call(
        self, op: str, fields: Mapping[str, Any], *, timeout_s: float = _OPERATION_LIMIT_S
    ) -> Future[Answer]:
        """Ask the agent for something."""
        assert self._talk is not None, "a machine that is used has a link"
        return run(self._loop, self._call(op, fields, timeout_s))

    def _call(self, op: str, fields: Mapping[str, Any], timeout_s: float) -> Steps[Answer]:
        assert self._talk is not None, "a machine that is used has a link"
        try:
            return (yield from self._talk.call(op, fields, timeout_s=timeout_s))
        except ClusterError as error:
            sentence = f"machine {self.name}: {error.message}"
            raise ClusterError(sentence, hint=error.hint) from error

    def do(self, act: str, kind: object, **arguments: object) -> Future[Any]:
        """Have the agent do what its own cluster, or a facet of it, can: "signal", "files.corrupt".

        The value is what that returns there, a `kind`.
        """
        order = {"act": act, "arguments": msgspec.to_builtins(arguments)}
        return self.call("do", order).then(
            lambda answer: msgspec.convert(answer.fields["value"], kind)
        )

    def ask(self, op: str, fields: Mapping[str, Any]) -> Future[Answer]:
        """Ask the cluster server there for something."""
        return self.call("ask", {"order": op, "fields": fields}).then(
            lambda answer: Answer(fields=answer.fields["fields"])
        )

    def ask_switch(self, order: str, fields: Mapping[str, Any]) -> Future[Answer]:
        """Ask the switch there for something."""
        return self.ask("network", {"order": order, "fields": fields})

    def capture(self, name: str, pairs: Sequence[Pair], path: str, sign: str) -> Future[None]:
        """Write what passes over links that begin there into a file; `sign` lies beside it here."""
        order = {"name": name, "pairs": list(pairs), "path": path, "sign": sign}
        return self.call("capture", order).then(lambda _: None)

    def count_captured(self, op: str, name: str) -> Future[int]:
        """Return how many packets a capture has; `op` is "captured" or "end_capture"."""
        return self.call(op, {"name": name}).then(lambda answer: int(answer.fields["packets"]))

    def tell(self, event: str, fields: Mapping[str, Any]) -> None:
        """Tell the agent something."""
        if self._talk is not None and not self._talk.is_closed:
            self._talk.tell(event, fields)

    def hang_up(self, reason: str) -> None:
        """Take it for lost, as its agent ends."""
        if self._link is not None:
            self._link.end(reason)

    def pid_here(self, pid: int) -> int:
        """Return our number of a process of the machine."""
        return self.number * PIDS_OF_A_MACHINE + pid

    def ref(self, process: ProcessRef) -> ProcessRef:
        """Return a process as the machine knows it."""
        return replace(process, pid=process.pid % PIDS_OF_A_MACHINE)
