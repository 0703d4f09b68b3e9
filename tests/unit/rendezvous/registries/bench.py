"""Endpoints whose stores are torch's, and the loop of the nodes that look at them."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import Any

from pytest_elastic.config import Endpoint
from pytest_elastic.loop import Loop
from pytest_elastic.workers.store import torch_store
from tests.unit.rendezvous.driver.bench import serve_until

__all__ = ["HOST", "Stores", "open_first_store"]

HOST = "127.0.0.1"


def open_first_store() -> None:
    """Open and close a store: the first one of a process opens a pipe that stays."""
    torch_store.open_store(HOST, None, None)


class Stores:
    """A loop, and the stores of endpoints that are open until `stack` is closed."""

    def __init__(self, stack: ExitStack) -> None:
        self.loop = Loop()
        self.loop.enable_thread_wakeup()
        self.stores: list[Any] = []
        self.stack = stack
        stack.callback(self.loop.close)
        stack.callback(self._serve_the_rest, threading.active_count())

    def open(self) -> Endpoint:
        """Serve another endpoint, whose store is the last one of `stores`."""
        store, port = torch_store.open_store(HOST, None, None)
        self.stores.append(store)
        return Endpoint(host=HOST, port=port)

    def _serve_the_rest(self, threads: int) -> None:
        """Let calls of the store end, and what was said last leave."""
        serve_until(self.loop, lambda: threading.active_count() <= threads)
        for _ in range(20):
            self.loop.run_once(0)
        self.stores.clear()
