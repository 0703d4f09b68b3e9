"""Leases: how long a node and its leader may rely on each other (R6).

Both sides of a connection send numbered beats; a beat carries back the newest number of the other
side. From that alone, and each side's own clock, follow two one-sided promises:

- The **follower** may let its workers run until `held_until`: the *send time* of its newest beat
  that came back, plus the lease L. It begins to kill `kill_s` earlier, so that all is dead by then.
- The **leader** waits until `granted_until`: the *arrival time* of the newest beat that it
  sent back, plus L. A beat arrives after it was sent, so whatever the clocks say, the follower's
  promise ends first; d (`drift_s`) covers clocks that run at different speeds.

A follower that talks and does not hear would otherwise be granted a lease that it does not know of.
So a lease is mutual: the leader sends no number back while its own beats have gone unanswered
for half a lease (one and a half beats, if that is more), and `granted_until` stands still like that
of a silent follower.
"""

from __future__ import annotations

from collections import deque

from pytest_elastic.rendezvous.settings import Settings

__all__ = ["GrantedLease", "HeldLease", "announced_within_s", "kill_s"]

# Killing 88 processes took 26 ms, a tree that forks while it is killed 90 ms; the rest is for a
# machine that is busy with something else.
_KILL_S = 0.25
# Unanswered beats that are remembered: many more than fit into a lease of sensible proportions.
_MAX_UNANSWERED = 256


def kill_s(settings: Settings) -> float:
    """Return how long before the end of a lease the killing begins: an eighth, at most 0.25 s."""
    return min(_KILL_S, settings.lease_s / 8)


def announced_within_s(settings: Settings) -> float:
    """Return the longest time after which survivors of a lost leader have announced themselves.

    They notice with the end of a lease, elect one of them, and that one looks at the endpoints once
    a beat. It holds where they reach each other and the endpoint, and the first election succeeds.
    """
    election_s = settings.lease_s / 2 + settings.beat_interval_s
    return settings.lease_s + settings.drift_s + election_s + settings.beat_interval_s


class HeldLease:
    """The follower's side: numbers its beats, and knows how long its workers may run.

    The join request is beat 0, sent `now`; nothing is held before its answer.
    """

    def __init__(self, settings: Settings, now: float) -> None:
        self._settings = settings
        self._lease_s = settings.lease_s
        self._kill_s = kill_s(settings)
        self._unanswered: deque[tuple[int, float]] = deque([(0, now)], maxlen=_MAX_UNANSWERED)
        self._newest = 0
        self._held_from = float("-inf")
        self._echoed_from = now  # when the newest beat was sent that has come back
        self.held_until: float | None = None
        """When the lease ends; None: there is none yet."""
        self.fence_at: float | None = None
        """When killing must begin, so that all is dead by `held_until`."""
        self.beat_at = now
        """When the next beat is due."""

    def hold_from(self, moment: float) -> None:
        """Hold a lease that has begun then."""
        self._held_from = moment
        self.held_until = moment + self._lease_s
        self.fence_at = self.held_until - self._kill_s

    def next_beat(self, now: float) -> int:
        """Return the number of a beat that is sent now."""
        self._newest += 1
        self._unanswered.append((self._newest, now))
        self.beat_at = now + self._settings.beat_interval_s
        return self._newest

    def hurry(self, now: float, grant_s: float) -> None:
        """Send the next beat soon, if what is granted is so little that one may come too late.

        It has to be answered before the lease ends: the last one took a round trip.
        """
        beat_s, trip_s = self._settings.beat_interval_s, now - self._echoed_from
        if self.held_until is not None and grant_s < 1.25 * beat_s + trip_s:
            spare_s = (self.held_until - now - 1.5 * trip_s) / 2
            self.beat_at = min(self.beat_at, now + max(min(beat_s / 4, spare_s), beat_s / 16))

    def take_echo(self, echo: int, grant_s: float | None = None) -> bool:
        """Take in the number that came back; tell whether the lease was extended.

        `grant_s`: the leader grants no more than that from the sending on; None: a lease.
        """
        lease_s = self._settings.lease_s
        less_s = 0.0 if grant_s is None else max(lease_s - grant_s, 0.0)
        extended = False
        while self._unanswered and self._unanswered[0][0] <= echo:
            number, sent_at = self._unanswered.popleft()
            if number == echo:
                self._echoed_from = sent_at
                held_from = sent_at - less_s
                if held_from > self._held_from:
                    self.hold_from(held_from)
                    extended = True
        return extended


class GrantedLease:
    """The leader's side: what it granted to one follower, from its join request on."""

    def __init__(self, settings: Settings, now: float) -> None:
        self._settings = settings
        # An answer comes with the next beat: below 1.5 beats, every member would be doubted.
        self._patience_s = max(settings.lease_s / 2, 1.5 * settings.beat_interval_s)
        self._granted = 0
        self._sent = 0
        self._unanswered: deque[tuple[int, float]] = deque(maxlen=_MAX_UNANSWERED)
        self._answered_from = now
        self.heard_from: float | None = None
        """When we sent the newest of our beats that has come back: the member obeyed us then."""
        self._welcomed_at: float | None = None  # and no beat has come since
        self.granted_until = now + settings.lease_s
        """The member's workers are dead by then, unless a newer beat of it is sent back."""

    def welcome(self, now: float, grant_s: float) -> None:
        """Note that the join request is answered, with at most `grant_s` of a lease."""
        self._welcomed_at = now
        self.granted_until = now + min(grant_s, self._settings.lease_s)

    def hear(self, sent_at: float) -> None:
        """Note that the member answered what we sent then."""
        if self.heard_from is None or sent_at > self.heard_from:
            self.heard_from = sent_at

    def take_echo(self, echo: int) -> None:
        """Take in the newest of our beats that the member has heard."""
        if self._welcomed_at is not None:
            self.hear(self._welcomed_at)  # only an accepted member sends heartbeats
            self._welcomed_at = None
        while self._unanswered and self._unanswered[0][0] <= echo:
            self._answered_from = self._unanswered.popleft()[1]
            self.hear(self._answered_from)

    def take_beat(
        self, count: int, echo: int, now: float, grant_s: float = float("inf")
    ) -> tuple[int, int]:
        """Take a beat in; return the number and the echo of the beat to answer with.

        `grant_s` is the most that may be granted, from now on.
        """
        self.take_echo(echo)
        if count > self._granted and not self.is_in_doubt(now):
            self._granted = count
            granted_until = now + min(grant_s, self._settings.lease_s)
            self.granted_until = max(self.granted_until, granted_until)
        self._sent += 1
        self._unanswered.append((self._sent, now))
        return self._sent, self._granted

    def is_in_doubt(self, now: float) -> bool:
        """Tell whether the member may be deaf: our beats have gone unanswered for too long."""
        return bool(self._unanswered) and now - self._answered_from > self._patience_s
