"""The process in which all blocking calls to torch's stores happen, one node's own.

It is apart from the keeper because torch's store starts threads, and a process with threads must
not fork; and apart from the agent because a store call can block whatever its timeout says. Each
call has a daemon thread of its own and a deadline: a frozen host costs a thread and delays no other
call. The stores hosted here live until they are closed, or until the keeper ends.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from pytest_elastic.boot import proc_title
from pytest_elastic.boot.descriptors import close_all_but, raise_limit
from pytest_elastic.boot.role import Program, Role
from pytest_elastic.channel import Channel, JsonObject
from pytest_elastic.config import Endpoint
from pytest_elastic.errors import ElasticError, InternalError
from pytest_elastic.loop import Loop
from pytest_elastic.port_range import PortRange
from pytest_elastic.workers import messages
from pytest_elastic.workers.messages import CallStore, StoreAnswered
from pytest_elastic.workers.store import (
    client,
    etcd_client,
    registry_file,
    torch_store,
)
from pytest_elastic.workers.store.own_address import own_address

__all__ = ["StoreServiceRole", "perform"]

# Threads that torch does not give back. An agent that asks once a second meets this after minutes
# of a frozen host, and is told so instead of being given the 65th.
_MAX_THREADS = 64
_DEFAULT_TIMEOUT_S = 5.0
# What a call may take beyond the time it was given: one connection and, cold, the import of torch.
_GRACE_S = 10.0


class StoreServiceRole:
    """The store service as a role; `argument` holds `channel_fd`, the keeper's end of its life."""

    def __init__(self, argument: Mapping[str, Any]) -> None:
        self._channel_fd = int(argument["channel_fd"])
        self._stores: dict[int, Any] = {}  # TCPStore by port
        self._waiting: set[int] = set()
        self._busy_threads = 0

    def run(self) -> Role | Program:
        """Serve until the keeper is gone."""
        close_all_but([self._channel_fd])
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)
        proc_title.show(["pytest-elastic: store service"], os.environ)
        _silence_torch()
        raise_limit()  # each rank of the job is a connection of the worker store
        self._loop = Loop()
        self._channel = Channel(
            self._loop,
            socket.socket(fileno=self._channel_fd),
            on_message=self._received,
            # Threads may hang in torch: nothing but this ends them.
            on_closed=lambda _: os._exit(0),
        )
        self._loop.enable_thread_wakeup()
        self._loop.run()
        raise InternalError("the store service's loop ended")

    def _received(self, message: JsonObject, _fds: list[int]) -> None:
        order: CallStore = messages.decode(message, CallStore)
        if self._busy_threads >= _MAX_THREADS:
            error = f"{self._busy_threads} calls to stores hang already: is their host frozen?"
            self._channel.send(messages.encode(StoreAnswered(id=order.id, error=error)))
            return
        self._waiting.add(order.id)
        self._busy_threads += 1
        timeout_s = float(order.arguments.get("timeout_s", _DEFAULT_TIMEOUT_S)) + _GRACE_S
        late = StoreAnswered(id=order.id, error=f"{order.call} had no answer after {timeout_s:g} s")
        self._loop.call_at(self._loop.now() + timeout_s, lambda: self._answer(late))
        threading.Thread(target=self._perform, args=(order,), daemon=True).start()

    def _perform(self, order: CallStore) -> None:
        """Make one call, on its own thread."""
        value, error = perform(order.call, self._stores, order.arguments)
        answer = StoreAnswered(id=order.id, value=value, error=error)
        self._loop.call_from_thread(lambda: self._deliver(answer))

    def _deliver(self, answer: StoreAnswered) -> None:
        self._busy_threads -= 1
        self._answer(answer)

    def _answer(self, answer: StoreAnswered) -> None:
        if answer.id in self._waiting:
            self._waiting.remove(answer.id)
            self._channel.send(messages.encode(answer))


