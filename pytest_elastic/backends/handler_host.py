"""A process that calls torch's rendezvous handlers for an agent that does not import torch.

Handlers block: for as long as nodes are missing, or for ever when what they stand on is frozen. So
they live here, below the agent and on one thread, in the order in which torchrun would call them;
the agent only sends questions, and may end this process at any moment. Between two questions the
thread looks at the handler and at the round's store, and says what has changed.
"""

from __future__ import annotations

import ctypes
import json
import os
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import msgspec

from pytest_elastic.backends import bridge_vocabulary as v
from pytest_elastic.backends.names import handler_endpoint
from pytest_elastic.boot import proc_title
from pytest_elastic.boot.descriptors import close_all_but
from pytest_elastic.boot.role import Program, Role
from pytest_elastic.channel import Channel, JsonObject
from pytest_elastic.errors import InternalError
from pytest_elastic.loop import Loop
from pytest_elastic.workers.store.name_lookup import addresses_of

__all__ = ["HandlerHostRole"]

# How often the thread looks. torchrun looks every 0.1 s, through a cache of 1 s; each look is some
# four requests to etcd from every node.
_LOOK_S = 0.5
# A member that does not identify itself within this, after torch has formed the round, has died.
_PEERS_S = 30.0
# How long a node that knows the end waits for the others to know it: its store may live in here.
_PART_S = 3.0
# What the handler stands on may be restarted meanwhile; torchrun ends the job at the first error.
_PATIENCE_S = 60.0

# For how long a name may have no address, unless it was said: as a job of ours waits for nodes.
_JOIN_S = 600.0
# How long one lookup may take.
_NAME_S = 5.0

# Writing the same once more changes nothing.
_REPEATABLE = ("publish_store", "mark_done", "break_round")

_PREFIX = "pytest-elastic"
# What is said unasked answers this one.
_NO_QUESTION = 0
_PR_SET_PDEATHSIG = 1


class _CallFailed(Exception):
    """A call ends with this answer."""

    def __init__(self, kind: str, reason: str, **last_words: Any) -> None:  # noqa: ANN401
        super().__init__(reason)
        self.answer = v.HandlerFailed(kind=kind, reason=reason, **last_words)


class HandlerHostRole:
    """The process as a role; `argument` holds `channel_fd`, `agent_pid` and the parameters."""

    def __init__(self, argument: Mapping[str, Any]) -> None:
        self._argument = argument
        self._orders: queue.SimpleQueue[JsonObject] = queue.SimpleQueue()
        self._said: queue.SimpleQueue[JsonObject] = queue.SimpleQueue()

    def run(self) -> Role | Program:
        """Serve until the agent is gone."""
        fd = int(self._argument["channel_fd"])
        close_all_but([fd])
        # Also where this process is frozen, and cannot see that the channel has ended.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != self._argument["agent_pid"]:
            os._exit(0)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)
        proc_title.show(["pytest-elastic: rendezvous handler"], os.environ)
        loop = Loop()
        channel = Channel(
            loop,
            socket.socket(fileno=fd),
            on_message=lambda order, _: self._orders.put(order),
            # The thread may hang in the handler: nothing but this ends it.
            on_closed=lambda _: os._exit(0),
        )
        loop.enable_thread_wakeup()

        def say(answers: int, said: v.FromHost | None) -> None:
            message = {"answers": answers, "said": msgspec.to_builtins(said)}
            loop.call_from_thread(lambda: channel.send(message))

        threading.Thread(target=_Caller(self._argument, self._orders, say).run, daemon=True).start()
        loop.run()
        raise InternalError("the handler host's loop ended")


