"""The endpoint's store for a process that may have threads: a thread for each call.

Our own agents have a store service instead. Here torch is imported already, by whoever runs us,
and a call that hangs costs a thread that nobody waits for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from pytest_elastic.errors import ElasticError
from pytest_elastic.loop import Loop
from pytest_elastic.workers import torch_store

__all__ = ["ThreadedStore"]


class ThreadedStore:
    """Makes store calls on threads; answers come back in the loop (`ports.EndpointStore`)."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._hosted: list[Any] = []  # stores live as long as somebody holds them

    def host(
        self, host: str, port: int, *, is_forced: bool, on_done: Callable[[str], None]
    ) -> None:
        """Host the endpoint's store here, if `host` is an address of this machine."""

        def call() -> None:
            bound = torch_store.where_to_bind(host, is_forced=is_forced)
            self._hosted.append(torch_store.host_store(bound, port)[0])

        self._start(call, lambda _, error: on_done(error))

    def publish(
        self,
        host: str,
        port: int,
        key: str,
        value: str,
        *,
        timeout_s: float,
        on_done: Callable[[str], None],
    ) -> None:
        """Set a key of the store at an endpoint."""
        self._start(
            lambda: torch_store.publish(host, port, key, value, timeout_s),
            lambda _, error: on_done(error),
        )

    def fetch(
        self,
        host: str,
        port: int,
        key: str,
        *,
        timeout_s: float,
        on_done: Callable[[str, str], None],
    ) -> None:
        """Wait for a key of the store at the endpoint."""
        self._start(
            lambda: torch_store.fetch(host, port, key, timeout_s),
            lambda value, error: on_done(value or "", error),
        )

    def swap(
        self,
        host: str,
        port: int,
        key: str,
        *,
        expected: str,
        value: str | None,
        timeout_s: float,
        on_done: Callable[[str, str], None],
    ) -> None:
        """Set a key of the store at an endpoint if it still holds what is expected."""
        self._start(
            lambda: torch_store.swap(host, port, key, expected, value, timeout_s),
            lambda held, error: on_done(held or "", error),
        )

    def open(self, host: str, *, on_done: Callable[[Any, int, str], None]) -> None:
        """Open a fresh worker store on a free port; calls back with (store, port, error)."""

        def opened(store_and_port: Any, error: str) -> None:  # noqa: ANN401 (None after an error)
            store, port = store_and_port or (None, 0)
            on_done(store, port, error)

        self._start(lambda: torch_store.host_store(host, 0), opened)

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
