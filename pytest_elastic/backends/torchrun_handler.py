"""Our rendezvous for stock torchrun: `torchrun --rdzv-backend=pytest-elastic ...`.

torchrun finds `offer_handler` by its entry point in the group torchrun.handlers. Its agent then has
what torch's c10d rendezvous lacks: a node that dies, freezes or leaves ends the round within its
lease; a node that joins is taken in; every round has a fresh store; ranks are stable; and one
restart budget holds for the whole job.

The member (and, where the endpoint is hosted, the coordinator) runs in a thread with a loop of its
own, so that whatever torchrun's only thread is doing, beats go out and decisions arrive. What
torchrun calls here never asks another machine while workers run.

What no handler can change: torchrun's own supervision. Workers are not fenced when their node loses
contact, only stopped as fast as torchrun stops them; a node's `TORCHELASTIC_RESTART_COUNT` counts
that node's failures.
"""

from __future__ import annotations

import atexit
import os
import secrets
import socket
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from pytest_elastic.backends.names import OWN_HANDLER
from pytest_elastic.backends.threaded_store import ThreadedStore
from pytest_elastic.config import Endpoint, parse_endpoint
from pytest_elastic.errors import UsageError
from pytest_elastic.events import model as events
from pytest_elastic.loop import Loop
from pytest_elastic.printed import printable
from pytest_elastic.rdzv_conf import RendezvousConf, parse_rdzv_conf
from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous.driver.driver import NodeRendezvous
from pytest_elastic.rendezvous.driver.own_place import OwnPlace
from pytest_elastic.rendezvous.model import Assignment, Node
from pytest_elastic.rendezvous.registries.endpoint_registry import EndpointRegistry
from pytest_elastic.rendezvous.settings import Settings, settings_of
from pytest_elastic.workers.store.name_lookup import name_or_address
from pytest_elastic.workers.store.own_address import address_as_said, address_towards, known_here

__all__ = ["TorchrunHandler", "offer_handler"]

# torchrun gives workers 30 s and as long again after SIGKILL, whatever it is told.
_STOP_S = 60.0
# If the number of restarts was not given, torchrun's agents count their own only.
_NO_BUDGET = 1_000_000
# How long the end of the job, and a leave, may take to be known; torchrun's `close_timeout`.
_CLOSE_S = 30.0
_LEAVE_S = 3.0
# How long the name that the user gave to the store's host is looked up.
_LOOK_UP_S = 3.0
# torch's default for a store's client.
_READ_S = 300.0


def offer_handler() -> Callable[[Any], TorchrunHandler]:
    """Return what makes a handler from torch's `RendezvousParameters`; called by torch."""
    return TorchrunHandler.from_parameters


