"""The endpoint's store for a process that may have threads: a thread for each call.

Our own agents have a store service instead. Here the program that runs us has torch,
and a call that hangs costs one daemon thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from pytest_elastic.config import Endpoint
from pytest_elastic.errors import ElasticError
from pytest_elastic.loop import Loop
from pytest_elastic.port_range import PortRange
from pytest_elastic.rendezvous.ports import EndpointStore
from pytest_elastic.workers.store import client, torch_store
from pytest_elastic.workers.store.own_address import own_address

__all__ = ["ThreadedStore"]


def _own_address(endpoints: Sequence[tuple[str, int]], timeout_s: float) -> Mapping[str, Any]:
    places = [Endpoint(host=host, port=port) for host, port in endpoints]
    found: Mapping[str, Any] = msgspec.to_builtins(own_address(places, timeout_s=timeout_s))
    return found


_CALLS: Mapping[str, Callable[..., Any]] = {
    "fetch": client.fetch,
    "publish": client.publish,
    "own_address": _own_address,
    "swap": client.swap,
}


class ThreadedStore(EndpointStore):
    """Makes store calls on threads; answers come back in the loop."""

    def __init__(self, loop: Loop, *, ports: PortRange | None = None) -> None:
        self._loop = loop
        self._ports = ports
        self._newest_port: int | None = None
        self._hosted: list[Any] = []  # stores live as long as they are referenced

    def open(self, host: str, *, on_done: Callable[[Any, int, str], None]) -> None:
        """Open a fresh worker store on a free port; calls back with (store, port, error)."""

        def opened(store_and_port: Any, error: str) -> None:  # noqa: ANN401 (None after an error)
            store, port = store_and_port or (None, 0)
            self._newest_port = port or self._newest_port
            on_done(store, port, error)

        ports, after = self._ports, self._newest_port
        self._start(lambda: torch_store.open_store(host, ports, after), opened)

    def _call(
        self,
        call: str,
        arguments: Mapping[str, Any],
        on_done: Callable[[Any, str], None],
        *,
        timeout_s: float | None = None,
    ) -> None:
        if call == "host_endpoint":
            self._start(lambda: self._host(**arguments), on_done)
        else:
            work = _CALLS[call]
            self._start(lambda: work(**arguments, timeout_s=timeout_s), on_done)

    def _host(self, *, host: str, port: int, is_forced: bool) -> object:
        try:
            bound = torch_store.where_to_bind(host, is_forced=is_forced)
            store, bound_port = torch_store.host_store(bound, port)
        except torch_store.NameUnknown as error:
            return str(error)
        except torch_store.PortInUse as error:
            return {"in_use": str(error)}
        self._hosted.append(store)
        return bound_port

    def _start(self, call: Callable[[], Any], on_done: Callable[[Any, str], None]) -> None:
        def work() -> None:
            value, error = None, ""
            try:
                value = call()
            except ElasticError as failed:
                error = str(failed)
            except Exception as failed:  # noqa: BLE001 (the thread's outermost frame)
                error = repr(failed)
            self._loop.call_from_thread(lambda: on_done(value, error))

        threading.Thread(target=work, daemon=True).start()
