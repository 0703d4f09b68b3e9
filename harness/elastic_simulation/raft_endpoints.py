"""The endpoints of a played job that has several, where nodes run the Raft-shaped core.

Each endpoint's store is on a node, lives and dies with that node's agent, and holds two things:
where the host's agent is, and who leads. Hosts look at all of them until somebody leads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from elastic_simulation.endpoints import Endpoints
from elastic_simulation.process import Process, Surroundings
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.core import messages as m
from pytest_elastic.rendezvous.core import vocabulary as cv
from pytest_elastic.rendezvous.core.records import founding_record
from pytest_elastic.rendezvous.founding import majority_of
from pytest_elastic.rendezvous.model import RosterEntry

__all__ = ["RaftEndpoints"]

# How often a host looks at the other endpoints while a job begins.
_LOOK_S = 0.1


class RaftEndpoints(Endpoints):
    """The stores at the nodes of `names`; a leader is written down in each that it reaches."""

    def __init__(
        self,
        world: Surroundings,
        names: Sequence[str],
        address_of: Callable[[Process], m.LeaderAddress],
    ) -> None:
        super().__init__(world, names)
        self._address_of = address_of
        self._leaders: dict[str, m.LeaderAddress] = {}  # by the incarnation of a store's host
        self._known: dict[str, tuple[str, ...]] = {}  # hosts of which a host has been told

    def open(self, process: Process) -> None:
        """Host the endpoint that is on this node, if one is, and look for the other hosts."""
        if self._world.host is None:
            self._world.host = process
        if process.name in self.names:
            self._look(process)

    def _look(self, process: Process) -> None:
        world = self._world
        if not process.is_alive or process.agent.over is not None:
            return
        world.later(_LOOK_S, self._look, process)
        if process.is_frozen or process.coordinator is not None or process.agent.belongs:
            return
        hosts = [
            self._entry(process, endpoint, self._host(endpoint))
            for endpoint in range(len(self.names))
        ]
        known = tuple(f"{each.name} {each.port} {each.role}" for each in hosts)
        if self._known.get(process.node.incarnation) == known:
            return
        self._known[process.node.incarnation] = known
        boot: Any = cv.Bootstrap(base=founding_record(hosts), seat=_seat(process.name))
        world.later(world.draw_latency_s(), process.feed, "member", boot)

    def _entry(self, process: Process, endpoint: int, host: Process | None) -> RosterEntry:
        """Return a host as a voter; without a port while nobody knows where its agent is."""
        name = self.names[endpoint]
        is_known = host is not None and self._reaches(process, host)
        incarnation = host.node.incarnation if is_known and host is not None else ""
        return RosterEntry(
            name=name,
            incarnation=_seat(name),
            address=name,
            slots=1,
            port=1000 if is_known else 0,
            role=incarnation or "unknown",
        )

    # --- finding and announcing --------------------------------------------------------------

    def find(self, process: Process) -> None:
        """Tell a follower what the endpoints that it reaches say; a job that runs comes first."""
        if process.coordinator is not None:
            found = [self._address_of(process)]
        else:
            reached = [self._host(endpoint) for endpoint in range(len(self.names))]
            found = [
                self._leaders[host.node.incarnation]
                for host in reached
                if host is not None and self._reaches(process, host)
                if host.node.incarnation in self._leaders
            ]
        if not found:
            given: Any = v.CoordinatorNotFound(reason="no endpoint names a leader")
        else:
            best = found[0]
            for each in found[1:]:
                best = each if each.goes_before(best) else best
            is_here = best.incarnation == process.node.incarnation
            given = cv.LeaderFound(leader=best, is_here=is_here)
        process.feed("member", given)

    def announce(self, process: Process, place: Any) -> None:  # noqa: ANN401 (of another core)
        """Write down at all endpoints that are reached who leads; tell who was there."""
        own = dataclasses.replace(self._address_of(process), term=place.term)
        for endpoint in range(len(self.names)):
            host = self._host(endpoint)
            if host is None or not self._reaches(process, host):
                continue
            key = host.node.incarnation
            held = self._leaders.get(key)
            if held is not None and held.goes_before(own):
                self._world.hear_of(process, held)  # type: ignore[arg-type]
                continue
            self._leaders[key] = own
            if held is not None and held.incarnation != own.incarnation:
                self._world.announce_to(process, held.incarnation, own)  # type: ignore[arg-type]

    # --- what judges ask ---------------------------------------------------------------------

    def can_begin_a_job(self, left_out: str) -> bool:
        """Tell whether a majority of endpoints is served, but for a node that nobody reaches."""
        served = 0
        for endpoint in range(len(self.names)):
            host = self._host(endpoint)
            served += host is not None and host.agent.over is None and host.name != left_out
        return served >= majority_of(len(self.names))

    def keep_others_out(self) -> bool:
        """Tell whether so many know of a job that nobody can found another, or none has begun."""
        if not self._world.starts:
            return True
        know = 0
        for endpoint in range(len(self.names)):
            host = self._host(endpoint)
            held = self._leaders.get(host.node.incarnation) if host else None
            know += held is not None and not held.is_founding
        return len(self.names) - know < majority_of(len(self.names))


def _seat(name: str) -> str:
    return f"host of {name}"
