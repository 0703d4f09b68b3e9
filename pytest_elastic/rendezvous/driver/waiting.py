"""What a node waits for, and when a person is to hear of it: seldom, and never in a usual start.

A wait is told of when it has taken two seconds, and at growing distances from then on; and sooner
when another reason for it is found: what stands at the endpoint says more than that nothing did.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping

from pytest_elastic.events.model import StillWaiting
from pytest_elastic.loop import Loop, Timer
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.follower.connection import ConnectionPhase
from pytest_elastic.rendezvous.follower.follower import Follower
from pytest_elastic.rendezvous.follower.worker_group import GroupPhase
from pytest_elastic.rendezvous.leader.leader import Leader
from pytest_elastic.rendezvous.leader.state import LeaderPhase, Peer
from pytest_elastic.rendezvous.messages import Standby
from pytest_elastic.rendezvous.model import natural_key
from pytest_elastic.rendezvous.settings import Settings

__all__ = ["Awaited", "WaitTeller", "Waiting"]

# The endpoint has answered, and has named that port.
_OF_SILENCE = (
    "; does a firewall let that port through, which its system has chosen? "
    "--rdzv-conf port_range=30000-30100 keeps launchers to such ports"
)

# Nodes that are started together wait for less; a person who sees nothing for longer wonders.
_FIRST_S = 2.0
# When it is said again: four lines in the ten minutes that a join may take by default.
_AGAIN_S = (30.0, 120.0, 300.0)
_THEN_EVERY_S = 600.0
# So many reasons of one wait are told as they come. One that keeps changing would fill a console.
_MAX_REASONS = 4


class Awaited(enum.Enum):
    """What a node may wait for."""

    JOB = "job"
    """A leader that accepts this node."""
    NODES = "nodes"
    """More nodes, as it decides and has too few."""
    LAST_CALL = "last call"
    """More nodes for the first round, as it decides and has enough, and more may come."""
    ROUND = "round"
    """A first round: a leader has accepted this node."""


class Waiting:
    """One node's wait, as its driver tells it; `now` is in seconds on the driver's clock."""

    def __init__(self) -> None:
        self.awaited: Awaited | None = None
        self._since = 0.0
        self._again_at = 0.0
        self._said_at = 0.0
        self._is_news = False
        self._reasons: list[str] = []
        self.reason = ""
        """Why the last try came to nothing."""

    def wait_for(self, awaited: Awaited | None, now: float) -> None:
        """Note what is waited for from now on; None: nothing."""
        if awaited is self.awaited:
            return
        self.awaited = awaited
        self._since = self._said_at = now
        self._again_at = now + _FIRST_S
        self._is_news = False
        self._reasons = []
        self.reason = ""

    def hear(self, reason: str) -> None:
        """Note why a try to join came to nothing; the first reasons of a wait are news."""
        if self.awaited is not Awaited.JOB:
            return
        self.reason = reason
        if reason not in self._reasons and len(self._reasons) < _MAX_REASONS:
            self._reasons.append(reason)
            self._is_news = True

    def wake_at(self) -> float | None:
        """Return when to ask `is_to_be_told` next, or None."""
        if self.awaited is None:
            return None
        return self._said_at + _FIRST_S if self._is_news else self._again_at

    def is_to_be_told(self, now: float) -> bool:
        """Tell whether a person is to hear of the wait now; it counts as told then."""
        wake_at = self.wake_at()
        if wake_at is None or now < wake_at:
            return False
        waited_s = now - self._since
        later = (self._since + each_s for each_s in _AGAIN_S if each_s > waited_s)
        if now >= self._again_at:
            self._again_at = next(later, now + _THEN_EVERY_S)
        self._said_at = now
        self._is_news = False
        return True

    def waited_s(self, now: float) -> float:
        """Return for how long it has waited."""
        return now - self._since


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
        self._ready: Mapping[
            str, Peer
        ] = {}  # the nodes that could be in the next round, as far as is known here

    def hear(self, given: object) -> None:
        """Note what the follower is told: why a try came to nothing."""
        match given:
            case v.LeaderNotFound(reason=reason):
                self._waiting.hear(reason)
            case v.DialFailed(reason=reason, outcome=v.Outcome.SILENT):
                self._waiting.hear(f"the leader, {self._dialled}: {reason}{_OF_SILENCE}")
            case v.DialFailed(reason=reason) | v.ConnectionLost(reason=reason):
                self._waiting.hear(f"the leader, {self._dialled}: {reason}")
            case v.MessageReceived(message=Standby()):
                self._knows_its_part = True
            case _:
                pass

    def dialling(self, dial: v.Dial) -> None:
        """Note the address that is dialled."""
        self._dialled = f"{dial.address}:{dial.port}"

    def look_at(self, follower: Follower, leader: Leader | None) -> None:
        """Look what is waited for now."""
        self._knows_its_part |= follower.group is not GroupPhase.NONE
        self._wait_for(self._awaited(follower, leader), {} if leader is None else leader.ready)

    def _wait_for(self, awaited: Awaited | None, ready: Mapping[str, Peer]) -> None:
        self._ready = ready
        self._waiting.wait_for(awaited, self._loop.now())
        self._set_timer()

    def stop(self) -> None:
        """Tell nothing any more."""
        self._waiting.wait_for(None, self._loop.now())
        self._set_timer()

    def _awaited(self, follower: Follower, leader: Leader | None) -> Awaited | None:
        if follower.connection in {ConnectionPhase.UNSTARTED, ConnectionPhase.OVER}:
            return None
        if leader is not None:
            if leader.phase is not LeaderPhase.GATHERING:
                return None
            if len(leader.ready) < self._settings.min_nodes:
                return Awaited.NODES
            has_room = len(leader.ready) < self._settings.max_nodes
            return Awaited.LAST_CALL if has_room and not self._knows_its_part else None
        if self._knows_its_part:
            return None
        is_joined = follower.connection is ConnectionPhase.JOINED
        return Awaited.ROUND if is_joined else Awaited.JOB

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
            self._on_event(
                StillWaiting(
                    awaited=awaited.value,
                    where=self._where,
                    waited_s=round(waiting.waited_s(now), 3),
                    limit_s=wanted.last_call_s if is_last_call else wanted.join_timeout_s,
                    min_nodes=wanted.min_nodes,
                    max_nodes=wanted.max_nodes,
                    reason=waiting.reason,
                    ready=tuple(
                        sorted((peer.node.name for peer in self._ready.values()), key=natural_key)
                    ),
                )
            )
        self._set_timer()
