"""The registry that names one coordinator at a time: nobody hosts anything, no node has to stay.

A key that stands for a lease, in etcd or in a file, names the coordinator. Whoever looks for it and
finds none takes it; the coordinator's term is a number that rises with each (in etcd, the revision
at which the key was created). The key is its mandate: one that cannot renew it grants nothing
beyond it and steps down before it is over, and members fence by the leases that they have of the
coordinator. Each round is written down, under the condition that the key is still ours, before any
member hears that it is committed; whoever follows goes on with that. So is the end of the job,
before any member hears of it; it stands for as long as members of that job may come and look who
decides, and they are told, whoever holds the key by then.

Nothing is watched. Members look when they have lost their coordinator, the coordinator four times
in each lease; so an etcd that is slow, restarted or compacted is noticed by asking it.
"""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pytest_elastic.backends.written_round import (
    WrittenRound,
    end_as_text,
    read_end,
    read_round,
)
from pytest_elastic.credentials import Credentials
from pytest_elastic.loop import Loop, Timer
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.announcer import as_text, found_at, place_of, read_place
from pytest_elastic.rendezvous.heritage import Heritage
from pytest_elastic.rendezvous.mandate import GrantedMandate
from pytest_elastic.rendezvous.messages import Beat, Commit, JobEnding, Place, Seal
from pytest_elastic.rendezvous.model import RosterEntry, Settings
from pytest_elastic.rendezvous.records import why_unread
from pytest_elastic.rendezvous.registry import NodeSide

__all__ = ["GrantedRegistry", "RegistryCalls", "Where"]

