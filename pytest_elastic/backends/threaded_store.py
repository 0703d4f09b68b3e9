"""The endpoint's store for a process that may have threads: a thread for each call.

Our own agents have a store service instead. Here the program that runs us has torch,
and a call that hangs costs one daemon thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from pytest_elastic.loop import Loop
from pytest_elastic.port_range import PortRange
from pytest_elastic.rendezvous.ports import EndpointStore
from pytest_elastic.workers.store.service import perform

__all__ = ["ThreadedStore"]


class ThreadedStore(EndpointStore):
    """Makes store calls on threads; answers come back in the loop."""

    def __init__(self, loop: Loop, *, ports: PortRange | None = None) -> None:
        self._loop = loop
        self._ports = ports
        self._newest_port: int | None = None
        self._hosted: dict[int, Any] = {}  # hosted here, by port

    def open(self, host: str, *, on_done: Callable[[int, str], None]) -> None:
        """Open a worker store on a free port, in the place of the one before.

        Calls back with (port, error).
        """

        def opened(port: Any, error: str) -> None:  # noqa: ANN401 (None after an error)
            if not error:
                # Its workers are gone, or no other would be asked for.
                self._hosted.pop(self._newest_port or 0, None)
                self._newest_port = port
            on_done(port or 0, error)

        ports = None if self._ports is None else msgspec.to_builtins(self._ports)
        self._call("open", {"host": host, "ports": ports, "after": self._newest_port}, opened)

    def _call(
        self,
        call: str,
        arguments: Mapping[str, Any],
        on_done: Callable[[Any, str], None],
        *,
        timeout_s: float | None = None,
    ) -> None:
        given = arguments if timeout_s is None else {**arguments, "timeout_s": timeout_s}

        def work() -> None:
            value, error = perform(call, self._hosted, given)
            self._loop.call_from_thread(lambda: on_done(value, error))

        threading.Thread(target=work, daemon=True).start()
