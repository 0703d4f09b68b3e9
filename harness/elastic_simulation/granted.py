"""A played world in which an etcd in memory names the leader (`quorum=granted`).

What talks to it is the launcher's own `KeyHolder`, one for each process; played are its loop, the
calls that the store service would make, and etcd itself: one key bound to a lease, one record,
one end bound to another, and a counter of revisions. Like a node, it can be cut off: its name on
links is "etcd".
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from elastic_simulation.process import Process
from elastic_simulation.world import World
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.consensus.records import KnownJob
from pytest_elastic.rendezvous.consensus.replication import Recovered
from pytest_elastic.rendezvous.model import Node
from pytest_elastic.rendezvous.registries.key_holder import KeyHolder

__all__ = ["ETCD", "Etcd", "EtcdTimer", "GrantedWorld"]

ETCD = "etcd"
# A loop that stands still looks again so often, in the world's time.
_FROZEN_S = 0.1


@dataclass(slots=True, kw_only=True)
class _Key:
    """The key that names the leader, while its lease lasts."""

    value: str
    holder: str
    created: int
    lease: str
    ttl_s: float
    until: float


@functools.lru_cache(maxsize=32)  # each node comes with its own again and again
def _incarnation_in(record: str) -> str:
    return str(json.loads(record)["incarnation"])


class Etcd:
    """What etcd holds, and the five calls of `workers.store.etcd_client` (which see)."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.key: _Key | None = None
        self.record = ""
        self._ending = ""
        self.ended_at = self._ending_until = 0.0
        self._revision = 0

    def ask(self, call: str, arguments: Mapping[str, Any]) -> object:
        """Do one call at once, and return its answer."""
        if self.key is not None and self._world.time >= self.key.until:
            self.key = None
        match call:
            case "campaign":
                return self.campaign(str(arguments["value"]), float(arguments["ttl_s"]))
            case "renew":
                return self._renew(arguments)
            case "record":
                if self._is_held(arguments):
                    self.record = str(arguments["record"])
                return self._is_held(arguments)
            case "conclude":
                if self._is_held(arguments):
                    self._conclude(str(arguments["ending"]), float(arguments["end_ttl_s"]))
                return self._is_held(arguments)
            case _:
                self._resign(arguments)
                return None

    def ending_at(self, when: float) -> str:
        """Return the end that stands at a moment, "" if none does."""
        return self._ending if when < self._ending_until else ""

    def _conclude(self, ending: str, ttl_s: float) -> None:
        self._ending, self.record = ending, ""
        self.ended_at = self._world.time
        self._ending_until = self.ended_at + ttl_s

    def _is_held(self, arguments: Mapping[str, Any]) -> bool:
        return self.key is not None and self.key.created == arguments["create_revision"]

    def campaign(self, value: str, ttl_s: float) -> Mapping[str, Any]:
        """Name the node that asks, if no other is."""
        key, now = self.key, self._world.time
        caller = _incarnation_in(value)
        if key is None or key.holder == caller:  # what it still says of the one before is in vain
            self._revision += 1
            key = self.key = _Key(
                value=value,
                holder=caller,
                created=self._revision,
                lease=str(self._revision),
                ttl_s=ttl_s,
                until=now + ttl_s,
            )
        return {
            "is_won": key.holder == caller,
            "value": key.value,
            "create_revision": key.created,
            "lease": key.lease,
            "ttl_s": ttl_s,
            "record": self.record,
            "ending": self.ending_at(now),
        }

    def _renew(self, arguments: Mapping[str, Any]) -> float:
        if self.key is None or not self._is_held(arguments):
            return 0
        self.key.until = self._world.time + self.key.ttl_s
        return self.key.ttl_s

    def _resign(self, arguments: Mapping[str, Any]) -> None:
        if self._is_held(arguments):
            self.key = None


class EtcdTimer:
    """One call to come; see `pytest_elastic.loop.Timer`."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Never call back."""
        self._callback = None

    def ring(self) -> None:
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()