class TorchrunHandler:
    """One node's rendezvous, as torch's `RendezvousHandler` describes it."""

    def __init__(
        self, settings: Settings, conf: RendezvousConf, *, endpoint: str, local_addr: str | None
    ) -> None:
        self._settings = settings
        endpoint_place = parse_endpoint(endpoint or "localhost")
        if local_addr:
            address = address_as_said(local_addr, [endpoint_place], said="--local-addr")
        else:
            address = address_towards([endpoint_place], known_here)
        self._loop = Loop()
        self._loop.enable_thread_wakeup()
        self._store = ThreadedStore(self._loop, ports=conf.port_range)
        self._place = OwnPlace(
            address.address,
            ports=conf.port_range,
            store=self._store,
            endpoints=None if address.is_said else [endpoint_place],
            on_moved=lambda _listener: None,
            on_doubt=lambda text: None if settings.max_nodes == 1 else _tell(text),
        )
        node = Node(
            name=printable(socket.gethostname()),
            incarnation=secrets.token_hex(8),
            address=self._place.address,
            port=self._place.port,
            slots=1,  # torchrun's agents tell each other how many workers they have
            host_name=local_addr or "",
        )
        self._rendezvous = self._meet_at(endpoint_place, node, conf)
        # What follows is shared by torchrun's thread and ours.
        self._changed = threading.Condition()
        self._next: Assignment | None = None  # committed, and not given to torchrun yet
        self._running: Assignment | None = None
        self._ended: str | None = None  # why the running round is over
        self._over: ports.JobOver | None = None
        self._thread = threading.Thread(target=self._serve, name="pytest-elastic", daemon=True)
        self._thread.start()
        # torchrun calls `shutdown` at every end but one: a signal.
        atexit.register(self._leave)

    def _meet_at(self, endpoint: Endpoint, node: Node, conf: RendezvousConf) -> ports.Rendezvous:
        return NodeRendezvous(
            self._loop,
            node=node,
            settings=self._settings,
            make_registry=lambda questions: EndpointRegistry(
                self._loop,
                settings=self._settings,
                endpoints=[endpoint],
                is_host=conf.is_host,
                store=self._store,
                questions=questions,
                on_event=_say,
            ),
            listener=self._place.listener,
            place=self._place,
            on_notice=self._on_notice,
            on_event=_say,
        )

    @classmethod
    def from_parameters(cls, parameters: Any) -> TorchrunHandler:  # noqa: ANN401 (torch's)
        """Make one from what torchrun read; raises UsageError for settings that we do not know."""
        from torch.distributed.elastic.rendezvous import RendezvousHandler

        RendezvousHandler.register(cls)
        given = {key: str(value) for key, value in parameters.config.items()}
        max_restarts = int(given.pop("max_restarts", _max_restarts_of_torchrun()))
        conf = parse_rdzv_conf(",".join(f"{key}={value}" for key, value in given.items()))
        if conf.store_type == "file":
            raise UsageError(
                f"--rdzv-conf store_type=file: {OWN_HANDLER} meets at a port under torchrun",
                hint="Use pytest-elastic run, or give a host and a port.",
            )
        settings = settings_of(
            conf,
            run_id=parameters.run_id,
            min_nodes=parameters.min_nodes,
            max_nodes=parameters.max_nodes,
            max_restarts=max_restarts,
            shutdown_timeout_s=_STOP_S,
            failure_grace_s=_STOP_S,
        )
        return cls(
            settings,
            conf,
            endpoint=parameters.endpoint,
            local_addr=parameters.local_addr,
        )

    # --- what torchrun calls -------------------------------------------------------------------

    def get_backend(self) -> str:
        """Return the name under which torchrun found us."""
        return OWN_HANDLER

    def get_run_id(self) -> str:
        """Return the job's name."""
        return self._settings.run_id

    @property
    def use_agent_store(self) -> bool:
        """Say that workers share the round's store, which outlives them."""
        return True

    def next_rendezvous(self) -> Any:  # noqa: ANN401 (torch's RendezvousInfo)
        """Wait for the next round, with no worker left of the last one; return torch's view of it.

        Raises torch's RendezvousClosedError when the job is over.
        """
        from torch.distributed import (  # type: ignore[attr-defined]  # torch does not list them
            PrefixStore,
            TCPStore,
        )
        from torch.distributed.elastic.rendezvous import RendezvousInfo, RendezvousStoreInfo

        self._finish_round()
        with self._changed:
            self._changed.wait_for(lambda: self._next or self._over)
            if self._over is not None:
                raise self._closed(self._over)
            assert self._next is not None, "that is what was waited for"
            assignment, self._next = self._next, None
            self._running, self._ended = assignment, None
        # Workers inherit what torchrun's own variables do not say.
        os.environ["PYTEST_ELASTIC_ROUND"] = str(assignment.round)
        os.environ["PYTEST_ELASTIC_TERM"] = str(assignment.term)
        host = assignment.roster[0].host_name
        address = name_or_address(host, assignment.store_address, _LOOK_UP_S)
        where = RendezvousStoreInfo(address, assignment.store_port)
        client = TCPStore(
            where.master_addr,
            where.master_port,
            is_master=False,
            timeout=timedelta(seconds=_READ_S),
        )
        return RendezvousInfo(
            PrefixStore("torchrun", client), assignment.group_rank, len(assignment.roster), where
        )

    def num_nodes_waiting(self) -> int:
        """Return 1 if the round is over, whatever ended it: torchrun then stops and asks again."""
        with self._changed:
            failed = self._over is not None and self._over.result != "succeeded"
            return int(failed or self._ended is not None)

    def is_closed(self) -> bool:
        """Tell whether the job is over."""
        with self._changed:
            return self._over is not None

    def set_closed(self) -> None:
        """End the job, as far as one node can: its workers failed for good."""
        self._finish_round()
        self._wait_for_end(_CLOSE_S)

    def shutdown(self) -> bool:
        """End this node's part: as a failure if torchrun raises one at this moment."""
        error = sys.exc_info()[1]
        if error is None:
            if self._running is not None:
                self._ask(ports.GroupSucceeded(round=self._running.round))
            self._wait_for_end(_CLOSE_S)
        elif type(error).__name__ == "ChildFailedError":
            self.set_closed()
        is_known = self.is_closed()
        self._leave()
        return is_known

    # --- on torchrun's thread ------------------------------------------------------------------

    def _finish_round(self) -> None:
        """Say that no worker is left of the round that ran; it ends by that if it had not."""
        with self._changed:
            running, self._running = self._running, None
            is_first = self._ended is None
        if running is None:
            return
        if is_first:
            # torchrun does not say which worker failed, or how.
            self._ask(ports.GroupFailed(round=running.round, failures=()))
        self._ask(ports.WorkersGone(round=running.round))

    def _wait_for_end(self, timeout_s: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._over is not None, timeout_s)

    def _leave(self) -> None:
        """Take no further part; harmless when it was done before."""
        atexit.unregister(self._leave)
        if not self._thread.is_alive():
            return
        if not self.is_closed():
            self._ask(ports.DrainRequested(reason="torchrun ends", grace_s=0.0))
            if self._running is not None:
                self._ask(ports.WorkersGone(round=self._running.round))
            self._wait_for_end(_LEAVE_S)
        self._loop.call_from_thread(lambda: self._rendezvous.close(self._loop.stop))
        self._thread.join(self._settings.lease_s + self._settings.linger_s + _LEAVE_S)

    def _ask(self, request: ports.Request) -> None:
        self._loop.call_from_thread(lambda: self._rendezvous.request(request))

    def _closed(self, over: ports.JobOver) -> Exception:
        from torch.distributed.elastic.rendezvous import RendezvousClosedError

        failure = over.first_failure
        where = f" (on {failure.node})" if failure is not None else ""
        return RendezvousClosedError(
            f"the job '{self._settings.run_id}' is over: {over.result}: {over.reason}{where}"
        )

    # --- on our thread -------------------------------------------------------------------------

    def _serve(self) -> None:
        self._rendezvous.open()
        self._loop.run()
        self._place.listener.close()

    def _on_notice(self, notice: ports.Notice) -> None:
        match notice:
            case ports.OpenStore(round=round_):
                self._store.open(
                    self._place.address,
                    on_done=lambda port, error: self._on_store(round_, port, error),
                )
            case (
                ports.StopWorkers(round=round_, reason=reason)
                | ports.Fence(round=round_, reason=reason)
            ):
                self._on_stop(round_, reason)
            case ports.StartWorkers(assignment=assignment):
                with self._changed:
                    self._next = assignment
                    self._changed.notify_all()
            case ports.JobOver():
                with self._changed:
                    self._over = notice
                    self._changed.notify_all()
            case _:
                pass  # no worker is ours to hold, and no keeper holds a lease

    def _on_store(self, round_: int, port: int, error: str) -> None:
        if error:
            self._rendezvous.request(ports.StoreFailed(round=round_, reason=error))
        else:
            self._rendezvous.request(
                ports.StoreOpened(round=round_, address=self._place.address, port=port)
            )

    def _on_stop(self, round_: int, reason: str) -> None:
        with self._changed:
            running = self._running
            if running is not None and running.round == round_:
                self._ended = reason
                return
            if self._next is not None and self._next.round == round_:
                self._next = None
        # torchrun has not heard of the round, or has ended it: it has no workers of it.
        self._rendezvous.request(ports.WorkersGone(round=round_))


def _say(event: events.Event) -> None:
    """Show what a person should know of: torchrun's log says nothing about other nodes."""
    match event:
        case events.RoundSealed():
            text = f"round {event.round}: {' '.join(event.roster)} ({event.reason})"
        case events.RoundEnded():
            text = f"round {event.round} ended: {event.reason}"
        case events.MemberLost():
            text = f"lost node {event.member}: {event.detail}"
        case _:
            return
    _tell(text)


def _tell(text: str) -> None:
    sys.stderr.write(f"[pytest-elastic] {printable(text)}\n")


def _max_restarts_of_torchrun() -> int:
    """Return what torchrun's own command line says; no handler is told."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    is_torchrun = getattr(main, "name", "") == "torch.distributed.run"
    if not is_torchrun and os.path.basename(sys.argv[0]) != "torchrun":
        return _NO_BUDGET
    from torch.distributed.run import get_args_parser

    return int(get_args_parser().parse_args(sys.argv[1:]).max_restarts)
