"""Nodes, a network and a clock in one deterministic program, around the real machines.

Everything that is not a machine is played: processes, connections, dials, workers. Time is virtual
and jumps from one thing to the next. Every node has a clock of its own, with its own offset and
rate, so that a comparison of two nodes' clocks would be noticed at once.

A connection is like TCP: in order, nothing lost while both ends live; what meets a cut link waits
there until it is healed. A node that loses power says nothing any more; one that crashes has its
connections reset; an agent that is killed is answered for by its keeper.
"""

from __future__ import annotations

import heapq
import json
import math
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, cast

from msgspec.structs import asdict

from elastic_simulation.connections import Connections
from elastic_simulation.endpoints import Endpoints
from elastic_simulation.inquiries import Inquiries, leader_at
from elastic_simulation.marks import Marks
from elastic_simulation.process import Direction, Pipe, PlayedAgent, Process
from elastic_simulation.queries import WorldQueries
from pytest_elastic.events.model import Event
from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.consensus.records import Term, founding_record
from pytest_elastic.rendezvous.leader.state import LeaderPhase
from pytest_elastic.rendezvous.model import Assignment, Node
from pytest_elastic.rendezvous.settings import Settings
from pytest_elastic.wire import Message

__all__ = ["World", "settings"]

M = TypeVar("M", bound=Message)

# What comes when: the time, a number that keeps the order of equal times, what is done with what.
_Due = tuple[float, int, Callable[..., None], tuple[object, ...]]
LATENCY_S = 0.0005
# A keeper kills and reports within this; then its tombstone can be read.
KEEPER_S = 0.03


def settings(
    nodes: str = "3:3",
    *,
    max_restarts: int = 3,
    last_call_s: float = 1.0,
    join_timeout_s: float = 30.0,
    shutdown_timeout_s: float = 3.0,
    failure_grace_s: float | None = None,
    kill_timeout_s: float = 4.0,
    min_round_s: float = 1.0,
    linger_s: float = 5.0,
    lease_s: float = 1.2,
    quorum: str = "coordinator",
    endpoints: str = "",
) -> Settings:
    """Return settings as the harness has them: a beat each 0.25 s and a lease of 1.2 s."""
    low, _, high = nodes.partition(":")
    return Settings(
        run_id="job",
        min_nodes=int(low),
        max_nodes=int(high or low),
        max_restarts=max_restarts,
        beat_interval_s=0.25,
        lease_s=lease_s,
        drift_s=0.3,
        last_call_s=last_call_s,
        join_timeout_s=join_timeout_s,
        shutdown_timeout_s=shutdown_timeout_s,
        failure_grace_s=shutdown_timeout_s if failure_grace_s is None else failure_grace_s,
        kill_timeout_s=kill_timeout_s,
        min_round_s=min_round_s,
        newcomer_window_s=0.2,
        linger_s=linger_s,
        store_timeout_s=1.0,
        quorum=quorum,
        endpoints=endpoints,
    )


