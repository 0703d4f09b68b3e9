"""A played world in which somebody outside says who decides: an etcd in memory (`quorum=granted`).

What talks to it is the launcher's own `GrantedRegistry`, one for each process; played are its loop,
the calls that the store service would make, and etcd itself: one key bound to a lease, one record,
one end bound to another, and a counter of revisions. Like a node, it can be cut off: its name on
links is "etcd".
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from elastic_simulation.process import Process
from elastic_simulation.world import World
from pytest_elastic.backends.granted_registry import GrantedRegistry, Where
from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.heritage import Heritage
from pytest_elastic.rendezvous.mandate import Mandate
from pytest_elastic.rendezvous.mark import Mark
from pytest_elastic.rendezvous.member import MemberMachine
from pytest_elastic.rendezvous.messages import Place
from pytest_elastic.rendezvous.model import Node

if TYPE_CHECKING:
    from pytest_elastic.loop import Loop

__all__ = ["ETCD", "Etcd", "EtcdTimer", "GrantedWorld"]

ETCD = "etcd"
# A loop that stands still looks again so often, in the world's time.
_FROZEN_S = 0.1


@dataclass(slots=True, kw_only=True)
class _Key:
    """The key that names the coordinator, while its lease lasts."""

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
    """What etcd holds, and the five calls of `workers.etcd_client` (which see)."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.key: _Key | None = None
        self._record = ""
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
                    self._record = str(arguments["record"])
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
        self._ending, self._record = ending, ""
        self.ended_at = self._world.time
        self._ending_until = self.ended_at + ttl_s

    def _is_held(self, arguments: Mapping[str, Any]) -> bool:
        return self.key is not None and self.key.created == arguments["create_revision"]

    def campaign(self, value: str, ttl_s: float) -> Mapping[str, Any]:
        """Name whoever asks, if nobody else is."""
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
            "record": self._record,
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
    """What one agent's registry stands in: its loop, its calls, and the machines beside it."""

    def __init__(self, world: GrantedWorld, process: Process) -> None:
        self._world = world
        self._process = process
        self.registry = GrantedRegistry(
            cast("Loop", self),
            settings=process.member.settings,
            where=Where(kind=ETCD, arguments={}, name="an etcd in memory"),
            calls=self,
        )
        self.registry.open(self)

    # --- its loop ----------------------------------------------------------------------------

    def now(self) -> float:
        return self._process.now()

    def call_at(self, when: float, callback: Callable[[], None]) -> EtcdTimer:
        timer = EtcdTimer(callback)
        self._soon(self._process.until(when), timer.ring)
        return timer

    def _soon(self, delay_s: float, act: Callable[[], None]) -> None:
        self._world.later(delay_s, self._do, act)

    def _do(self, act: Callable[[], None]) -> None:
        if not self._process.is_alive:
            return
        if self._process.is_frozen:
            self._soon(_FROZEN_S, act)
        else:
            act()

    # --- its calls ---------------------------------------------------------------------------

    def ask_registry(
        self,
        kind: str,
        call: str,
        arguments: Mapping[str, Any],
        *,
        timeout_s: float,
        on_done: Callable[[Any, str], None],
    ) -> None:
        """Ask etcd; what does not come in time is an error, though it may have been done."""
        del kind
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
            # Each call is a connection of its own: both ways have to be open for it.
            if not world.is_endpoint_down and not is_cut():
                answer = world.etcd.ask(call, arguments)
                self._soon(world.draw_latency_s(), lambda: come(answer))

        def come(answer: object) -> None:
            if not is_cut():
                tell(answer, "")

        world.later(world.draw_latency_s(), arrive)
        self._soon(timeout_s, lambda: tell(None, "etcd does not answer"))

    # --- its machines ------------------------------------------------------------------------

    @property
    def member(self) -> MemberMachine:
        member: MemberMachine = self._process.member
        return member

    @property
    def node(self) -> Node:
        return self._process.node

    def look_at_place(self, then: Callable[[], None]) -> None:
        """Go on: a simulated node is where it is."""
        then()

    @property
    def has_acknowledged(self) -> bool:
        return self._process.agent.belongs

    def tell_member(self, given: v.MemberInput) -> None:
        if not isinstance(given, v.Start):  # the world says that
            self._process.feed("member", given)

    def tell_coordinator(self, given: v.CoordinatorInput) -> None:
        self._process.feed("coordinator", given)

    def coordinate(
        self,
        term: int,
        reason: str,
        *,
        heritage: Heritage | None = None,
        mandate: Mandate | None = None,
        mark: Mark | None = None,
    ) -> None:
        process = self._process
        self._world.end_coordinator(process)
        self._world.host = process
        process.coordinate(term, reason, mandate=mandate, heritage=heritage, mark=mark)
        process.set_alarm("coordinator")
        if process.agent.over is not None:
            process.feed("coordinator", v.HandOver(reason="has left"))

    def hear_of(self, place: Place, *, otherwise: Callable[[], None]) -> None:
        """Never asked: nobody announces himself where an etcd says who decides."""
        raise AssertionError(f"{place.name} was announced, and {otherwise} would follow")

    def perform(self, command: v.CoordinatorCommand) -> None:
        World.perform_coordinator(self._world, self._process, command)  # the registry allows it

    def notify(self, notice: ports.Notice) -> None:
        self._process.agent.notice(notice)


class GrantedWorld(World):
    """A world without an endpoint; `host` is whoever was named last, or else the first node."""

    def __init__(self, *arguments: Any, **named: Any) -> None:  # noqa: ANN401 (those of World)
        super().__init__(*arguments, **named)
        self.etcd = Etcd(self)
        self._agents: dict[str, _Agent] = {}  # by incarnation

    @property
    def end_written_at(self) -> float | None:
        """When the end was written that stands in etcd now."""
        return self.etcd.ended_at if self.etcd.ending_at(self.time) else None

    def start_coordinator(self, process: Process) -> None:
        """Name nobody yet: whoever asks etcd first is named."""
        self.host = process

    def _serves_again(self, process: Process) -> bool:
        del process
        return False

    def _registry_of(self, process: Process) -> GrantedRegistry:
        agent = self._agents.get(process.node.incarnation)
        if agent is None:
            agent = self._agents[process.node.incarnation] = _Agent(self, process)
        return agent.registry

    def _found(self, process: Process) -> None:
        if not process.is_alive or process.is_frozen:
            if process.is_alive:
                self.later(_FROZEN_S, self._found, process)
        elif process.coordinator is None:
            self._registry_of(process).find(2.0)
        else:
            node = process.node
            process.feed(
                "member",
                v.CoordinatorFound(
                    address=node.address,
                    port=node.port,
                    term=process.coordinator.term,
                    is_here=True,
                    incarnation=node.incarnation,
                ),
            )

    def at_port_of(self, dial: v.Dial) -> Process:
        return next(p for p in reversed(self.every_process) if p.node.address == dial.address)

    def perform_coordinator(self, process: Process, command: v.CoordinatorCommand) -> None:
        """Let the registry hold back what has to be written down first."""
        self._registry_of(process).pass_on(command)

    def end_coordinator(self, process: Process) -> None:
        """Let a process decide nothing any more, and give the key back."""
        was_one = process.coordinator is not None
        super().end_coordinator(process)
        if was_one:
            self._registry_of(process).end()

    def go(self, process: Process) -> None:
        """End an agent that nobody needs; the key goes back with it."""
        was_alive = process.is_alive
        super().go(process)
        if was_alive:
            is_over = process.finished is not None
            self._registry_of(process).close(is_over=is_over, on_closed=lambda: None)