class _Caller:
    """Everything on the one thread that calls the handler."""

    def __init__(
        self,
        argument: Mapping[str, Any],
        orders: queue.SimpleQueue[JsonObject],
        say: Callable[[int, v.FromHost | None], None],
    ) -> None:
        self._argument = argument
        self._orders = orders
        self._say = say
        self._handler: Any = None
        self._info: Any = None  # torch's RendezvousInfo of the newest round
        self._round = 0  # watched, if not 0
        self._last_news: v.News | None = None
        self._silent_since: float | None = None

    def run(self) -> None:
        """Answer questions, one after the other, and look around in between."""
        calls: Mapping[str, Callable[..., v.FromHost | None]] = {
            "import": self._import,
            "open": self._open,
            "join": self._join,
            "introduce": self._introduce,
            "watch": self._watch,
            "publish_store": self._publish_store,
            "await_store": self._await_store,
            "mark_done": self._mark_done,
            "break_round": self._break_round,
            "part": self._part,
            "end": self._end,
            "finish": self._finish,
        }
        while True:
            try:
                order = self._orders.get(timeout=_LOOK_S)
            except queue.Empty:
                self._look()
                continue
            self._say(order["id"], self._perform(calls[order["call"]], order))

    def _perform(
        self, call: Callable[..., v.FromHost | None], order: JsonObject
    ) -> v.FromHost | None:
        """Make one call; what only writes into the round's store is tried again for a while."""
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                return call(**order["arguments"])
            except _CallFailed as failed:
                return failed.answer
            except Exception as error:  # noqa: BLE001 (the agent says it, in its own words)
                if order["call"] not in _REPEATABLE or time.monotonic() >= deadline:
                    return v.HandlerFailed(kind="lost", reason=_text(error))
            time.sleep(_LOOK_S)

    def _import(self) -> None:
        import torch.distributed.elastic.rendezvous  # noqa: F401

    def _open(self) -> v.HandlerReady:
        """Make the handler; try again while the endpoint has no address."""
        deadline = time.monotonic() + self._join_timeout_s()
        while True:
            is_known = self._is_endpoint_known()
            try:
                self._handler = self._new_handler()
            except Exception as error:
                parameters = self._argument["parameters"]
                backend, where = parameters["backend"], parameters["endpoint"]
                if not _is_unreachable(error):
                    reason = f"the rendezvous backend {backend} cannot be used: {_text(error)}"
                    raise _CallFailed("usage", reason) from error
                if is_known or time.monotonic() >= deadline:
                    # It may not be up yet: the same command may do better.
                    at = f", at {where}" if where.strip(":") else ""
                    what = f"what the rendezvous backend {backend} stands on{at}"
                    raise _CallFailed("lost", f"cannot reach {what}: {_text(error)}") from error
                time.sleep(_LOOK_S)
            else:
                return v.HandlerReady()

    def _new_handler(self) -> Any:  # noqa: ANN401 (torch's RendezvousHandler)
        from torch.distributed.elastic.rendezvous import RendezvousParameters
        from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

        parameters = RendezvousParameters(**self._argument["parameters"], **self._argument["conf"])
        return get_rendezvous_handler(parameters)

    def _is_endpoint_known(self) -> bool:
        """Tell whether the endpoint's name has an address, as far as it is a name."""
        parameters = self._argument["parameters"]
        endpoint = handler_endpoint(parameters["endpoint"], parameters["backend"])
        try:
            addresses_of(endpoint.host, _NAME_S)
        except (OSError, UnicodeError):
            return False
        return True

    def _join_timeout_s(self) -> float:
        """Return for how long nodes may be waited for: etcd's handlers and torch's own differ."""
        conf = self._argument["conf"]
        try:
            return float(conf.get("timeout") or conf.get("join_timeout") or _JOIN_S)
        except ValueError:
            return _JOIN_S  # the handler says what is wrong with it

    def _join(self) -> None:
        self._round, last = 0, self._info
        try:
            self._info = self._handler.next_rendezvous()
        except Exception as error:
            kind = _KINDS.get(type(error).__name__, "lost")
            words = _last_words(last)
            raise _CallFailed(
                kind, _text(error), over=words["over"], is_all_done=words["is_all_done"]
            ) from error

    def _introduce(self, entry: Mapping[str, Any]) -> v.Formed:
        info = self._info
        try:
            info.store.set(_key("entry", info.rank), json.dumps(entry))
            keys = [_key("entry", rank) for rank in range(info.world_size)]
            info.store.wait(keys, timedelta(seconds=_PEERS_S))
            entries = [json.loads(info.store.get(key)) for key in keys]
        except (LookupError, RuntimeError) as error:
            raise _CallFailed(
                "peers", f"a member of the round did not identify itself within {_PEERS_S:g} s"
            ) from error
        return v.Formed(group_rank=info.rank, entries=entries)

    def _watch(self, round: int) -> None:
        self._round, self._last_news = round, None

    def _publish_store(self, address: str, port: int) -> v.StoreKnown:
        self._info.store.set(_key("store"), json.dumps({"address": address, "port": port}))
        return v.StoreKnown(address=address, port=port)

    def _await_store(self, round: int) -> v.StoreKnown:
        self._watch(round)
        deadline = time.monotonic() + _PEERS_S
        while time.monotonic() < deadline:
            if self._info.store.check([_key("store")]):
                return v.StoreKnown(**json.loads(self._info.store.get(_key("store"))))
            if self._info.store.check([_key("broken")]):
                break
            time.sleep(0.02)
        raise _CallFailed("peers", "the first member of the round opened no worker store")

    def _mark_done(self) -> None:
        self._info.store.set(_key("done", self._info.rank), "1")
        self._info.store.set(_key("some_done"), "1")

    def _break_round(self, reason: str) -> None:
        self._info.store.set(_key("broken"), reason)

    def _part(self) -> None:
        """Wait a moment for the others to know the end as well."""
        self._round = 0
        store, deadline = self._info.store, time.monotonic() + _PART_S
        gone = store.add(_key("parted"), 1)
        while gone < self._info.world_size and time.monotonic() < deadline:
            time.sleep(0.05)
            gone = store.add(_key("parted"), 0)

    def _end(self, over: Mapping[str, Any]) -> None:
        self._info.store.set(_key("over"), json.dumps(over))
        self._finish()

    def _finish(self) -> None:
        self._part()
        # Closes the rendezvous for all, as with torchrun: waiting nodes need not wait any more.
        self._handler.shutdown()

    def _look(self) -> None:
        """Say what has changed since the last look."""
        if not self._round:
            return
        try:
            is_closed = bool(self._handler.is_closed())
            waiting = int(self._handler.num_nodes_waiting())
            words = _last_words(self._info)
            broken = _read(self._info.store, "broken")
        except Exception as error:  # noqa: BLE001 (whatever the handler stands on)
            now = time.monotonic()
            self._silent_since = self._silent_since or now
            if now - self._silent_since >= _PATIENCE_S:
                self._round = 0
                reason = f"no answer for {_PATIENCE_S:g} s: {_text(error)}"
                self._say(_NO_QUESTION, v.HostLost(reason=reason))
            return
        self._silent_since = None
        news = v.News(
            round=self._round, waiting=waiting, is_closed=is_closed, broken=broken, **words
        )
        if news != self._last_news:
            self._last_news = news
            self._say(_NO_QUESTION, news)


