"""The endpoints of a played job that has several.

Each endpoint's store is on a node, lives and dies with that node's agent, and holds two things:
where the host's agent is, and the leader. Hosts look at all of them until there is a leader.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from elastic_simulation.inquiries import leader_at
from elastic_simulation.process import Process, Surroundings
from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.consensus.records import founding_record, seat_of
from pytest_elastic.rendezvous.model import Node

__all__ = ["Endpoints"]

# How often a host looks at the other endpoints while a job begins.
_LOOK_S = 0.1


class Endpoints:
    """The stores at the nodes of `names`; a leader is written down in each that it reaches."""

    def __init__(
        self,
        world: Surroundings,
        names: Sequence[str],
    ) -> None:
        self.names = tuple(names)
        self._world = world
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
        if process.is_frozen or process.leader is not None or process.agent.belongs:
            return
        hosts = [
            self._entry(process, endpoint, self._host(endpoint))
            for endpoint in range(len(self.names))
        ]
        known = tuple(f"{each.name} {each.port} {each.role}" for each in hosts)
        if self._known.get(process.node.incarnation) == known:
            return
        self._known[process.node.incarnation] = known
        boot = v.Bootstrap(base=founding_record(hosts), seat=seat_of(process.name))
        world.later(world.draw_latency_s(), process.feed, "follower", boot)

    def _entry(self, process: Process, endpoint: int, host: Process | None) -> Node:
        """Return a host as a voter; without a port while its agent's address is unknown."""
        name = self.names[endpoint]
        is_known = host is not None and self._reaches(process, host)
        incarnation = host.node.incarnation if is_known and host is not None else ""
        return Node(
            name=name,
            incarnation=seat_of(name),
            address=name,
            slots=1,
            port=1000 if is_known else 0,
            role=incarnation or "unknown",
        )

    def _host(self, endpoint: int) -> Process | None:
        """Return whose agent serves an endpoint now; its store is a process of its own."""
        host = self._world.processes.get(self.names[endpoint])
        is_up = host is not None and host.is_alive and not host.is_suspended
        return host if is_up and not self._world.is_endpoint_down else None

    def _reaches(self, process: Process, host: Process) -> bool:
        return process is host or not self._world.is_apart(process, host)

    # --- finding and announcing --------------------------------------------------------------

    def find(self, process: Process) -> None:
        """Tell a follower what the endpoints that it reaches say; a job that runs comes first."""
        if process.leader is not None:
            found = [leader_at(process)]
        else:
            reached = [self._host(endpoint) for endpoint in range(len(self.names))]
            found = [
                self._leaders[host.node.incarnation]
                for host in reached
                if host is not None and self._reaches(process, host)
                if host.node.incarnation in self._leaders
            ]
        if not found:
            process.feed("follower", v.LeaderNotFound(reason="no endpoint names a leader"))
        else:
            best = found[0]
            for each in found[1:]:
                best = each if each.goes_before(best) else best
            process.feed("follower", v.LeaderFound(leader=best))

    def announce(self, process: Process, leader: m.LeaderAddress) -> None:
        """Publish the leader at all endpoints that are reached; tell the one published before."""
        own = replace(leader_at(process), term=leader.term)
        for endpoint in range(len(self.names)):
            host = self._host(endpoint)
            if host is None or not self._reaches(process, host):
                continue
            key = host.node.incarnation
            held = self._leaders.get(key)
            if held is not None and held.goes_before(own) and self._world.hear_of(process, held):
                continue
            self._leaders[key] = own
            if held is not None and held.incarnation != own.incarnation:
                self._world.announce_to(process, held.incarnation, own)

    # --- what judges ask ---------------------------------------------------------------------

    def host_that_began(self) -> Process | None:
        """Return which of the hosts leads, or led last, of those that have started a round."""
        by_incarnation = self._world.by_incarnation
        known = [each for each in self._leaders.values() if not each.is_founding]
        newest = max(known, key=lambda each: each.term, default=None)
        return None if newest is None else by_incarnation[newest.incarnation]

    def can_begin_a_job(self, left_out: str) -> bool:
        """Tell whether a majority of endpoints is served, but for an unreachable node."""
        served = 0
        for endpoint in range(len(self.names)):
            host = self._host(endpoint)
            served += host is not None and host.agent.over is None and host.name != left_out
        return served >= len(self.names) // 2 + 1

    def is_served(self, left_out: str) -> bool:
        """Tell whether a new node can ask at an endpoint, but for an unreachable one."""
        hosts = [self._host(endpoint) for endpoint in range(len(self.names))]
        return any(host is not None and host.name != left_out for host in hosts)

    def keep_others_out(self) -> bool:
        """Tell whether so many know of a job that no other can be founded, or none has begun."""
        if not self._world.starts:
            return True
        know = 0
        for endpoint in range(len(self.names)):
            host = self._host(endpoint)
            held = self._leaders.get(host.node.incarnation) if host else None
            know += held is not None and not held.is_founding
        return len(self.names) - know < len(self.names) // 2 + 1