class _Agent:
    """What one agent's key holder stands in: its loop, its calls, the machines beside it."""

    def __init__(self, world: GrantedWorld, process: Process) -> None:
        self._world = world
        self._process = process
        self.holder = KeyHolder(self, self, process.follower.settings)

    def now(self) -> float:
        return self._process.now()

    def call_at(self, when: float, callback: Callable[[], None]) -> EtcdTimer:
        timer = EtcdTimer(callback)
        self._soon(self._process.until(when), timer.ring)
        return timer

    def _soon(self, delay_s: float, act: Callable[[], None]) -> None:
        self._world.later(delay_s, self._do, act)

    def _do(self, act: Callable[[], None]) -> None:
        if self._process.is_alive and self._process.is_frozen:
            self._soon(_FROZEN_S, act)
        elif self._process.is_alive:
            act()

    def ask(
        self,
        call: str,
        arguments: Mapping[str, Any],
        *,
        timeout_s: float,
        on_done: Callable[[Any, str], None],
    ) -> None:
        """Ask etcd; what does not come in time is an error, though it may have been done."""
        world, name = self._world, self._process.name
        is_answered = False

        def tell(answer: object, error: str) -> None:
            nonlocal is_answered
            if not is_answered:
                is_answered = True
                on_done(answer, error)

        def is_cut() -> bool:
            return (name, ETCD) in world.cut_links or (ETCD, name) in world.cut_links

        def arrive() -> None:
            if not world.is_endpoint_down and not is_cut():
                answer = world.etcd.ask(call, arguments)
                self._soon(world.draw_latency_s(), lambda: come(answer))

        def come(answer: object) -> None:
            if not is_cut():
                tell(answer, "")

        world.later(world.draw_latency_s(), arrive)
        self._soon(timeout_s, lambda: tell(None, "etcd does not answer"))

    @property
    def node(self) -> Node:
        return self._process.node

    @property
    def known_job(self) -> KnownJob | None:
        return self._process.follower.known_job

    def tell_follower(self, given: v.FollowerInput) -> None:
        self._process.feed("follower", given)

    def tell_leader(self, given: v.LeaderInput) -> None:
        self._process.feed("leader", given)

    def lead(self, recovered: Recovered, reason: str) -> None:
        del reason
        self._world.host = self._process
        self._world.begin_to_lead(self._process, recovered)


class GrantedWorld(World):
    """A world without an endpoint; `host` is the node that was named last, or the first."""

    def __init__(self, *arguments: Any, **named: Any) -> None:  # noqa: ANN401 (those of World)
        super().__init__(*arguments, **named)
        self.etcd = Etcd(self)
        self._agents: dict[str, _Agent] = {}  # by incarnation

    @property
    def end_written_at(self) -> float | None:
        """When the end was written that stands in etcd now."""
        return self.etcd.ended_at if self.etcd.ending_at(self.time) else None

    def bootstrap(self, process: Process) -> None:
        """Name no leader yet: the first node that asks etcd is named."""
        self.host = process

    def _serves_again(self, process: Process) -> bool:
        del process
        return False

    def _holder_of(self, process: Process) -> KeyHolder:
        agent = self._agents.get(process.node.incarnation)
        if agent is None:
            agent = self._agents[process.node.incarnation] = _Agent(self, process)
        return agent.holder

    def begin_to_lead(self, process: Process, recovered: Recovered) -> None:
        """Let a process lead that etcd has named."""
        self.inquiries.begin_to_lead(process, recovered)

    def _found(self, process: Process) -> None:
        if not process.is_alive or process.is_frozen:
            if process.is_alive:
                self.later(_FROZEN_S, self._found, process)
        elif process.leader is None:
            self._holder_of(process).find(2.0)
        else:
            super()._found(process)

    def perform_leader(self, process: Process, command: v.LeaderCommand) -> None:
        """Do what a leader wants."""
        if isinstance(command, v.WriteRecord):
            self._holder_of(process).write(command)
        else:
            super().perform_leader(process, command)

    def end_leader(self, process: Process) -> None:
        """Let a process lead no more, and give the key back."""
        was_one = process.leader is not None
        super().end_leader(process)
        if was_one:
            self._holder_of(process).resign()

    def go(self, process: Process) -> None:
        """End an agent that is not needed; its key goes back."""
        was_alive = process.is_alive
        super().go(process)
        if was_alive:
            self._holder_of(process).resign()
