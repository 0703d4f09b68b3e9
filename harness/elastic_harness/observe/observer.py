"""The harness's side of observation: one Unix socket for probes and for agents.

Probes (in workers) speak first with a hello and are answered; agents send records and listen to
nothing. Which process is at the other end, and when it is dead, the connection tells (`Connection`
of the cluster's facets). A hello is answered only after the workers of earlier rounds on the same
node have been looked at, so "a worker of an older round was alive when a newer one began" is a fact
and not a race.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import quote

from msgspec.structs import replace

from elastic_harness.cluster.facets import Connection, Reporters
from elastic_harness.cluster.process import ProcessRef
from elastic_harness.history.events import (
    GroupFormed,
    ParametersHashed,
    RankHeld,
    RankReleased,
    ResumeObserved,
    SamplesDrawn,
    SamplesUnseen,
    StepCompleted,
    WorkerFinished,
    WorkerGone,
    WorkerHello,
    WorkerRaised,
)
from elastic_harness.observe.parameter_steps import ParameterSteps
from elastic_harness.observe.stacks import StackOffer, StackSource
from pytest_elastic.events.codec import decode_record, event_from
from pytest_elastic.events.model import Event, Record
from pytest_elastic.loop import Loop

__all__ = ["PROBE_FOLDER", "Observer", "probe_environ"]

PROBE_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "probe")

# What a worker may say of itself, beside its hello.
_OF_WORKERS = (
    GroupFormed,
    ParametersHashed,
    RankHeld,
    RankReleased,
    ResumeObserved,
    SamplesDrawn,
    SamplesUnseen,
    StepCompleted,
    WorkerFinished,
    WorkerRaised,
)
# The longest honest line holds a batch's indices; a line that never ends is a foreign stream.
_MAX_LINE_BYTES = 1 << 24
# A worker whose clock is this far from ours runs under a faked one (its hello took milliseconds).
_FAKED_CLOCK_S = 1.0


def probe_environ(socket_path: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return a launcher's environment with the probe in it, for the workers to inherit."""
    folders = filter(None, (PROBE_FOLDER, environ.get("PYTHONPATH")))
    return {
        **environ,
        "PYTHONPATH": os.pathsep.join(folders),
        "ELASTIC_PROBE_SOCKET": socket_path,
    }


def _told(hello: WorkerHello) -> tuple[int | str | None, ...]:
    """Return what a launcher tells the workers of a round alike."""
    return (
        hello.round,
        hello.restart_count,
        hello.world_size,
        hello.master_addr,
        hello.master_port,
    )


def _compile_probe() -> None:
    """Keep the probe's bytecode beside it, so that no worker has to compile it (8 ms each).

    Python does so by itself, but not where PYTHONDONTWRITEBYTECODE is set, as in many test runs.
    """
    import glob
    import importlib.util
    import py_compile

    for source in glob.glob(os.path.join(PROBE_FOLDER, "*.py")):
        compiled = importlib.util.cache_from_source(source)
        with contextlib.suppress(OSError, py_compile.PyCompileError):
            is_there = os.path.exists(compiled)
            if not is_there or os.path.getmtime(compiled) < os.path.getmtime(source):
                py_compile.compile(source, compiled, doraise=True)


@dataclass(slots=True, kw_only=True, eq=False)
class _Peer:
    """One connection; `generation` counts its node's rounds, `skew_s` is added to its times."""

    connection: Connection
    inbox: bytearray = field(default_factory=bytearray)
    worker: WorkerHello | None = None
    node: str = ""
    generation: int = 0
    skew_s: float = 0.0
    is_held: bool = False
    steps: int = 0
    stacks: StackOffer | None = None

    @property
    def pid(self) -> int:
        return self.connection.pid


@dataclass(slots=True, kw_only=True)
class _Generation:
    """The newest round on one node: what its workers were told, and which local ranks spoke."""

    number: int
    told: tuple[int | str | None, ...]
    taken: set[int] = field(default_factory=set)


