"""Tells a person what this node waits for, if it takes long: the loop's part of `waiting`."""

from __future__ import annotations

from collections.abc import Callable

from pytest_elastic.events.model import StillWaiting
from pytest_elastic.loop import Loop, Timer
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.coordinator import CoordinatorMachine
from pytest_elastic.rendezvous.coordinator_phases import Phase
from pytest_elastic.rendezvous.member import MemberMachine
from pytest_elastic.rendezvous.member_phases import Link, Part
from pytest_elastic.rendezvous.messages import SpareNotice
from pytest_elastic.rendezvous.model import Settings
from pytest_elastic.rendezvous.ordering import natural_key
from pytest_elastic.rendezvous.waiting import Awaited, Waiting

__all__ = ["WaitTeller"]


class WaitTeller:
    """Looks at one node's machines after each of their steps; `where`: what is the endpoint."""

    def __init__(
        self, loop: Loop, settings: Settings, where: str, on_event: Callable[[StillWaiting], None]
    ) -> None:
        self._loop = loop
        self._settings = settings
        self._where = where
        self._on_event = on_event
        self._waiting = Waiting()
        self._timer: Timer | None = None
        self._timer_at: float | None = None
        self._dialled = ""
        self._knows_its_part = False
        self._coordinator: CoordinatorMachine | None = None

    def hear(self, given: v.MemberInput) -> None:
        """Take note of what the member is told: why a try came to nothing."""
        match given:
            case v.CoordinatorNotFound(reason=reason):
                self._waiting.hear(reason)
            case v.DialFailed(reason=reason) | v.ConnectionLost(reason=reason):
                self._waiting.hear(f"the coordinator, {self._dialled}: {reason}")
            case v.MessageReceived(message=SpareNotice()):
                self._knows_its_part = True
            case _:
                pass

    def dialling(self, dial: v.Dial) -> None:
        """Take note of who is dialled."""
        self._dialled = f"{dial.address}:{dial.port}"

    def look(self, member: MemberMachine, coordinator: CoordinatorMachine | None) -> None:
        """Look what is waited for now."""
        self._coordinator = coordinator
        self._waiting.wait_for(self._awaited(member, coordinator), self._loop.now())
        self._set_timer()

    def stop(self) -> None:
        """Tell nothing any more."""
        self._waiting.wait_for(None, self._loop.now())
        self._set_timer()

    def _awaited(
        self, member: MemberMachine, coordinator: CoordinatorMachine | None
    ) -> Awaited | None:
        self._knows_its_part |= member.part is not Part.NONE
        if member.link in {Link.UNSTARTED, Link.OVER}:
            return None
        if coordinator is not None:
            if coordinator.phase is not Phase.GATHERING:
                return None
            if len(coordinator.ready) < self._settings.min_nodes:
                return Awaited.NODES
            has_room = len(coordinator.ready) < self._settings.max_nodes
            return Awaited.LAST_CALL if has_room and not self._knows_its_part else None
        if self._knows_its_part:
            return None
        return Awaited.ROUND if member.link is Link.JOINED else Awaited.JOB

    def _set_timer(self) -> None:
        wake_at = self._waiting.wake_at()
        if wake_at == self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = wake_at
        self._timer = None if wake_at is None else self._loop.call_at(wake_at, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = self._timer_at = None
        now, waiting, wanted = self._loop.now(), self._waiting, self._settings
        awaited = waiting.awaited
        if awaited is not None and waiting.is_to_be_told(now):
            is_last_call = awaited is Awaited.LAST_CALL
            ready = () if self._coordinator is None else self._coordinator.ready.values()
            self._on_event(
                StillWaiting(
                    awaited=awaited.value,
                    where=self._where,
                    waited_s=round(waiting.waited_s(now), 3),
                    limit_s=wanted.last_call_s if is_last_call else wanted.join_timeout_s,
                    min_nodes=wanted.min_nodes,
                    max_nodes=wanted.max_nodes,
                    reason=waiting.reason,
                    ready=tuple(sorted((peer.node.name for peer in ready), key=natural_key)),
                )
            )
        self._set_timer()