# How soon a renewal that failed is tried again: a connection that is refused is so at once.
_RETRY_S = 0.5
# How long the end waits for the key to be given back; it runs out by itself otherwise.
_RESIGN_S = 1.0
# A member gives up four seconds after its last hope.
_MARGIN_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Where the key is: which `kind` of calls, what they need to get there, and how to say it."""

    kind: str
    arguments: Mapping[str, Any]
    name: str


class RegistryCalls(Protocol):
    """Calls of `workers.etcd_client` and `workers.registry_file`, made where they may block."""

    def ask_registry(
        self,
        kind: str,
        call: str,
        arguments: Mapping[str, Any],
        *,
        timeout_s: float,
        on_done: Callable[[Any, str], None],
    ) -> None:
        """Call back with (value, error) within the time given."""


class GrantedRegistry:
    """One node's view of the key (see `registry.Registry`); needs `quorum=granted`."""

    def __init__(
        self,
        loop: Loop,
        *,
        settings: Settings,
        where: Where,
        calls: RegistryCalls,
        credentials: Credentials | None = None,
    ) -> None:
        assert settings.is_granted, "members have to know that another coordinator may be named"
        self._loop = loop
        self._settings = settings
        self._where = where
        self._calls = calls
        self._credentials = credentials
        # How long the key stands; etcd counts leases in whole seconds.
        self._ttl_s = max(math.ceil(settings.lease_s + settings.drift_s), 2)
        self._side: NodeSide
        self._office: dict[str, Any] | None = None  # key and lease, while they are ours
        self._renewal: Timer | None = None
        self._highest_term = 0
        self._found_term = 0  # of whom the member was told last
        self._seen: object = None  # what a file showed at the last look, for the next one
        self._seal: Seal | None = None  # the one that may be committed next
        self._recorded_round = 0
        self._is_concluded = False
        self._held_back: deque[v.SendTo] = deque()

    def open(self, side: NodeSide) -> None:
        """Join: whoever looks for the coordinator first finds that it is itself."""
        self._side = side
        side.tell_member(v.Start())

    # --- who decides ---------------------------------------------------------------------------

    def _ask(
        self,
        call: str,
        arguments: Mapping[str, Any],
        *,
        timeout_s: float,
        on_done: Callable[[Any, str], None],
    ) -> None:
        self._calls.ask_registry(
            self._where.kind,
            call,
            {**self._where.arguments, **arguments},
            timeout_s=timeout_s,
            on_done=on_done,
        )

    @property
    def _end_ttl_s(self) -> int:
        """How long the end stands: until a member that is cut off since has given up (R10).

        It does a join timeout after its lease, by its own clock, which may lose `drift_s` in one.
        """
        wanted = self._settings
        patience_s = wanted.lease_s + wanted.join_timeout_s
        return math.ceil(patience_s * (1 + wanted.drift_s / wanted.lease_s) + _MARGIN_S)

    def find(self, within_s: float) -> None:
        """Look who decides, or be the one if nobody does."""
        self._side.look_at_place(lambda: self._campaign(within_s))

    def _campaign(self, within_s: float) -> None:
        asked_at = self._loop.now()
        # Its term is at least this, should the data be lost, and numbers begin at 1 again.
        place = place_of(self._side.node, self._highest_term + 1)
        value = as_text(place, self._settings.run_id, self._credentials)
        self._ask(
            "campaign",
            {"value": value, "ttl_s": self._ttl_s, "seen": self._seen},
            timeout_s=within_s,
            on_done=lambda found, error: self._on_campaigned(found, error, asked_at),
        )

    def announce(self, place: Place, members: Sequence[RosterEntry]) -> None:
        """Never asked: nobody is elected where somebody outside names the coordinator."""
        raise AssertionError(f"{place.name} was elected, and the settings know no election")

    def _on_campaigned(self, found: Any, error: str, asked_at: float) -> None:  # noqa: ANN401 (JSON)
        run_id = self._settings.run_id
        if not error:
            self._seen = found.get("seen")
        ending = None if error else read_end(found["ending"], run_id, self._credentials)
        if ending is not None and 0 < self._found_term <= ending.term:
            self._end_as_written(ending, found)
            return
        place = None if error else read_place(found["value"], run_id, self._credentials)
        if place is None:
            where = f"in {self._where.name}"
            reason = error or why_unread(found["value"], where, self._credentials)
            self._side.tell_member(v.CoordinatorNotFound(reason=reason))
            return
        term = max(int(found["create_revision"]), place.term)
        self._highest_term = max(self._highest_term, term)
        if found["is_won"]:
            until = asked_at + int(found["ttl_s"]) - self._settings.drift_s
            if until <= self._loop.now():
                reason = f"{self._where.name} took longer than its lease"
                self._side.tell_member(v.CoordinatorNotFound(reason=reason))
                return
            self._take_office(term, found, until)
        elif place.incarnation == self._side.node.incarnation:
            self._side.tell_member(v.CoordinatorNotFound(reason="our own lease runs out"))
            return
        self._found_term = term
        if term != place.term:
            place = dataclasses.replace(place, term=term)
        self._side.tell_member(found_at(place, is_here=False))

    def _end_as_written(self, ending: JobEnding, found: Mapping[str, Any]) -> None:
        """Have the member end as its job did; if the key is ours now, it is for another job."""
        self._office = _office_of(found) if found["is_won"] else None
        self._leave_office(on_done=lambda: self._side.tell_member(v.EndHeard(ending=ending)))

    def _take_office(self, term: int, found: Mapping[str, Any], until: float) -> None:
        self._held_back.clear()
        self._is_concluded = False
        self._office = _office_of(found)
        written = read_round(found["record"], self._settings.run_id, self._credentials)
        heritage = None if written is None else self._heritage(term, written)
        self._recorded_round = heritage.seal.round if heritage is not None else 0
        after = f" after {heritage.lost}" if heritage is not None else ""
        if found["record"] and written is None:
            signed = "" if self._credentials is None else ", signed with this job's token"
            after = f", and the round written down there is no record of ours{signed}: not used"
        self._side.coordinate(
            term,
            f"{self._where.name} names this node{after}",
            heritage=heritage,
            mandate=GrantedMandate(until),
        )
        self._side.tell_coordinator(v.TimePassed())
        self._renew_at(self._loop.now() + self._ttl_s / 4)

    def _heritage(self, term: int, written: WrittenRound) -> Heritage:
        """Return what the last coordinator had written down, as what we begin with."""
        seal = written.seal
        return Heritage(
            term=term,
            seal=seal,
            commit=written.commit,
            electorates=(),
            # Nobody grants without the key, which is ours now.
            contact_at=self._loop.now(),
            lost=written.coordinator,
            newest_round=seal.round,
            restarts_used=seal.restart_count,
        )

    # --- for how long --------------------------------------------------------------------------

    def _renew_at(self, when: float) -> None:
        if self._renewal is not None:
            self._renewal.cancel()
        self._renewal = self._loop.call_at(when, self._renew)

    def _renew(self) -> None:
        office, asked_at = self._office, self._loop.now()
        if office is None:
            return

        def on_done(ttl_s: Any, error: str) -> None:  # noqa: ANN401 (JSON)
            if self._office is not office:
                return
            if error:
                self._renew_at(self._loop.now() + _RETRY_S)
                return
            # Without a lease any more, there is no mandate from this moment on.
            until = asked_at + int(ttl_s) - self._settings.drift_s if ttl_s else asked_at
            self._side.tell_coordinator(v.MandateExtended(until=until))
            self._renew_at(asked_at + self._ttl_s / 4)

        self._ask("renew", office, timeout_s=self._ttl_s / 4, on_done=on_done)

    def end(self) -> None:
        """Give the key back, so that another can be named at once."""
        self._leave_office(on_done=lambda: None)

    def _leave_office(self, *, on_done: Callable[[], None]) -> None:
        office, self._office = self._office, None
        self._held_back.clear()
        if self._renewal is not None:
            self._renewal.cancel()
        if office is None:
            on_done()
            return
        self._ask(
            "resign",
            office,
            timeout_s=_RESIGN_S,
            on_done=lambda _value, _error: on_done(),
        )

    def close(self, *, is_over: bool, on_closed: Callable[[], None]) -> None:
        """Give the key back, so that nobody waits for its lease."""
        del is_over  # that was written down
        self._leave_office(on_done=on_closed)

    # --- what stands ---------------------------------------------------------------------------

    def remember(self) -> None:
        """Keep nothing: what stands in the registry is enough."""

    def pass_on(self, command: v.CoordinatorCommand) -> None:
        """Hold a commit back, and the end, with what follows, until that is written down."""
        match command:
            case v.SendTo(message=Beat()):  # most often
                pass
            case v.SendTo():
                self._held_back.append(command)
                if len(self._held_back) == 1:
                    self._send_held_back()
                return
            case _:
                pass
        self._side.perform(command)

    def _send_held_back(self) -> None:
        """Send what waits, up to what is to be written down first.

        What follows from a command while it is performed waits behind the others.
        """
        office = self._office
        while self._held_back and self._office is office:
            command = self._held_back[0]
            match command.message:
                case Seal() as seal:
                    self._seal = seal
                case Commit() as commit if commit.round > self._recorded_round:
                    self._record(commit)
                    return
                case JobEnding() as ending if not self._is_concluded:
                    self._conclude(ending)
                    return
                case _:
                    pass
            self._side.perform(command)
            if self._held_back and self._held_back[0] is command:  # else it was given up
                self._held_back.popleft()

    def _record(self, commit: Commit) -> None:
        seal = self._seal
        if seal is None or seal.round != commit.round:
            return  # stepping down: nobody is to hear of it
        written = WrittenRound(coordinator=self._side.node.name, seal=seal, commit=commit)
        record = written.as_text(self._settings.run_id, self._credentials)

        def on_written() -> None:
            self._recorded_round = commit.round

        self._write("record", {"record": record}, on_written)

    def _conclude(self, ending: JobEnding) -> None:
        text = end_as_text(ending, self._settings.run_id, self._credentials)

        def on_written() -> None:
            self._is_concluded = True

        self._write("conclude", {"ending": text, "end_ttl_s": self._end_ttl_s}, on_written)

    def _write(self, call: str, what: Mapping[str, object], on_written: Callable[[], None]) -> None:
        """Write something down while the key is ours, and then do what was held back for it."""
        office = self._office
        if office is None:
            return  # stepping down: nobody is to hear of it

        def write() -> None:
            if self._office is office:
                self._ask(call, {**office, **what}, timeout_s=self._ttl_s / 4, on_done=on_done)

        def on_done(is_written: Any, error: str) -> None:  # noqa: ANN401 (JSON)
            if self._office is not office:
                return
            if error:
                self._loop.call_at(self._loop.now() + _RETRY_S, write)
            elif is_written:
                on_written()
                self._send_held_back()
            else:
                self._side.tell_coordinator(v.MandateExtended(until=self._loop.now()))

        write()


def _office_of(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return what shows that the key is ours, out of the answer that it was won."""
    return {name: found[name] for name in ("value", "lease", "create_revision")}
