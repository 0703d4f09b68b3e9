"""Wires one node: settings in, exit code out. The only place that knows every part.

A launch is a keeper (started first, because it imports torch while the rest goes on), a listening
socket, a rendezvous and an agent, in one event loop.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from pytest_elastic.agent.agent import Agent
from pytest_elastic.agent.console import describe_event, describe_failure, describe_outcome
from pytest_elastic.agent.machine import AgentMachine
from pytest_elastic.agent.outcome import Outcome
from pytest_elastic.agent.program import ProgramPlan, runs_our_python
from pytest_elastic.agent.signals import SignalWatch
from pytest_elastic.backends.names import ETCD
from pytest_elastic.boot.descriptors import raise_limit
from pytest_elastic.config import Endpoint, LaunchConfig
from pytest_elastic.credentials import Credentials, read_token_file
from pytest_elastic.events.codec import encode_record
from pytest_elastic.events.model import (
    AgentExited,
    AgentMoved,
    AgentStarted,
    ConfigResolved,
    Event,
    QuorumChosen,
    Record,
)
from pytest_elastic.events.sinks import make_sink
from pytest_elastic.file_thread import FileThread
from pytest_elastic.loop import Loop
from pytest_elastic.own_proc import check_own_proc
from pytest_elastic.printed import printable
from pytest_elastic.rendezvous import ports, settings
from pytest_elastic.rendezvous.driver.driver import NodeRendezvous
from pytest_elastic.rendezvous.driver.own_place import OwnPlace
from pytest_elastic.rendezvous.driver.questions import Questions
from pytest_elastic.rendezvous.follower.departure import leave_timeout_s
from pytest_elastic.rendezvous.leases import kill_s
from pytest_elastic.rendezvous.messages import Answer, encode
from pytest_elastic.rendezvous.model import Node
from pytest_elastic.rendezvous.registries.endpoint_registry import EndpointRegistry
from pytest_elastic.rendezvous.registries.mark_file import MarkFile
from pytest_elastic.rendezvous.registries.registry import Registry
from pytest_elastic.rendezvous.settings import QuorumChoice, Settings
from pytest_elastic.workers.affinity import choose_cpus
from pytest_elastic.workers.error_file import WorkerError, forward_error_file, write_error_file
from pytest_elastic.workers.keeper_client import AdoptedKeeper, Keeper
from pytest_elastic.workers.logs.console import Console, drain_consoles
from pytest_elastic.workers.process_tree import reap_orphans
from pytest_elastic.workers.store.own_address import (
    OwnAddress,
    address_as_said,
    address_towards,
    check_loopback,
    known_here,
)
from pytest_elastic.workers.sysfs import find_gpus, read_topology

__all__ = ["keeper_kill_margin_s", "keeper_linger_s", "launch", "quorum_of", "settings_of"]

# The last records of an agent are the ones that say why it ended.
_FLUSH_S = 1.0
# How long it waits for the file that passes the reason on.
_REASON_S = 3.0
# How long it waits until the mark of the job is written or gone.
_MARK_S = 1.0
# How long the end of a launch waits for a console that takes no more.
_DRAIN_S = 2.0


def launch(
    config: LaunchConfig,
    *,
    adopted: AdoptedKeeper | None = None,
) -> Outcome:
    """Take part in a job as one node, from here until it is over; return what that came to.

    `adopted` is a keeper that was forked before (see `workers.keeper_client.fork_keeper`); without
    it, one is started. To be called in the main thread of a process that ends by it: signals stay
    ignored afterwards, so that an impatient one cannot spoil the exit code. Raises UsageError for
    what only shows now: an address that is not ours, a /proc of others.
    """
    check_own_proc()
    node = _Launch(config)
    node.run(adopted)
    return node.outcome


def settings_of(config: LaunchConfig) -> Settings:
    """Return what all nodes of the job must agree on."""
    return settings.settings_of(
        config.rendezvous,
        run_id=config.run_id,
        min_nodes=config.min_nodes,
        max_nodes=config.max_nodes,
        max_restarts=config.max_restarts,
        shutdown_timeout_s=config.shutdown_timeout_s,
        failure_grace_s=config.failure_grace_s,
        endpoints=config.endpoints,
    )


def quorum_of(config: LaunchConfig) -> QuorumChoice:
    """Return whether the job goes on without its leader, and why (R12)."""
    return settings.choose_quorum(
        config.rendezvous,
        min_nodes=config.min_nodes,
        max_nodes=config.max_nodes,
        endpoints=len(config.endpoints),
    )


def credentials_of(config: LaunchConfig) -> Credentials | None:
    """Return what this node signs with, if the job has a token (R15); raises UsageError."""
    path = config.rdzv_token_file
    if path is None:
        return None
    token = read_token_file(path, said=config.said("rdzv_token_file"))
    return Credentials.of_job(token, config.run_id)


def keeper_linger_s(config: LaunchConfig) -> float:
    """Return how long a keeper shows the tombstone of its agent: no node asks after a lease."""
    return config.rendezvous.lease_s + config.rendezvous.drift_s


def keeper_kill_margin_s(config: LaunchConfig) -> float:
    """Return how long before the end of a lease a keeper begins to kill: with the member (R6)."""
    return kill_s(settings_of(config))


class _Launch:
    """The parts of one node, for as long as it takes part."""

    def __init__(self, config: LaunchConfig) -> None:
        self._config = config
        self._loop = Loop()
        self._name = config.node_name or printable(socket.gethostname())
        self._incarnation = secrets.token_hex(8)
        self._sink = make_sink(config.events or "", self._loop)
        self._consoles = Console(self._loop, 1), Console(self._loop, 2)
        self._plan = ProgramPlan(
            config,
            self._loop,
            os.environ,
            os.getcwd(),
            consoles=self._consoles,
            say=self._tell,
        )
        self._reason = FileThread()  # writes to `config.error_file`
        self._reason_problem = ""
        self._credentials = credentials_of(config)
        self._is_explained = False
        self._mark: MarkFile | None = None
        self._place: OwnPlace
        self.outcome = Outcome()

    def run(self, adopted: AdoptedKeeper | None) -> None:
        """Wire, run, and take everything apart again."""
        config = self._config
        address = self._first_address()
        check_loopback(address.address)
        agent = Agent(
            self._loop,
            machine=AgentMachine(
                node=self._name,
                shutdown_timeout_s=config.shutdown_timeout_s,
                failure_grace_s=config.failure_grace_s,
                kill_timeout_s=config.rendezvous.kill_timeout_s,
                leave_timeout_s=leave_timeout_s(settings_of(config)),
            ),
            own_address=lambda: self._place.address,
            worker_start=config.worker_start,
            port_range=config.rendezvous.port_range,
            plan=self._plan,
            on_event=self._emit,
            on_over=self._report,
        )
        keeper = Keeper(
            self._loop,
            on_report=agent.on_report,
            on_lost=lambda reason: agent.on_keeper_lost(reason, has_begun=keeper.has_begun),
        )

        def on_signal(number: int) -> None:
            if number == signal.SIGCHLD:
                reap_orphans(own={keeper.pid, self._plan.plugin_pid})
            else:
                agent.on_signal(number)

        signals = SignalWatch(self._loop, (*config.signals, signal.SIGCHLD), on_signal)
        try:
            if adopted is not None:
                keeper.adopt(adopted.sock, adopted.pid)
            else:
                keeper.start(
                    warm=config.worker_start != "exec" and runs_our_python(config.program),
                    preload=config.preload,
                    kill_margin_s=keeper_kill_margin_s(config),
                    linger_s=keeper_linger_s(config),
                )
            if config.numa_binding is not None:
                topology = read_topology(find_gpus())
                self._plan.bind(choose_cpus(config.numa_binding, topology, config.nproc_per_node))
            if config.logs_specs is not None:
                self._plan.use_plugin()
            raise_limit()  # only now: what runs the user's code keeps the limit that was given
            self._take_part(agent, keeper, address)
        finally:
            keeper.dismiss()
            self._finish_files()
            self._plan.close()
            drain_consoles(self._loop, self._consoles, _DRAIN_S)
            for console in self._consoles:
                console.close()
            signals.end()

    def _finish_files(self) -> None:
        """Wait for what this process writes itself, and say what could not be written."""
        if not self._reason.wait(_REASON_S):
            self._reason_problem = f"its file system gave no answer within {_REASON_S:g} s"
        if self._reason_problem:
            self._say(
                f"cannot write the reason to {self._config.error_file}: {self._reason_problem}"
            )
        if self._mark is not None:
            self._mark.wait(_MARK_S)
        if missing := self._sink.flush(_FLUSH_S):
            self._tell(missing)
        self._sink.close()

    def _first_address(self) -> OwnAddress:
        """Return the own address as far as it is known before any name is looked up."""
        config = self._config
        if config.local_addr:
            said = config.said("local_addr")
            return address_as_said(config.local_addr, self._towards, said=said)
        return address_towards(self._towards, known_here)

    def _host_name(self) -> str:
        """Return what the user calls this node's address, which may be a name; "" for nothing.

        As under torchrun that is where a static rendezvous meets, and --local-addr in any other.
        """
        config = self._config
        if config.backend == "static":
            return config.endpoint.host if config.rendezvous.is_host else ""
        return config.local_addr or ""

    @property
    def _towards(self) -> Sequence[Endpoint]:
        return self._config.endpoints if self._config.registry_file is None else ()

    def _take_part(self, agent: Agent, keeper: Keeper, address: OwnAddress) -> None:
        config = self._config
        tombstone = encode(Answer(incarnation=self._incarnation, is_tombstone=True))

        def keep(listener: socket.socket) -> None:
            keeper.keep_listener(listener, tombstone, self._credentials)

        def moved(listener: socket.socket) -> None:
            keep(listener)
            self._emit(AgentMoved(address=self._place.address, port=self._place.port))

        place = self._place = OwnPlace(
            address.address,
            ports=config.rendezvous.port_range,
            store=agent.stores,
            endpoints=None if address.is_said else self._towards,
            on_moved=moved,
            on_doubt=self._doubt,
        )
        keep(place.listener)
        node = Node(
            name=self._name,
            incarnation=self._incarnation,
            address=place.address,
            port=place.port,
            slots=config.nproc_per_node,
            pinned=config.node_rank,
            is_name_explicit=config.node_name is not None,
            role=config.role,
            host_name=self._host_name(),
        )
        for warning in config.warnings:
            self._tell(warning)
        if config.local_addr:
            self._doubt(address.doubt)
        self._emit(ConfigResolved(settings=_plain(config), origins=config.origins))
        self._emit(
            AgentStarted(
                pid=os.getpid(), address=node.address, port=node.port, slots=config.nproc_per_node
            )
        )
        try:
            agent.run(self._rendezvous(node, agent), keeper)
        finally:
            place.listener.close()

    def _doubt(self, doubt: str) -> None:
        """Say what is doubtful about the own address, where others need it."""
        if doubt and self._config.max_nodes > 1 and self._config.registry_file is None:
            self._tell(doubt)

    def _rendezvous(self, node: Node, agent: Agent) -> ports.Rendezvous:
        config = self._config
        if config.registry_file is None and config.backend not in ("c10d", "static", ETCD):
            return self._bridge(node, agent)
        return NodeRendezvous(
            self._loop,
            node=node,
            settings=settings_of(config),
            make_registry=lambda questions: self._registry(agent, questions),
            listener=self._place.listener,
            place=self._place,
            on_notice=agent.on_notice,
            on_event=self._emit,
            credentials=self._credentials,
            where=self._where(),
        )

    def _where(self) -> str:
        """Return where nodes meet, as the user said it."""
        config = self._config
        if config.registry_file is not None:
            return config.registry_file
        if config.backend == ETCD:
            return config.handler_endpoint
        return ",".join(map(str, config.endpoints))

    def _registry(self, agent: Agent, questions: Questions) -> Registry:
        """Return where the leader is found."""
        config = self._config
        if config.registry_file is not None or config.backend == ETCD:
            # For few launches only.
            from pytest_elastic.backends.key_registry import KeyRegistry
            from pytest_elastic.backends.registry_place import where_in_etcd, where_in_file

            if config.registry_file is not None:
                where = where_in_file(config.registry_file, config.run_id)
            else:
                where = where_in_etcd(config.handler_endpoint, config.handler_conf, config.run_id)
            return KeyRegistry(
                self._loop,
                settings=settings_of(config),
                where=where,
                calls=agent.stores,
                credentials=self._credentials,
            )
        if config.max_nodes > 1:
            choice = quorum_of(config)
            self._emit(QuorumChosen(quorum=choice.quorum, reason=choice.reason))
        return EndpointRegistry(
            self._loop,
            settings=settings_of(config),
            endpoints=config.endpoints,
            is_host=config.rendezvous.is_host,
            store=agent.stores,
            questions=questions,
            on_event=self._emit,
            credentials=self._credentials,
            marks=self._marks(),
        )

    def _marks(self) -> MarkFile | None:
        """Return where the host of the endpoint leaves what it knows of the job (R12).

        A job of torchrun's static rendezvous has no newcomers that could begin it again.
        """
        config = self._config
        if config.backend == "static":
            return None
        folder = f"pytest_elastic_{os.geteuid()}"
        mark = MarkFile(
            lambda: os.path.join(tempfile.gettempdir(), folder),
            config.run_id,
            str(config.endpoint),
        )
        self._mark = mark
        return mark

    def _bridge(self, node: Node, agent: Agent) -> ports.Rendezvous:
        config = self._config
        # For few launches only.
        from pytest_elastic.backends.bridge import BridgeMachine
        from pytest_elastic.backends.torch_bridge import TorchBridge

        bridge = TorchBridge(
            self._loop,
            machine=BridgeMachine(
                node=node,
                max_restarts=config.max_restarts,
                shutdown_timeout_s=config.shutdown_timeout_s,
                failure_grace_s=config.failure_grace_s,
            ),
            place=self._place,
            parameters={
                "backend": config.backend,
                "endpoint": config.handler_endpoint,
                "run_id": config.run_id,
                "min_nodes": config.min_nodes,
                "max_nodes": config.max_nodes,
                "local_addr": config.local_addr,
            },
            conf=config.handler_conf,
            on_notice=agent.on_notice,
            on_event=self._emit,
        )
        bridge.start()
        return bridge

    def _emit(self, event: Event) -> None:
        record = Record(
            at=self._loop.now(),
            source="agent",
            node=self._name,
            run_id=self._config.run_id,
            event=event,
            incarnation=self._incarnation,
        )
        self._sink.send(record)
        self.outcome = self.outcome.after(event)
        if self._config.event_log_handler == "console":
            self._say(encode_record(record))
        line = describe_event(event)
        if line is not None:
            self._tell(line)
        # What this node leaves behind, or why its part ends before the job does.
        if (
            isinstance(event, AgentExited)
            and event.exit_code
            and (event.stuck or not self._is_explained)
        ):
            self._tell(f"this node cannot go on: {event.reason}")

    def _report(self, over: ports.JobOver) -> None:
        self._is_explained = True
        self.outcome = self.outcome.over(over)
        if lines := describe_outcome(over):
            self._say(*lines)
            self._pass_on(over)

    def _pass_on(self, over: ports.JobOver) -> None:
        """Leave the reason where this agent's parent looks for it, as torchrun does.

        It is the job's first failure, not this node's: every agent of a job says the same.
        """
        target, failure = self._config.error_file, over.first_failure
        if target is None:
            return
        own = None
        reason = WorkerError(message=over.reason, timestamp=int(time.time()))
        if failure is not None:
            # Ranks are unique in a round: this is a worker of ours, or there is no such file.
            own = self._plan.error_file(failure.round, failure.rank)
            reason = replace(
                reason,
                message=failure.message or describe_failure(failure),
                traceback=failure.traceback,
                error_code=failure.exit_code,
            )
        self._reason.do(lambda: self._leave_reason(target, own, reason))

    def _leave_reason(self, target: str, own: str | None, reason: WorkerError) -> None:
        """Write the reason, or what the worker itself left; done on a thread, as it may hang."""
        try:
            if own is None or not forward_error_file(own, target, reason.error_code or 0):
                write_error_file(target, reason)
        except OSError as error:
            self._reason_problem = error.strerror or str(error)

    def _tell(self, text: str) -> None:
        """Say a sentence of this node's."""
        self._say(f"[pytest-elastic {self._name}] {text}")

    def _say(self, *lines: str) -> None:
        _, stderr = self._consoles
        stderr.write_lines("".join(f"{printable(line)}\n" for line in lines))


def _plain(config: LaunchConfig) -> dict[str, object]:
    """Return the settings as JSON values, for the first event."""
    settings: dict[str, object] = msgspec.to_builtins(config)
    settings.pop("origins")
    return settings
