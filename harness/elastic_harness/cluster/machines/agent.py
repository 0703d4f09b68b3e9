"""The node agent: one for every machine, whatever has brought it there.

It dials pytest and does what it is told, with a cluster of its own, as a pytest on this machine
would have it. When pytest is gone, or was not heard of for as long as the lease, it ends what it
has started and removes what it has made. The program around it is `agent_program`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from operator import attrgetter
from typing import Any, Final

import msgspec

from elastic_harness.cluster.choose import choose_cluster
from elastic_harness.cluster.cluster import (
    ClusterError,
    ClusterEvent,
    NodeGone,
    NodeSpec,
    ProcessExited,
    ServerLost,
    having,
)
from elastic_harness.cluster.facets import Visits
from elastic_harness.cluster.files.folder_watch import FolderWatch, folder_identity
from elastic_harness.cluster.machines.folder_copies import unpack_folder
from elastic_harness.cluster.machines.link import Dialler
from elastic_harness.cluster.machines.log_copies import LogCopies
from elastic_harness.cluster.machines.reports import ENCODING, ReportsRelay
from elastic_harness.cluster.machines.trunk_ends import TrunkEnds
from elastic_harness.cluster.process import ProcessRef, ProcessSpec
from elastic_harness.conversation import Answer, Conversation, Reply
from elastic_harness.future import Future, Steps, gather, run, settled
from elastic_harness.leaks import what_is_left
from elastic_harness.network.link_counters import rows_of
from elastic_harness.network.trunk import DATAGRAM_MTU
from pytest_elastic.channel import JsonObject
from pytest_elastic.credentials import Credentials
from pytest_elastic.errors import ElasticError
from pytest_elastic.loop import Loop, Timer

__all__ = ["AgentOrder", "AgentStart", "NodeAgent", "line_of"]

# What pytest may take to write a piece of a log. Beyond it the link is cut, and the lease decides.
_COPY_LIMIT_S: Final = 600.0
_CLOSE_LIMIT_S: Final = 30.0
_PACKAGES: Final = ("elastic_harness", "pytest_elastic")
# How often it is looked what has become of strangers: nothing tells it.
_VISITS_LOOK_S: Final = 0.01
# What pytest may have done with the agent's own cluster, as it would be with one of pytest's.
_ENDS: Final = frozenset({"stop_node", "crash_node", "power_cut"})
_ACTS: Final = _ENDS | {
    "pause_node",
    "resume_node",
    "processes",
    "signal",
    "state",
    "stacks",
    "files.corrupt",
    "sockets.listeners",
    "clock.set_offset",
    "clock.time_of_day",
    "limits.limit_files",
    "limits.restore_files",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentStart:
    """How an agent is started, before it is known whether there will be a cluster.

    `sign` is a file that is there if the machine shares pytest's files. `environ` is the agent's
    whole environment, in place of that of ssh or a batch system: warm workers need the one that
    pytest has. It imports `preload`. With `stays` it does not leave its parent.
    """

    sign: str
    environ: dict[str, str]
    preload: list[str]
    stays: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOrder:
    """What an agent is to do. `nodes` is the kind of its own cluster.

    `addresses` are where pytest may be reached (a host "": where ssh came from). Trunks to other
    machines are TCP's, or UDP's `by_datagrams`. `roots` are the folders in which pytest has our
    packages.
    """

    machine: int
    nodes: str
    addresses: list[tuple[str, int]]
    token: str
    lease_s: float
    preload: list[str]
    by_datagrams: bool = False
    roots: list[str] = field(default_factory=list)


def line_of(told: AgentStart | AgentOrder) -> bytes:
    """Return the line of JSON in which an agent reads this."""
    return msgspec.json.encode(told) + b"\n"


class NodeAgent:
    """An agent at work; `run` returns when all is over and nothing is left.

    `code` is the folder in which our packages have come with it, "" where they are installed.
    """

    def __init__(self, order: AgentOrder, on_ready: Callable[[str], None], code: str = "") -> None:
        self._order = order
        self._code = code
        self._on_ready = on_ready
        self._loop = Loop()
        self._made: list[str] = []
        self._made_for_nodes: set[str] = set()
        self._copy = bytearray()  # what has come of an archive
        self._trunks: TrunkEnds | None = None
        self._events: deque[tuple[str, JsonObject]] = deque()
        self._teller: Future[None] = settled(None)
        self._end_reason = ""
        self._credentials = Credentials.of_job(order.token.encode(), "machines")
        self._dialler = Dialler(
            self._loop,
            machine=order.machine,
            addresses=order.addresses,
            credentials=self._credentials,
            lease_s=order.lease_s,
            on_ready=lambda: on_ready(""),
            on_end=self._end,
        )
        self._conversation = Conversation(
            self._loop,
            self._dialler.link.open,
            on_request=self._obey,
            on_event=lambda event, told, _: self._hear(event, told),
            on_closed=self._end,
        )
        self._reports = ReportsRelay(
            self._loop, self._conversation.tell, lambda: self._cluster.scratch
        )
        self._copies = LogCopies(self._loop, self._send_copy)
        self._files: FolderWatch | None = None
        self._visits: dict[str, Visits] = {}  # what was told of strangers, by whose they are
        self._visits_timer: Timer | None = None
        self._cluster = choose_cluster(order.nodes).make(
            self._loop,
            on_event=self._on_cluster_event,
            preload=order.preload,
            mtu=DATAGRAM_MTU if order.by_datagrams else None,
        )

    def run(self) -> str:
        """Serve until the end; returns why it came."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: self._end("the agent was told to end"))
        while not self._end_reason:
            self._loop.run_once(1.0)
        closed = self._cluster.close()
        deadline = self._loop.now() + _CLOSE_LIMIT_S
        while not closed.is_done and self._loop.now() < deadline:
            self._loop.run_once(0.1)
        self._clean_up()
        self._dialler.close()
        self._loop.close()
        return self._end_reason

    def _clean_up(self) -> None:
        self._reports.close()
        self._copies.forget()
        self._stop_watching_files()
        if self._trunks is not None:
            self._trunks.close()
            self._trunks = None
        for folder in reversed(self._made):
            shutil.rmtree(folder, ignore_errors=True)
        self._made.clear()

    def _end(self, reason: str) -> None:
        self._end_reason = self._end_reason or reason
        if not self._dialler.local_address:
            self._on_ready(reason)

    # --- orders -------------------------------------------------------------------------------

    def _obey(self, op: str, fields: JsonObject, _: list[int], reply: Reply) -> None:
        reply.when_done(run(self._loop, self._carry_out(op, fields)))

    def _carry_out(self, op: str, fields: JsonObject) -> Steps[Answer]:
        try:
            return (yield from self._answer(op, fields))
        except ClusterError:
            raise
        except (ElasticError, OSError) as error:
            raise ClusterError(f"cannot {op.replace('_', ' ')}: {error}") from error

    def _hear(self, event: str, told: JsonObject) -> None:
        if event == "unwatch_files":
            self._stop_watching_files()
        elif event == "send_strangers_away":
            self._visits.pop(told["owner"], None)
            self._cluster.strangers.send_away(told["owner"])
        else:
            self._reports.obey(event, told)

    def _answer(self, op: str, fields: JsonObject) -> Steps[Answer]:
        cluster = self._cluster
        match op:
            case "start":
                return (yield from self._start())
            case "copy_begins":
                return self._begin_copy(fields["folder"], fields["sign"])
            case "copy_piece":
                self._copy += fields["data"].encode(ENCODING)
                return Answer()
            case "copy_ends":
                unpack_folder(bytes(self._copy), fields["folder"])
                self._copy.clear()
                return Answer()
            case "join":
                return (yield from self._join(fields["peers"]))
            case "add_trunks":
                return (yield from self._add_trunks())
            case "start_node":
                return (yield from self._start_node(fields))
            case "ask":
                answer = yield from cluster.ask(fields["order"], fields["fields"])
                return Answer(fields={"fields": answer.fields})
            case "counters":
                return (yield from self._count())
            case "do" if fields["act"] in _ACTS:
                value = yield from self._do(fields["act"], fields["arguments"])
                return Answer(fields={"value": msgspec.to_builtins(value)})
            case "spawn":
                return (yield from self._spawn(fields))
            case "watch_end":
                self._watch_end(ProcessRef(**fields["process"]), fields["watch"])
                return Answer()
            case "send_strangers":
                return self._send_strangers(fields)
            case "watch_files":
                return self._watch_files(fields["folder"])
            case "capture":
                return (yield from self._capture(fields))
            case "captured" | "end_capture":
                return (yield from self._count_captured(op, fields["name"]))
            case "reset":
                self._visits.clear()
                yield from cluster.reset(seed=fields["seed"])
                yield from self._all_told()
                self._copies.forget()
                if left := what_is_left(cluster):
                    raise ClusterError(f"it is not clean: {'; '.join(left)}")
                return Answer()
            case "close":
                yield from cluster.close()
                self._clean_up()
                self._loop.call_soon(lambda: self._end("pytest has closed the cluster"))
                return Answer()
        raise ClusterError(f"the agent of a machine does not know how to '{op}'")

    def _do(self, act: str, arguments: JsonObject) -> Steps[Any]:
        """Do something with the agent's own cluster, or a facet of it, and return its value."""
        if act == "clock.set_offset":
            self._make_folder(os.path.dirname(arguments["file"]))
        given = dict(arguments)
        if "process" in given:
            given["process"] = ProcessRef(**given["process"])
        value = yield from attrgetter(act)(self._cluster)(**given)
        if act in _ENDS:
            yield from self._all_told()
        return value

    def _start(self) -> Steps[Answer]:
        yield from self._cluster.start()
        # Nodes share it, for the sockets of reports that lie in it.
        os.makedirs(self._cluster.scratch, mode=0o700, exist_ok=True)
        address, port = self._dialler.local_address, 0
        if self._cluster.network is not None:
            self._trunks = TrunkEnds(
                self._loop,
                self._order.machine,
                address,
                self._credentials,
                by_datagrams=self._order.by_datagrams,
            )
            port = self._trunks.port
        return Answer(fields={"address": address, "port": port})

    def _begin_copy(self, folder: str, sign: str) -> Answer:
        """Make room for a folder of pytest's, unless this machine shares it."""
        if os.path.exists(sign):
            return Answer(fields={"is_wanted": False})
        if os.path.lexists(folder):
            raise ClusterError(
                f"cannot copy {folder} to {socket.gethostname()}: there is another one"
            )
        self._make_folder(folder)
        return Answer(fields={"is_wanted": True})

    def _join(self, peers: Sequence[tuple[int, str, int]]) -> Steps[Answer]:
        assert self._trunks is not None, "only networks are joined"
        yield from gather(run(self._loop, self._trunks.dial(*peer)) for peer in peers)
        return Answer()

    def _add_trunks(self) -> Steps[Answer]:
        """Give the switch all ends of trunks that are ready."""
        assert self._trunks is not None, "only networks are joined"
        for machine, end in self._trunks.take().items():
            order = {"machine": machine, "cookie": end.cookie}
            with end.socket:
                added = self._cluster.ask(
                    "network", {"order": "add_trunk", "fields": order}, [end.socket.fileno()]
                )
            yield from added
        return Answer()

    def _start_node(self, fields: JsonObject) -> Steps[Answer]:
        """Start a node, which sees of /tmp and /dev/shm only what it shares."""
        is_private = self._cluster.capabilities.has("private_disk")
        shared = [self._cluster.scratch, *fields["folders"]] if is_private else []
        for folder in shared:
            if not os.path.isdir(folder):
                self._make_folder(folder)
                self._made_for_nodes.add(folder)
        shared += filter(os.path.exists, fields["spec"]["shared"]) if is_private else ()
        spec = NodeSpec(**{**fields["spec"], "shared": shared})
        node = yield from self._cluster.start_node(spec)
        names = ("address", "hostname", "incarnation", "disk", "pid")
        return Answer(fields={name: getattr(node, name) for name in names})

    def _count(self) -> Steps[Answer]:
        assert self._cluster.network is not None, "only a network has counters"
        counters = yield from self._cluster.network.counters()
        return Answer(fields={"links": rows_of(counters.links), "own": dict(counters.own_drops)})

    def _capture(self, fields: JsonObject) -> Steps[Answer]:
        network = having(self._cluster.network, self._cluster.capabilities["network"])
        path, is_shared = fields["path"], os.path.exists(fields["sign"])
        self._make_folder(os.path.dirname(path))
        pairs = [(source, target) for source, target in fields["pairs"]]
        yield from network.capture(fields["name"], pairs, path)
        if not is_shared:
            self._copies.follow(path)
        return Answer()

    def _count_captured(self, op: str, id: str) -> Steps[Answer]:
        """Return how many packets a capture has, once pytest has all of them."""
        network = having(self._cluster.network, self._cluster.capabilities["network"])
        count = network.captured if op == "captured" else network.end_capture
        packets = yield from count(id)
        yield from self._copies.flush()
        return Answer(fields={"packets": packets})

    def _spawn(self, fields: JsonObject) -> Steps[Answer]:
        node, is_shared = fields["node"], os.path.exists(fields["sign"])
        spec = ProcessSpec(**fields["spec"])
        if not os.path.isdir(spec.cwd) or spec.cwd in self._made_for_nodes:
            raise ClusterError(
                f"there is no folder {spec.cwd} on {socket.gethostname()}: what a job needs is "
                "expected on every machine under the same path; --elastic-copy=DIR brings it there"
            )
        outputs = [path for path in (spec.stdout, spec.stderr) if path is not None]
        for folder in (*map(os.path.dirname, outputs), spec.logs, *fields["folders"]):
            if folder is not None:
                self._make_folder(folder)
        environ = {name: self._replace_paths(text) for name, text in spec.environ.items()}
        if self._code:
            # Other code of ours may be there, which a path of the caller's names.
            paths = (self._code, environ.get("PYTHONPATH"))
            environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        argv = [self._replace_paths(word) for word in spec.argv]
        handle = yield from self._cluster.spawn(node, replace(spec, argv=argv, environ=environ))
        if not is_shared:
            for path in outputs:
                self._copies.follow(path)
            if spec.logs is not None:
                self._copies.follow_folder(spec.logs)
        facts = {"pid": handle.pid, "node_pid": handle.node_pid, "start_time": handle.start_time}
        return Answer(fields={"id": handle.id, **facts})

    def _send_strangers(self, fields: JsonObject) -> Answer:
        owner, (host, port) = fields["owner"], fields["address"]
        self._cluster.strangers.send_to(
            owner,
            fields["node"],
            (host, port),
            fields["words"].encode(ENCODING),
            connections=fields["connections"],
        )
        self._visits.setdefault(owner, Visits())
        if self._visits_timer is None:
            self._tell_visits()
        return Answer()

    def _tell_visits(self) -> None:
        """Tell what has become of strangers, for as long as there are some."""
        self._visits_timer = None
        for owner, told in self._visits.items():
            found = self._cluster.strangers.visits(owner)
            if found != told:
                self._visits[owner] = found
                self._conversation.tell("visits", {"owner": owner, "visits": asdict(found)})
        if self._visits:
            again_at = self._loop.now() + _VISITS_LOOK_S
            self._visits_timer = self._loop.call_at(again_at, self._tell_visits)

    def _watch_files(self, folder: str) -> Answer:
        """Tell of what nodes write below a folder."""
        self._stop_watching_files()
        self._make_folder(folder)
        self._files = FolderWatch(
            self._loop,
            folder,
            lambda path, how, size: self._conversation.tell(
                "file", {"path": path, "how": how, "size": size}
            ),
            lambda reason: self._conversation.tell("files_unseen", {"reason": reason}),
        )
        self._files.start()
        return Answer(fields={"identity": folder_identity(folder)})

    def _stop_watching_files(self) -> None:
        if self._files is not None:
            self._files.close()
            self._files = None

    def _replace_paths(self, text: str) -> str:
        for path, stand_in in self._reports.stand_ins.items():
            text = text.replace(path, stand_in)
        if self._code:
            for root, package in zip(self._order.roots, _PACKAGES, strict=True):
                text = text.replace(f"{root}/{package}/", f"{self._code}/{package}/")
        return text

    def _make_folder(self, path: str) -> None:
        """Make a folder and those above it; what was not there is removed at the end."""
        missing = []
        while not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(path)
        for folder in reversed(missing):
            try:
                os.mkdir(folder)
            except FileExistsError:
                continue
            self._made.append(folder)

    def _watch_end(self, process: ProcessRef, watch: int) -> None:
        self._cluster.ended(process).add_done_callback(
            lambda done: self._tell_later("ended", {"watch": watch, "code": done.result()})
        )

    # --- what happens by itself ---------------------------------------------------------------

    def _on_cluster_event(self, event: ClusterEvent) -> None:
        match event:
            case ProcessExited(process=process):
                fields = {"id": process.id, "exit_code": process.exit_code}
                self._tell_later("exited", fields)
            case NodeGone():
                self._tell_later("node_gone", asdict(event))
            case ServerLost(reason=reason):
                why = f"its cluster server was lost: {reason}"
                self._conversation.tell("ends", {"reason": why})
                self._end(why)

    def _tell_later(self, event: str, fields: JsonObject) -> None:
        """Tell pytest, once it has all that was printed before."""
        self._events.append((event, fields))
        if self._teller.is_done:
            self._teller = run(self._loop, self._tell_all())

    def _tell_all(self) -> Steps[None]:
        while self._events:
            with contextlib.suppress(ClusterError):
                # Pytest itself could not write them, and knows.
                yield from self._copies.flush()
            if self._files is not None:
                self._files.read()
            event, fields = self._events.popleft()
            self._conversation.tell(event, fields)

    def _all_told(self) -> Steps[None]:
        if not self._teller.is_done:
            yield from self._teller

    def _send_copy(self, path: str, offset: int, data: bytes) -> Future[None]:
        piece = {"path": path, "offset": offset, "data": data.decode(ENCODING)}
        return self._conversation.call("copy", piece, timeout_s=_COPY_LIMIT_S).then(lambda _: None)