# torch's exceptions by name: some torch versions lack the last one.
_KINDS = {
    "RendezvousClosedError": "closed",
    "RendezvousTimeoutError": "timeout",
    "RendezvousGracefulExitError": "spare",
}


def _key(*words: object) -> str:
    return "/".join(map(str, (_PREFIX, *words)))


def _read(store: Any, word: str) -> str | None:  # noqa: ANN401 (a torch store of any kind)
    if not store.check([_key(word)]):
        return None
    value: bytes = store.get(_key(word))
    return value.decode(errors="replace")


def _last_words(info: Any) -> dict[str, Any]:  # noqa: ANN401 (torch's RendezvousInfo)
    """Return what the members of a round have left about the end of the job."""
    if info is None:
        return {"over": None, "is_some_done": False, "is_all_done": False}
    over = _read(info.store, "over")
    is_some_done = info.store.check([_key("some_done")])
    return {
        "over": None if over is None else json.loads(over),
        "is_some_done": is_some_done,
        "is_all_done": is_some_done
        and info.store.check([_key("done", rank) for rank in range(info.world_size)]),
    }


def _is_unreachable(error: BaseException | None) -> bool:
    """Tell whether an error, or what torch hides behind it, is that a host does not answer."""
    while error is not None:
        names = {each.__name__ for each in type(error).__mro__}
        if names & {"RendezvousConnectionError", "EtcdConnectionFailed", "ConnectionError"}:
            return True
        if names & {"EtcdException"} and "list of servers" in str(error):
            return True  # python-etcd has no class for it
        error = error.__cause__ or error.__context__
    return False


def _text(error: BaseException) -> str:
    """Return one line about an error, with the cause that torch hides behind it."""
    text = str(error).partition("\n")[0]
    said = f"{type(error).__name__}: {text}" if text else type(error).__name__
    cause = error.__cause__
    return f"{said} ({_text(cause)})" if cause is not None else said
