"""The endpoints of a played job that has several (R12): their stores, hosts and founders.

Each endpoint is on a node; its store lives and dies with that node's agent, and is empty when the
agent comes back. What is asked of it takes its time, and comes too late where a link is cut.
"""

from __future__ import annotations

from collections.abc import Sequence

from elastic_simulation.process import Process, Surroundings
from pytest_elastic.rendezvous import founding_vocabulary as f
from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.founding import FoundingMachine, best_of, majority_of
from pytest_elastic.rendezvous.model import Node

__all__ = ["Endpoints", "place_under"]

_RELEASED = "released"


class Endpoints:
    """The stores at the nodes of `names`, and what is done with them."""

    def __init__(self, world: Surroundings, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._world = world
        self._texts: dict[str, str] = {}  # by the incarnation of the agent that hosts the store
        self._records: dict[str, f.Record] = {}  # by their text

    # --- a store -----------------------------------------------------------------------------

    def open(self, process: Process) -> None:
        """Host the endpoint that is on this node, if one is, and try to found the job."""
        if self._world.host is None:
            self._world.host = process  # until somebody begins the job
        if process.name not in self.names:
            return
        self._texts[process.node.incarnation] = ""
        process.founding = FoundingMachine(
            settings=process.member.settings,
            place=place_under(process.node, 1),
            rank=self.names.index(process.name),
            names=self.names,
            now=process.now(),
        )
        process.feed("founding", v.TimePassed())

    def _host(self, endpoint: int) -> Process | None:
        """Return whose agent serves an endpoint now; its store is a process of its own."""
        host = self._world.processes.get(self.names[endpoint])
        is_up = host is not None and host.is_alive and not host.is_suspended
        return host if is_up and not self._world.is_endpoint_down else None

    def _reaches(self, process: Process, host: Process) -> bool:
        return process is host or not self._world.is_apart(process, host)

    def _as_text(self, record: f.Record) -> str:
        text = repr(record)
        self._records[text] = record
        return text

    def _swap(self, host: Process, expected: str, text: str) -> str:
        """Swap, and return what the store holds then."""
        key = host.node.incarnation
        if self._texts[key] == expected:
            self._texts[key] = text
        return self._texts[key]

    def can_begin_a_job(self, left_out: str) -> bool:
        """Tell whether a majority of endpoints is served, but for a node that nobody reaches.

        What is final there by a founder that was lost before the first round stays (R12), and where
        it has founded the job, one endpoint that says so is enough to keep everybody else from it.
        """
        free = 0
        for endpoint in range(len(self.names)):
            host = self._host(endpoint)
            if host is None or host.agent.over is not None or host.name == left_out:
                continue
            record = self._records.get(self._texts[host.node.incarnation])
            if record is None or self._is_well(record.place):
                free += 1
            elif record.claim is None:
                return False
            else:
                free += not record.claim.is_final
        return free >= majority_of(len(self.names))

    def is_served(self, left_out: str) -> bool:
        """Tell whether a new node can ask at an endpoint, but for one that nobody reaches."""
        hosts = [self._host(endpoint) for endpoint in range(len(self.names))]
        return any(host is not None and host.name != left_out for host in hosts)

    def _is_well(self, place: m.Place) -> bool:
        every = self._world.every_process
        founder = next(p for p in every if p.node.incarnation == place.incarnation)
        return founder.is_alive and founder.coordinator is not None

    def keep_others_out(self) -> bool:
        """Tell whether so many know of a job that nobody can found another one, or none has begun.

        What is left when a majority of stores is lost at once is not promised to be enough (R12).
        """
        if not self._world.starts:
            return True
        know = 0
        for endpoint in range(len(self.names)):
            host = self._host(endpoint)
            record = self._records.get(self._texts[host.node.incarnation]) if host else None
            know += record is not None and record.claim is None
        return len(self.names) - know < majority_of(len(self.names))

    # --- founding ----------------------------------------------------------------------------

    def perform(self, process: Process, command: f.FoundingCommand) -> None:
        """Do what a founder's machine wants."""
        world = self._world
        match command:
            case f.Look(endpoint=endpoint):
                self._ask(process, endpoint, None, "")
            case f.Swap(endpoint=endpoint, expected=expected, record=record):
                text = _RELEASED if record is None else self._as_text(record)
                self._ask(process, endpoint, text, expected)
            case f.Begin(reason=reason):
                world.host = process
                process.coordinate(1, reason)
                process.set_alarm("coordinator")
                if process.agent.over is not None:
                    process.feed("coordinator", v.HandOver(reason="has left"))
            case f.Yield(reason=reason):
                # The real driver is told of a store's answer when it is doing nothing else.
                process.tell_at_once("coordinator", v.FoundingLost(reason=reason))
            case f.Founded():
                process.feed("coordinator", v.JobFounded())
                if process.coordinator is not None:
                    world.watch_endpoint_of(process)
            case v.Emit():
                world.perform_member(process, command)

    def found(self, process: Process) -> None:
        """Take note that the coordinator here has nodes enough."""
        process.feed("founding", f.Wanted())

    def _ask(self, process: Process, endpoint: int, text: str | None, expected: str) -> None:
        world = self._world

        def arrive() -> None:
            host = self._host(endpoint)
            if host is None or not self._reaches(process, host):
                is_down = host is None
                delay_s = world.draw_latency_s() if is_down else f.ANSWER_WITHIN_S
                answer = f.Answered(endpoint=endpoint, error="it did not answer")
                world.later(delay_s, lambda: process.feed("founding", answer))
                return
            is_swap = text is not None
            held = self._swap(host, expected if is_swap else "\0", text or "")
            answer = f.Answered(endpoint=endpoint, text=held, record=self._records.get(held))
            world.later(world.draw_latency_s(), lambda: process.feed("founding", answer))

        world.later(world.draw_latency_s(), arrive)

    # --- finding and announcing --------------------------------------------------------------

    def find(self, process: Process) -> None:
        """Tell a member what the endpoints that it reaches say; a job that runs comes first."""
        if process.coordinator is not None:
            self._tell_found(process, place_under(process.node, process.coordinator.term))
            return
        found: list[f.Record] = []
        for endpoint in range(len(self.names)):
            host = self._host(endpoint)
            if host is not None and self._reaches(process, host):
                record = self._records.get(self._texts[host.node.incarnation])
                if record is not None:
                    found.append(record)
        if not found:
            process.feed("member", v.CoordinatorNotFound(reason="no endpoint names a coordinator"))
            return
        self._tell_found(process, best_of(found).place)

    def _tell_found(self, process: Process, place: m.Place) -> None:
        process.feed(
            "member",
            v.CoordinatorFound(
                address=place.address,
                port=place.port,
                term=place.term,
                is_here=process.coordinator is not None,
                incarnation=place.incarnation,
            ),
        )

    def announce(self, process: Process, place: m.Place) -> None:
        """Write down at all endpoints that are reached where the job is; tell who was there."""
        world = self._world
        text = self._as_text(f.Record(place=place))
        for endpoint in range(len(self.names)):
            host = self._host(endpoint)
            if host is None or not self._reaches(process, host):
                continue
            held = self._texts[host.node.incarnation]
            record = self._records.get(held)
            if record is not None and record.claim is None and record.place.term >= place.term:
                if record.place.term > place.term:
                    world.hear_of(process, record.place)
                continue
            self._swap(host, held, text)
            if record is not None and record.place.incarnation != place.incarnation:
                world.announce_to(process, record.place.incarnation, place)


def place_under(node: Node, term: int) -> m.Place:
    """Return where a coordinator on a node is."""
    return m.Place(
        term=term,
        name=node.name,
        incarnation=node.incarnation,
        address=node.address,
        port=node.port,
    )