def perform(call: str, stores: dict[int, Any], arguments: Mapping[str, Any]) -> tuple[Any, str]:
    """Make a call of `CallStore`, which may block; return its value, and what went wrong or "".

    `stores` are those hosted here, by port: they live for as long as they are in it.
    """
    try:
        if call not in _CALLS:
            raise InternalError(f"there is no store call {call!r}")
        return _CALLS[call](stores, arguments), ""
    except ElasticError as error:
        return None, str(error)
    except Exception as error:  # noqa: BLE001 (a thread's outermost frame)
        return None, f"{call} failed: {error!r}"


def _host_endpoint(stores: dict[int, Any], arguments: Mapping[str, Any]) -> object:
    try:
        host = torch_store.where_to_bind(
            arguments["host"], is_forced=bool(arguments.get("is_forced", False))
        )
        store, port = torch_store.host_store(host, int(arguments["port"]))
    except torch_store.NameUnknown as error:
        return str(error)
    except torch_store.PortInUse as error:
        return {"in_use": str(error)}
    stores[port] = store
    return port


def _own_address(_stores: dict[int, Any], arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    endpoints = [Endpoint(host=host, port=port) for host, port in arguments["endpoints"]]
    found: Mapping[str, Any] = msgspec.to_builtins(
        own_address(endpoints, timeout_s=float(arguments["timeout_s"]))
    )
    return found


def _open(stores: dict[int, Any], arguments: Mapping[str, Any]) -> int:
    ports = arguments.get("ports")
    store, port = torch_store.open_store(
        arguments["host"], PortRange(**ports) if ports else None, arguments.get("after")
    )
    stores[port] = store
    return port


def _close(stores: dict[int, Any], arguments: Mapping[str, Any]) -> None:
    stores.pop(int(arguments["port"]), None)


def _remote(call: Callable[..., Any]) -> Callable[[dict[int, Any], Mapping[str, Any]], Any]:
    return lambda _stores, arguments: call(**{"timeout_s": _DEFAULT_TIMEOUT_S, **arguments})


def _wake(_stores: dict[int, Any], _arguments: Mapping[str, Any]) -> None:
    torch_store.prepare()


def _etcd(
    call: Callable[[etcd_client.Etcd, Mapping[str, Any]], Any],
) -> Callable[[dict[int, Any], Mapping[str, Any]], Any]:
    return lambda _stores, arguments: call(
        etcd_client.Etcd(arguments["etcd"], timeout_s=float(arguments["timeout_s"])), arguments
    )


def _file(
    call: Callable[[Mapping[str, Any]], Any],
) -> Callable[[dict[int, Any], Mapping[str, Any]], Any]:
    return lambda _stores, arguments: call(arguments)


_CALLS: Mapping[str, Callable[[dict[int, Any], Mapping[str, Any]], Any]] = {
    "wake": _wake,
    "own_address": _own_address,
    "host_endpoint": _host_endpoint,
    "open": _open,
    "close": _close,
    "publish": _remote(client.publish),
    "fetch": _remote(client.fetch),
    "swap": _remote(client.swap),
    "etcd_campaign": _etcd(etcd_client.campaign),
    "etcd_conclude": _etcd(etcd_client.conclude),
    "etcd_record": _etcd(etcd_client.record),
    "etcd_renew": _etcd(etcd_client.renew),
    "etcd_resign": _etcd(etcd_client.resign),
    "file_campaign": _file(registry_file.campaign),
    "file_conclude": _file(registry_file.conclude),
    "file_record": _file(registry_file.record),
    "file_renew": _file(registry_file.renew),
    "file_resign": _file(registry_file.resign),
}


def _silence_torch() -> None:
    """Keep torch's own warnings about sockets out of the launcher's output; ours still come."""
    ours = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    os.dup2(nowhere, 2)
    os.close(nowhere)
    import sys

    sys.stderr = os.fdopen(ours, "w", buffering=1, encoding="utf-8")