class Observer:
    """Turns what probes and agents say into records, and holds ranks at steps.

    `on_record` is called inside the loop, in the order in which things were learned. What is to be
    hashed and observed (`hash_parameters` ...) is told to each worker with its welcome.
    Raises UsageError when the socket's path is too long for the kernel.
    """

    def __init__(
        self,
        loop: Loop,
        reporters: Reporters,
        socket_path: str,
        on_record: Callable[[Record], None],
        *,
        hash_parameters: bool = False,
        observe_samples: bool = False,
        observe_rate: bool = False,
        hold_limit_s: float = 30.0,
    ) -> None:
        _compile_probe()
        self._loop = loop
        self._on_record = on_record
        self._welcome = (
            f"welcome hash={hash_parameters:d} samples={observe_samples:d} rate={observe_rate:d} "
            f"hold_s={hold_limit_s:g}"
        )
        self._peers: list[_Peer] = []
        self._workers: dict[int, _Peer] = {}
        self._answers: dict[int, dict[str, Mapping[str, Any]]] = {}  # by whose order it was
        self._holds: list[tuple[int, int | None]] = []
        self._overlaid: set[str] = set()
        self._generations: dict[tuple[str, str], _Generation] = {}
        self._parameter_steps = ParameterSteps()
        self._is_closed = False
        self._stop_listening = reporters.listen(socket_path, self._accept)

    @property
    def stack_sources(self) -> list[StackSource]:
        """The workers not yet seen dead, with how each can be asked for its stacks."""
        peers = self._workers.values()
        return [StackSource(p.node, p.worker, p.stacks) for p in peers if p.worker]

    @property
    def held(self) -> tuple[int, ...]:
        """The pids of the workers that wait in a hold, in the order in which they connected."""
        return tuple(peer.pid for peer in self._peers if peer.is_held)

    def arm(self, step: int, rank: int | None = None) -> None:
        """Hold `rank` (None: every rank) when it has completed `step`, now and in later rounds.

        A worker holds once for each order it is given, at the first step it completes from `step`
        on, until `release` or the limit. `disarm` when the fault has fired.
        """
        if (step, rank) not in self._holds:
            self._holds.append((step, rank))
            self._tell(rank, f"hold {step}")

    def disarm(self, step: int, rank: int | None = None) -> None:
        """Take an order back; workers that already wait stay until they are released."""
        if (step, rank) in self._holds:
            self._holds.remove((step, rank))
            self._tell(rank, f"unhold {step}")

    def release(self, pid: int) -> None:
        """Let a held worker go on; harmless when it is not held or gone."""
        peer = self._workers.get(pid)
        if peer is not None:
            peer.is_held = False
            self._send(peer, "release")

    def enter_again(self, node: str) -> None:
        """Have workers of a node enter their working folder by its path, now and in later rounds.

        A process that was in a folder before the overlay was mounted goes past it otherwise, with
        relative names.
        """
        self._overlaid.add(node)
        for peer in self._workers.values():
            if peer.node == node:
                self._send(peer, "enter")

    def order(self, process: ProcessRef, order: Mapping[str, Any]) -> bool:
        """Have a worker do something at its next step; False when it is not connected.

        `{"do": "exit", "code": 3}` ends it, `{"do": "raise", "error": "ValueError", "message": ""}`
        raises an exception in its main thread, `{"do": "act", "act": "stand"}` does what
        `elastic_probe_acts` knows, and `{"do": "resume"}` ends an act that lasts. The answers say
        `by` whose order it was, as given. A worker that waits in a hold obeys at once.
        """
        peer = self._workers.get(process.pid)
        if peer is None or peer.connection.is_closed:
            return False
        self._answers.get(process.pid, {}).pop(str(order.get("by", "")), None)
        words = [str(order["do"])]
        match order["do"]:
            case "exit":
                words.append(str(order["code"]))
            case "raise":
                words += [str(order["error"]), "=" + quote(str(order["message"]), safe="")]
            case "act":
                words += [str(order["act"]), str(order.get("argument", "-"))]
        if order["do"] != "resume":
            words.append("=" + quote(str(order.get("by", "")), safe=""))
        self._send(peer, " ".join(words))
        return True

    def answer_of(self, process: ProcessRef, by: str = "") -> Mapping[str, Any]:
        """Return what a worker, dead or alive, last said of an order `by` that entry."""
        return self._answers.get(process.pid, {}).get(by, {})

    def steps_of(self, process: ProcessRef) -> int:
        """Return how many steps a connected worker has completed."""
        peer = self._workers.get(process.pid)
        return 0 if peer is None else peer.steps

    def close(self) -> None:
        """Stop observing; workers that are held go on by themselves. Harmless when closed."""
        if self._is_closed:
            return
        self._is_closed = True
        self._stop_listening()
        for peer in list(self._peers):
            self._hang_up(peer)
        for peer in list(self._workers.values()):
            peer.connection.unwatch_end()
        self._workers.clear()

    # --- connections ---------------------------------------------------------------------------

    def _accept(self, connection: Connection) -> None:
        peer = _Peer(connection=connection, skew_s=connection.clock_offset_s)
        self._peers.append(peer)
        connection.open(partial(self._read, peer), partial(self._hang_up, peer))

    def _read(self, peer: _Peer, data: bytes) -> None:
        peer.inbox += data
        if len(peer.inbox) > _MAX_LINE_BYTES:
            self._hang_up(peer)
            return
        *lines, rest = peer.inbox.split(b"\n")
        peer.inbox = rest
        for line in lines:
            self._on_line(peer, bytes(line))

    def _on_line(self, peer: _Peer, line: bytes) -> None:
        if (record := decode_record(line)) is not None:
            self._on_record(replace(record, at=record.at + peer.skew_s) if peer.skew_s else record)
            return
        try:
            said = json.loads(line)
            if isinstance(said, dict) and "say" in said:
                self._on_probe(peer, said)
        except (ValueError, KeyError, TypeError):
            # Foreign bytes, or a probe of another version: what it means is not known.
            return

    def _hang_up(self, peer: _Peer) -> None:
        peer.connection.close()
        if peer in self._peers:
            self._peers.remove(peer)
        peer.is_held = False

    def _send(self, peer: _Peer, line: str) -> None:
        peer.connection.send(line.encode() + b"\n")

    def _tell(self, rank: int | None, line: str) -> None:
        for peer in self._workers.values():
            if peer.worker is not None and rank in (None, peer.worker.rank):
                self._send(peer, line)

    # --- what probes say -----------------------------------------------------------------------

    def _on_probe(self, peer: _Peer, said: Mapping[str, Any]) -> None:
        if said["say"] == WorkerHello.kind:
            self._on_hello(peer, said)
        elif said["say"] == "acted":
            self._answers.setdefault(peer.pid, {})[said["by"]] = said
        elif said["say"] == "stacks":
            peer.stacks = StackOffer.of(said)
        elif said["say"] == "step_begins" and peer.worker is not None:
            done = self._steps_done(peer, peer.worker, str(said["parameters"]), said["done"])
            self._send(peer, f"steps_done {'unknown' if done is None else done}")
        elif peer.worker is not None:
            at = float(said["at"]) + peer.skew_s
            fields = {**said, "pid": peer.pid, "rank": peer.worker.rank}
            event = event_from(said["say"], fields)
            if isinstance(event, StepCompleted):
                peer.steps += 1
                event = replace(event, began_at=event.began_at + peer.skew_s)
                world = peer.generation, peer.worker.run_id, *_told(peer.worker)
                self._parameter_steps.on_step(world, event.step, event.parameters)
            if isinstance(event, RankHeld | RankReleased):
                peer.is_held = isinstance(event, RankHeld)
            if isinstance(event, _OF_WORKERS):
                self._emit(peer, event, at)

    def _steps_done(
        self, peer: _Peer, worker: WorkerHello, parameters: str, done: int | None
    ) -> int | None:
        if done is not None:
            return self._parameter_steps.on_change(parameters, int(done))
        world = peer.generation, worker.run_id, *_told(worker)
        return self._parameter_steps.on_first_step(world, worker.rank, parameters)

    def _on_hello(self, peer: _Peer, said: Mapping[str, Any]) -> None:
        if peer.pid in self._workers or self._has_worker_above(peer):
            self._send(peer, "bystander")
            return
        process = {"pid": peer.pid, "start_time": peer.connection.start_time}
        hello = event_from(said["say"], {**said, **process})
        if not isinstance(hello, WorkerHello):
            return
        peer.node = said["node"]
        peer.generation = self._generation_of(peer.node, hello)
        peer.worker = replace(hello, alive_before=self._alive_before(peer, hello.run_id))
        at = float(said["at"])
        if abs(self._loop.now() - (at + peer.skew_s)) > _FAKED_CLOCK_S:
            peer.skew_s = self._loop.now() - at
        self._workers[peer.pid] = peer
        self._answers.pop(peer.pid, None)
        self._emit(peer, peer.worker, at + peer.skew_s)
        peer.connection.watch_end(partial(self._on_gone, peer))
        steps = sorted({step for step, rank in self._holds if rank in (None, hello.rank)})
        enter = ["enter"] if peer.node in self._overlaid else []
        orders = [*enter, *(f"hold {step}" for step in steps)]
        self._send(peer, "\n".join([*orders, self._welcome]))

    def _has_worker_above(self, peer: _Peer) -> bool:
        return any(above in self._workers for above in peer.connection.ancestors())

    def _generation_of(self, node: str, hello: WorkerHello) -> int:
        """Return which of its node's rounds a worker belongs to, counting from 1.

        A hello begins a new round on its node when what its launcher told it differs from what the
        workers of the newest round were told, or when its local rank is taken there.
        """
        told = _told(hello)
        newest = self._generations.get((node, hello.run_id))
        if newest is None or newest.told != told or hello.local_rank in newest.taken:
            number = 1 if newest is None else newest.number + 1
            newest = self._generations[node, hello.run_id] = _Generation(number=number, told=told)
        newest.taken.add(hello.local_rank)
        return newest.number

    def _alive_before(self, peer: _Peer, run_id: str) -> tuple[int, ...]:
        """Return the living workers of earlier rounds on a node; record those that are dead."""
        earlier = [
            other
            for other in self._workers.values()
            if other.worker is not None
            and (other.node, other.worker.run_id) == (peer.node, run_id)
            and other.generation < peer.generation
        ]
        for other in earlier:
            if other.connection.has_ended():
                self._on_gone(other)
        return tuple(sorted(other.pid for other in earlier if other.pid in self._workers))

    def _on_gone(self, peer: _Peer) -> None:
        if self._workers.get(peer.pid) is not peer or peer.worker is None:
            return
        peer.connection.read()
        self._hang_up(peer)
        peer.connection.unwatch_end()
        del self._workers[peer.pid]
        self._emit(peer, WorkerGone(pid=peer.pid, rank=peer.worker.rank), self._loop.now())

    def _emit(self, peer: _Peer, event: Event, at: float) -> None:
        run_id = peer.worker.run_id if peer.worker is not None else ""
        self._on_record(Record(at=at, source="worker", node=peer.node, run_id=run_id, event=event))
