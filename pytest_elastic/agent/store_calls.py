"""The endpoint's store and the worker stores, as calls to the node's store service.

torch's TCPStore blocks, for minutes when its host is frozen, whatever time-out it is given. So it
lives in a process of its own below the keeper, and this side only sends a question and waits, in
the event loop, for the answer or for the deadline.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from pytest_elastic.loop import Loop, Timer
from pytest_elastic.port_range import PortRange
from pytest_elastic.rendezvous.ports import EndpointStore
from pytest_elastic.workers.messages import CallStore, Order, StoreAnswered

__all__ = ["StoreCalls"]

# How long the import of torch may stand still: it takes a second of processor time as a rule, and
# minutes from a network disk that all nodes read at once when a big job begins, or on a machine
# that has little time to give. What goes on, however slowly, is not given up.
_WAKE_TIMEOUT_S = 300.0
_LONGEST_WAKE_S = 3600.0
# How long hosting, opening, publishing or closing may take: they are local and take milliseconds.
_LOCAL_TIMEOUT_S = 60.0
# The service gives up by itself in time; this is for a service that is frozen or gone.
_MARGIN_S = 1.0


class StoreCalls(EndpointStore):
    """Sends calls to the store service and hands out its answers."""

    def __init__(
        self, loop: Loop, send: Callable[[Order], None], *, ports: PortRange | None = None
    ) -> None:
        self._loop = loop
        self._ports = ports
        self._newest_port: int | None = None
        self._send = send
        self._newest_id = 0
        self._waiting: dict[int, tuple[Timer, Callable[[Any, str], None]]] = {}

    def wake(self, *, on_done: Callable[[str], None], work_done: Callable[[], int]) -> None:
        """Have the service ready (it imports torch first); calls back with an error or nothing.

        `work_done` grows while the keeper, or the service below it, does anything.
        """
        begin, before = self._loop.now(), work_done()

        def look_again() -> None:
            nonlocal before
            now = work_done()
            if now <= before or self._loop.now() - begin >= _LONGEST_WAKE_S:
                self._give_up(call_id, f"has done nothing for {_WAKE_TIMEOUT_S:g} s")
                return
            before = now
            self._wait(call_id, answered, _WAKE_TIMEOUT_S, look_again)

        def answered(_: Any, error: str) -> None:  # noqa: ANN401 (as `_waiting` has it)
            on_done(error)

        call_id = self._send_call("wake", {"timeout_s": _LONGEST_WAKE_S})
        self._wait(call_id, answered, _WAKE_TIMEOUT_S, look_again)

    def open(self, host: str, *, on_done: Callable[[int, str], None]) -> None:
        """Open a fresh worker store on a free port; calls back with (port, error)."""

        def opened(value: Any, error: str) -> None:  # noqa: ANN401 (as `_waiting` has it)
            if not error:
                self._newest_port = int(value)
            on_done(0 if error else int(value), error)

        ports = msgspec.to_builtins(self._ports) if self._ports is not None else None
        self._call("open", {"host": host, "ports": ports, "after": self._newest_port}, opened)

    def close(self, port: int) -> None:
        """Close a worker store."""
        self._call("close", {"port": port}, lambda _, __: None)

    def ask_registry(
        self,
        kind: str,
        call: str,
        arguments: Mapping[str, Any],
        *,
        timeout_s: float,
        on_done: Callable[[Any, str], None],
    ) -> None:
        """Call `workers.store.etcd_client` or `registry_file`; calls back with (value, error)."""
        self._call(
            f"{kind}_{call}",
            arguments,
            on_done,
            timeout_s=timeout_s,
        )

    def on_answer(self, answer: StoreAnswered) -> None:
        """Take an answer of the service; one that comes too late is dropped."""
        waiting = self._waiting.pop(answer.id, None)
        if waiting is not None:
            timer, on_done = waiting
            timer.cancel()
            on_done(answer.value, answer.error)

    def on_service_lost(self) -> None:
        """Note that the service has ended, with its stores; what was waiting has been answered."""
        if self.on_lost is not None:
            self.on_lost()

    def _call(
        self,
        call: str,
        arguments: Mapping[str, object],
        on_done: Callable[[Any, str], None],
        *,
        timeout_s: float | None = None,
    ) -> None:
        if timeout_s is None:
            call_id, within_s = self._send_call(call, arguments), _LOCAL_TIMEOUT_S
        else:
            call_id = self._send_call(call, {**arguments, "timeout_s": timeout_s})
            within_s = timeout_s + _MARGIN_S
        late = f"did not answer within {within_s:g} s"
        self._wait(call_id, on_done, within_s, lambda: self._give_up(call_id, late))

    def _send_call(self, call: str, arguments: Mapping[str, object]) -> int:
        self._newest_id += 1
        self._send(CallStore(id=self._newest_id, call=call, arguments=arguments))
        return self._newest_id

    def _wait(
        self,
        call_id: int,
        on_done: Callable[[Any, str], None],
        timeout_s: float,
        on_late: Callable[[], None],
    ) -> None:
        timer = self._loop.call_at(self._loop.now() + timeout_s, on_late)
        self._waiting[call_id] = (timer, on_done)

    def _give_up(self, call_id: int, why: str) -> None:
        waiting = self._waiting.pop(call_id, None)
        if waiting is not None:
            waiting[1](None, f"the store service {why}")
