"""A played world of the Raft-shaped core in which an etcd in memory names the leader."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from elastic_simulation.granted import ETCD, Etcd, EtcdTimer
from elastic_simulation.process import Process
from elastic_simulation.raft_world import RaftWorld
from elastic_simulation.world import World
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.core import vocabulary as cv
from pytest_elastic.rendezvous.core.key_holder import KeyHolder
from pytest_elastic.rendezvous.model import Node

__all__ = ["RaftGrantedWorld"]

# A loop that stands still looks again so often, in the world's time.
_FROZEN_S = 0.1


class _Agent:
    """What one agent's key holder stands in: its loop, its calls, the machines beside it."""

    def __init__(self, world: RaftGrantedWorld, process: Process) -> None:
        self._world = world
        self._process = process
        self.holder = KeyHolder(self, self, process.member.settings)

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

    def tell_follower(self, given: Any) -> None:  # noqa: ANN401 (of another core)
        self._process.feed("member", given)

    def tell_leader(self, given: Any) -> None:  # noqa: ANN401
        self._process.feed("coordinator", given)

    def lead(self, recovered: cv.Recovered) -> None:
        self._world.host = self._process
        self._world.begin_to_lead(self._process, recovered)


class RaftGrantedWorld(RaftWorld):
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

    def _holder_of(self, process: Process) -> KeyHolder:
        agent = self._agents.get(process.node.incarnation)
        if agent is None:
            agent = self._agents[process.node.incarnation] = _Agent(self, process)
        return agent.holder

    def begin_to_lead(self, process: Process, recovered: cv.Recovered) -> None:
        """Let a process lead that etcd has named."""
        self.inquiries.perform(process, cv.Lead(recovered=recovered))  # type: ignore[arg-type]

    def _found(self, process: Process) -> None:
        if not process.is_alive or process.is_frozen:
            if process.is_alive:
                self.later(_FROZEN_S, self._found, process)
        elif process.coordinator is None:
            self._holder_of(process).find(2.0)
        else:
            super()._found(process)

    def at_port_of(self, dial: v.Dial) -> Process:
        return next(p for p in reversed(self.every_process) if p.node.address == dial.address)

    def perform_coordinator(self, process: Process, command: Any) -> None:  # noqa: ANN401
        """Do what a leader wants."""
        if isinstance(command, cv.WriteRecord):
            self._holder_of(process).write(command)
        else:
            super().perform_coordinator(process, command)

    def end_coordinator(self, process: Process) -> None:
        """Let a process lead no more, and give the key back."""
        was_one = process.coordinator is not None
        super().end_coordinator(process)
        if was_one:
            self._holder_of(process).resign()

    def go(self, process: Process) -> None:
        """End an agent that nobody needs; the key goes back with it."""
        was_alive = process.is_alive
        World.go(self, process)
        if was_alive:
            self._holder_of(process).resign()