class World(WorldQueries):
    """All of it. `processes` holds the newest start of each node."""

    def __init__(
        self,
        config: Settings,
        *,
        checks_wire: bool = True,
        keeps_messages: bool = True,
        agent_class: type[PlayedAgent] = PlayedAgent,
    ) -> None:
        self.config = config
        self.agent_class = agent_class
        self.time = 0.0
        self.processes: dict[str, Process] = {}
        self.every_process: list[Process] = []
        self.by_incarnation: dict[str, Process] = {}
        self.pipes: dict[int, Pipe] = {}
        self.cut_links: set[tuple[str, str]] = set()
        self.rejecting: set[tuple[str, str]] = set()
        self.events: list[tuple[float, str, Event]] = []
        self.sent: list[tuple[float, str, str, Any]] = []
        self.watchers: list[Callable[[], None]] = []
        self.listeners: list[Callable[[Process, Event | ports.StartWorkers], None]] = []
        self.is_changed = False  # which workers run, since the watchers looked last
        self.starts: list[tuple[str, Assignment]] = []  # told to the agent of an incarnation
        self.host: Process | None = None
        self.latency_s = LATENCY_S
        self.jitter_s = 0.0
        self.draw: Callable[[], float] = random.Random(0).random
        self.is_endpoint_down = False
        self.expected = 0  # nodes that will start, and know of no job then
        self.inquiries = Inquiries(self, KEEPER_S)
        self.connections = Connections(self, KEEPER_S)
        self.marks = Marks(self)
        names = config.endpoints.split(",") if config.endpoints else ()
        self.has_several_endpoints = bool(names)
        self.endpoints = Endpoints(self, names) if names else None
        self._checks_wire = checks_wire
        self._keeps_messages = keeps_messages
        self._is_plain = not (checks_wire or keeps_messages)  # a message is what it is
        self._queue: list[_Due] = []
        self._count = 0

    @property
    def end_written_at(self) -> float | None:
        """When the end was written that nodes find where they look for the leader, if one was."""
        return None

    def dissolve(self) -> None:
        """Let go of everything: processes and their world hold each other, and nothing else does.

        What is freed at once need not be looked for by a collection of garbage.
        """
        for process in self.every_process:
            vars(process).clear()
        vars(self).clear()

    # --- time --------------------------------------------------------------------------------

    def later(self, delay_s: float, act: Callable[..., None], *arguments: object) -> None:
        """Do something after a while: `act(*arguments)`."""
        self._count += 1
        heapq.heappush(self._queue, (self.time + delay_s, self._count, act, arguments))

    def run(self, seconds: float) -> None:
        """Let time pass."""
        end, queue, pop = self.time + seconds, self._queue, heapq.heappop
        while queue and queue[0][0] <= end:  # as in `_next`: a call less for each thing
            at, _, act, arguments = pop(queue)
            if at > self.time:  # noqa: PLR1730
                self.time = at
            act(*arguments)
            if self.is_changed:
                self.is_changed = False
                for watch in self.watchers:
                    watch()
        self.time = max(self.time, end)

    def run_until(self, condition: Callable[[], bool], within_s: float) -> float:
        """Let time pass until something holds; return how long it took, or fail."""
        start = self.time
        while not condition():
            assert self._queue, "nothing will ever happen again"
            assert self._queue[0][0] <= start + within_s, f"not so within {within_s} s"
            self._next()
        return self.time - start

    def _next(self) -> None:
        at, _, act, arguments = heapq.heappop(self._queue)
        self.time = max(self.time, at)
        act(*arguments)
        if self.is_changed:
            self.is_changed = False
            for watch in self.watchers:
                watch()

    # --- starting and ending -----------------------------------------------------------------

    def start(
        self,
        *names: str,
        explicit: bool = True,
        slots: int = 2,
        pinned: int | None = None,
        config: Settings | None = None,
        port: int = 1000,
        clock_rate: float = 1.0,
    ) -> None:
        """Start agents; the first one of the world hosts the endpoint."""
        for name in names:
            number = len(self.every_process) + 1
            node = Node(
                name=name,
                incarnation=f"{name}/{number}",
                address=name,
                port=port,
                slots=slots,
                pinned=pinned,
                is_name_explicit=explicit,
            )
            process = Process(
                self, node, config or self.config, offset_s=1000.0 * number, rate=clock_rate
            )
            key = name if explicit else node.incarnation
            self.processes[key] = process
            self.every_process.append(process)
            self.by_incarnation[node.incarnation] = process
            if self.endpoints is not None:
                self.endpoints.open(process)
            elif self.host is None or self._serves_again(process):
                self.bootstrap(process)
            process.feed("follower", v.Start())

    def _serves_again(self, process: Process) -> bool:
        """Tell whether a process comes back at the endpoint, which is not served any more."""
        host = self.host
        is_back = host is not None and not host.is_alive and host.name == process.name
        return is_back and self.config.has_succession

    def bootstrap(self, process: Process) -> None:
        """Let a process host the rendezvous."""
        self.host = process
        base, mark = founding_record((process.node,)), self.marks.open(process)
        process.feed("follower", v.Bootstrap(base=base, mark=mark))

    def kill_agent(self, name: str) -> None:
        """SIGKILL: connections close; the keeper kills the workers and leaves a tombstone."""
        process = self.processes[name]
        if not process.is_alive:
            return
        process.is_alive = False
        self._close_all(process, "closed by the other side")

        def bury() -> None:
            if process.has_power:
                process.agent.die("its agent was killed")
                process.has_tombstone = True

        self.later(KEEPER_S, bury)

    def leave(self, process: Process) -> None:
        """End an agent whose work is done."""
        is_leading = process.leader is not None and process.finished is None
        if process.agent.over is None or is_leading or not process.is_released:
            return
        self.go(process)

    def go(self, process: Process) -> None:
        """End an agent that is released, or that cannot be waited for."""
        process.is_alive = False
        process.left_at = self.time
        self._close_all(process, "closed by the other side")

    def crash(self, name: str) -> None:
        """Everything on a node dies at once; its kernel resets the connections."""
        process = self.processes[name]
        process.is_alive = False
        process.agent.die("its node crashed")
        self._close_all(process, "reset by the other side")

    def cut_power(self, name: str) -> None:
        """Let a node be gone without a word."""
        process = self.processes[name]
        process.is_alive = False
        process.has_power = False
        process.lost_power_at = self.time
        process.has_tombstone = False
        process.agent.die(None)
        self.marks.lose(name)

    def freeze(self, name: str, seconds: float) -> None:
        """SIGSTOP the agent; its keeper goes on."""
        process = self.processes[name]
        process.is_frozen = True
        self.later(seconds, process.thaw)

    def suspend(self, name: str, seconds: float) -> None:
        """Stop a whole machine: agent, keeper and workers; its clock goes on."""
        process = self.processes[name]
        process.is_frozen = process.is_suspended = True
        self.is_changed = True
        self.later(seconds, process.resume)

    # --- the network -------------------------------------------------------------------------

    def cut(self, source: str, target: str) -> None:
        """Let nothing through in one direction."""
        self.cut_links.add((source, target))

    def isolate(self, name: str, others: Sequence[str]) -> None:
        """Cut a node off from others, both ways."""
        for other in others:
            if other != name:
                self.cut(name, other)
                self.cut(other, name)

    def reject(self, name: str, others: Sequence[str]) -> None:
        """Reset what there is between a node and others, and refuse what comes."""
        for other in others:
            if other != name:
                self.rejecting |= {(name, other), (other, name)}
        for pipe in list(self.pipes.values()):
            pair = (pipe.up.source.name, pipe.up.target.name)
            if pair in self.rejecting:
                self._end(pipe.up, "reset by a firewall")
                self._end(pipe.down, "reset by a firewall")

    def heal(self, links: Iterable[tuple[str, str]] | None = None) -> None:
        """Let everything through again, or what goes over some links; what waited comes first."""
        healed = self.cut_links | self.rejecting if links is None else set(links)
        self.cut_links -= healed
        self.rejecting -= healed
        for pipe in list(self.pipes.values()):
            self._flush(pipe.up)
            self._flush(pipe.down)

    def break_connection(self, name: str) -> None:
        """Reset a follower's connection at both ends; both nodes are well."""
        pipe = self.processes[name].pipe
        if pipe is not None:
            self._end(pipe.up, "reset")
            self._end(pipe.down, "reset")

    def is_cut(self, source: Process, target: Process) -> bool:
        return (source.name, target.name) in self.cut_links and source is not target

    def _send(self, direction: Direction, item: Any) -> None:  # noqa: ANN401 (any message)
        source, target = direction.source, direction.target
        if not self._is_plain and not isinstance(item, str):
            item = self.carry(source, target, item)
        direction.items.append(item)
        self._count += 1
        at = self.time if source is target else self.time + self.draw_latency_s()
        heapq.heappush(self._queue, (at, self._count, self._deliver, (direction,)))

    def carry(self, source: Process, target: Process, message: M) -> M:
        """Write down what one process says to another, and return what the other one hears."""
        if self._keeps_messages:
            self.sent.append((self.time, source.name, target.name, message))
        if not self._checks_wire:
            return message
        return cast("M", m.decode(json.loads(json.dumps(m.encode(message)))))

    def draw_latency_s(self) -> float:
        """Return how long a message takes; those of one connection stay in order all the same."""
        return self.latency_s + self.jitter_s * self.draw() if self.jitter_s else self.latency_s

    def _flush(self, direction: Direction) -> None:
        for _ in range(len(direction.items)):
            self.later(self.draw_latency_s(), self._deliver, direction)

    def _deliver(self, direction: Direction) -> None:
        source, target = direction.source, direction.target
        if not direction.items or (self.cut_links and self.is_cut(source, target)):
            return
        if not (source.has_power and target.has_power):
            return
        item = direction.items.popleft()
        if not direction.is_open:
            return
        pipe = direction.pipe
        if isinstance(item, str):
            self._end(direction, item)
        elif direction is pipe.down:
            target.feed("follower", v.MessageReceived(message=item))
        elif target.leader is None:
            self.close(pipe.down, pipe.up, "no leader is here")
        else:
            target.feed("leader", v.PeerMessage(connection=pipe.id, message=item))

    def _end(self, direction: Direction, reason: str) -> None:
        """Tell the receiving end of a direction that the connection is over."""
        if not direction.is_open:
            return
        direction.is_open = False
        pipe = direction.pipe
        if direction is pipe.up:
            direction.target.feed("leader", v.PeerLost(connection=pipe.id, reason=reason))
        elif direction.target.pipe is pipe:
            direction.target.pipe = None
            direction.target.feed("follower", v.ConnectionLost(reason=reason))
        self._forget(pipe)

    def close(self, outward: Direction, inward: Direction, reason: str) -> None:
        """End a connection from the sending end of `outward`."""
        inward.is_open = False
        if outward.is_open:
            self._send(outward, reason)

    def _forget(self, pipe: Pipe) -> None:
        if not pipe.up.is_open and not pipe.down.is_open:
            self.pipes.pop(pipe.id, None)

    def _close_all(self, process: Process, reason: str) -> None:
        for pipe in list(self.pipes.values()):
            if pipe.up.source is process:
                self.close(pipe.up, pipe.down, reason)
            elif pipe.down.source is process:
                self.close(pipe.down, pipe.up, reason)

    def state(self, process: Process, event: Event) -> None:
        """Note a fact that a node states."""
        self.events.append((self.time, process.name, event))
        if self.listeners:
            self.hear(process, event)

    def hear(self, process: Process, said: Event | ports.StartWorkers) -> None:
        """Tell listeners what a node states, or that its workers are to start."""
        for listen in list(self.listeners):
            listen(process, said)

    # --- what followers do -------------------------------------------------------------------

    def perform_follower(self, process: Process, command: v.FollowerCommand) -> None:
        match command:
            case v.Send(message=message):
                if isinstance(message, m.RecordAccepted):
                    self.marks.remember(process)
                if process.pipe is not None:
                    self._send(process.pipe.up, message)
            case v.Notify(notice=notice):
                process.agent.notice(notice)
                if isinstance(notice, ports.JobOver):
                    self.marks.part(process)
                    if process.leader is not None and leader_at(process).is_founding:
                        process.feed("leader", v.HandOver(reason="has ended"))
            case v.Ask(term=None):
                self.connections.probe(process, command, "follower")
            case v.Emit(event=event):
                self.state(process, event)
            case v.FindLeader(peers=peers):
                self.later(self.draw_latency_s(), self._found, process)
                self.inquiries.ask_who_leads(process, peers)
            case v.Dial():
                self.connections.dial(process, command)
            case v.Hangup():
                self.connections.hang_up(process)
            case v.Released():
                process.is_released = True
                self.later(2 * KEEPER_S, self.leave, process)
            case v.Ask():
                self.inquiries.ask_vote(process, command)
            case v.SendTo(connection=connection, message=m.Answer() as answer):
                self.inquiries.answer(process, connection, answer)
            case v.HandOver():
                process.feed("leader", command)
            case v.Lead(recovered=recovered):
                self.inquiries.begin_to_lead(process, recovered)
            case _:
                raise AssertionError(f"unknown command {command}")

    def _found(self, process: Process) -> None:
        if process.leader is not None:
            process.feed("follower", v.LeaderFound(leader=leader_at(process)))
            return
        if self.endpoints is not None:
            self.endpoints.find(process)
            return
        leader, host = self.inquiries.published, self.host
        is_served = host is not None and host.has_power and not self.is_endpoint_down
        if leader is None:
            process.feed("follower", v.LeaderNotFound(reason="there is no leader"))
        elif host is None or not (
            is_served and (host is process or not self.is_apart(process, host))
        ):
            process.feed("follower", v.LeaderNotFound(reason="the endpoint did not answer"))
        else:
            process.feed("follower", v.LeaderFound(leader=leader))

    def is_apart(self, one: Process, other: Process) -> bool:
        if not self.cut_links:
            return False
        return self.is_cut(one, other) or self.is_cut(other, one)

    def outcome(self, caller: Process, target: Process) -> v.Outcome:
        """Tell what dialling a process shows, if neither is frozen."""
        if (caller.name, target.name) in self.rejecting:
            return v.Outcome.REFUSED
        if not target.has_power or (target is not caller and self.is_apart(caller, target)):
            return v.Outcome.SILENT
        if target.is_alive:
            return v.Outcome.SILENT if target.is_frozen else v.Outcome.ALIVE
        return v.Outcome.TOMBSTONE if target.has_tombstone else v.Outcome.REFUSED

    def at_port_of(self, dial: v.Dial) -> Process:
        """Return the process that is, or was last, behind an address; of two living, the host."""
        if self.host is not None and self.host.is_alive and self.host.node.address == dial.address:
            return self.host
        return next(p for p in reversed(self.every_process) if p.node.address == dial.address)

    def next_id(self) -> int:
        self._count += 1
        return self._count

    # --- what the leader does ----------------------------------------------------------------

    def perform_leader(self, process: Process, command: v.LeaderCommand) -> None:
        match command:
            case v.SendTo(connection=connection, message=message):
                pipe = self.pipes.get(connection)
                if pipe is not None:
                    self._send(pipe.down, message)
            case v.Disconnect(connection=connection):
                pipe = self.pipes.get(connection)
                if pipe is not None:
                    self.close(pipe.down, pipe.up, "closed by the leader")
            case v.Ask():
                self.connections.probe(process, command, "leader")
            case v.Emit(event=event):
                self.state(process, event)
            case v.Finished(result=result):
                process.finished = result
                self.later(2 * KEEPER_S, lambda: self.leave(process))
            case v.SteppedDown():
                self.end_leader(process)
            case _:
                raise AssertionError(f"unknown command {command}")

    def may_decide(self, process: Process) -> bool:
        """Tell whether a leader has a grant that is not over, and no decided end to tell."""
        leader, now = process.leader, process.now()
        if leader is None or leader.phase is LeaderPhase.DEPOSED:
            return False
        until: float = leader._replication.leads_until(now)  # noqa: SLF001 (only a judge asks)
        return now < until < math.inf

    def show_newer(self, process: Process, ahead: int) -> int:
        """Let a leader meet a node that has promised a term so much higher, and is lost then.

        One that has decided nothing hears that such a one leads.
        """
        assert process.leader is not None, f"{process.name} does not lead"
        term = Term(process.leader.term.counter + ahead, "lost/0")
        config, own = self.config, process.node
        if leader_at(process).is_founding:  # it would wait for that node, which never was
            leader = m.LeaderAddress(
                term=term, name="lost", incarnation="lost/0", address="lost", port=1
            )
            process.feed("leader", v.LeaderHeard(leader=leader))
            return term.counter
        request = m.JoinRequest(
            run_id=config.run_id,
            node=Node(name="lost", incarnation="lost/0", address="lost", port=1, slots=1),
            settings=asdict(config),
            resumes_round=0,
            term=term,
            number=0,
            restarts_used=0,
            meant_for=own.incarnation,
        )
        process.feed("leader", v.PeerMessage(connection=self.next_id(), message=request))
        return term.counter

    def announce_at_endpoints(self, process: Process, leader: m.LeaderAddress) -> None:
        if self.endpoints is not None:
            self.endpoints.announce(process, leader)

    def announce_to(self, process: Process, incarnation: str, leader: m.LeaderAddress) -> None:
        self.inquiries.announce_to(process, incarnation, leader)

    def hear_of(self, process: Process, leader: m.LeaderAddress) -> bool:
        return self.inquiries.hear_of(process, leader)

    def end_leader(self, process: Process) -> None:
        """Let a process lead no more; its followers see their connections end."""
        if process.leader is None:
            return
        process.leader = None
        for pipe in list(self.pipes.values()):
            if pipe.down.source is process:
                self.close(pipe.down, pipe.up, "the leader stepped down")
        if process.agent.over is not None:
            self.later(KEEPER_S, lambda: self.leave(process))
