"""An external key (etcd, a file) as the only voter: its holder leads, its value is decided.

Nothing is watched: a watch that has died looks like a key that does not change. See `backends.md`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from msgspec.structs import replace

from pytest_elastic.credentials import Credentials
from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.consensus.records import Record, Term, founding_record
from pytest_elastic.rendezvous.consensus.replication import Recovered
from pytest_elastic.rendezvous.registries.registry import (
    MachinesSide,
    as_text,
    read_text,
    why_unread,
)
from pytest_elastic.rendezvous.settings import Settings

__all__ = ["KeyHolder", "KeyLoop"]

T = TypeVar("T")

_RETRY_S = 0.2
_RESIGN_S = 2.0
# Until a member that is cut off has given up, and has asked once more.
_MARGIN_S = 5.0


class KeyLoop(Protocol):
    """The part of a loop, and of the store service, that is needed here."""

    def now(self) -> float:
        """Return the time."""

    def call_at(self, when: float, callback: Callable[[], None]) -> Any:  # noqa: ANN401 (a timer)
        """Call back then."""

    def ask(
        self,
        call: str,
        arguments: Mapping[str, Any],
        *,
        timeout_s: float,
        on_done: Callable[[Any, str], None],
    ) -> None:
        """Make a call of `workers.store.etcd_client`; call back with (value, error)."""


class KeyHolder:
    """One node's view of the key; `name` is what the place is called in which the key is."""

    def __init__(
        self,
        loop: KeyLoop,
        side: MachinesSide,
        settings: Settings,
        *,
        name: str = "the key",
        credentials: Credentials | None = None,
    ) -> None:
        assert settings.is_granted, "members have to know that another leader may be named"
        self._loop = loop
        self._side = side
        self._settings = settings
        self._name = name
        self._credentials = credentials
        self._seen: object = None  # what a file showed at the last look, for the next one
        self._ttl_s = max(math.ceil(settings.lease_s + settings.drift_s), 2)
        self._key: dict[str, Any] | None = None  # while it is ours
        self._newest_write: v.WriteRecord | None = None
        self._highest = 0
        self._found = 0  # the counter of the leader that the follower was told of last
        self._is_finding = False

    def find(self, within_s: float) -> None:
        """Find the leader, or become it if there is none.

        One look at a time: another would win the key anew from the leader that the first has begun.
        """
        if self._is_finding:
            return  # and the follower is told what comes of that
        self._is_finding = True
        asked_at = self._loop.now()
        # Its term is at least this, should the data be lost, and revisions begin at 1 again.
        node = self._side.node
        own = m.LeaderAddress.of(node, Term(self._highest + 1, node.incarnation))
        self._loop.ask(
            "campaign",
            {"value": self._as_text(own), "ttl_s": self._ttl_s, "seen": self._seen},
            timeout_s=within_s,
            on_done=lambda found, error: self._on_found(found, error, asked_at),
        )

    def _as_text(self, value: object) -> str:
        return as_text(value, self._settings.run_id, self._credentials)

    def _read(self, cls: type[T], text: str) -> T | None:
        return read_text(cls, text, self._settings.run_id, self._credentials)

    def _on_found(self, found: Any, error: str, asked_at: float) -> None:  # noqa: ANN401 (JSON)
        self._is_finding = False
        if not error:
            self._seen = found.get("seen")
        ended = None if error else self._read(v.WriteRecord, found["ending"])
        leader = None if error else self._read(m.LeaderAddress, found["value"])
        if leader is None:
            reason = error or why_unread(found["value"], f"in {self._name}", self._credentials)
            self._side.tell_follower(v.LeaderNotFound(reason=reason))
            return
        if ended is not None and 0 < self._found <= ended.record.term.counter:
            # It ends as its job did; if the key is ours now, it is for another job.
            record = ended.record
            self._key = _key_of(found) if found["is_won"] else None
            self.resign(lambda: self._side.tell_follower(v.EndHeard(record=record)))
            return
        counter = max(int(found["create_revision"]), leader.term.counter)
        self._highest = max(self._highest, counter)
        if found["is_won"]:
            until = asked_at + int(found["ttl_s"]) - self._settings.drift_s
            if until <= self._loop.now():
                reason = f"{self._name} took longer than its lease"
                self._side.tell_follower(v.LeaderNotFound(reason=reason))
                return
            self._take(counter, found, until)
        elif leader.incarnation == self._side.node.incarnation:
            self._side.tell_follower(v.LeaderNotFound(reason="our own lease runs out"))
            return
        self._found = counter
        leader = replace(leader, term=Term(counter, leader.incarnation))
        self._side.tell_follower(v.LeaderFound(leader=leader))

    def _take(self, counter: int, found: Mapping[str, Any], until: float) -> None:
        key = self._key = _key_of(found)
        node = self._side.node
        written = self._read(v.WriteRecord, found["record"])
        record = founding_record((node,)) if written is None else written.record
        reason, lost = f"{self._name} names this node", "the leader"
        if written is not None:
            lost = _leader_of(written.record)
            reason += f" after {lost}"
        elif found["record"]:
            signed = "" if self._credentials is None else ", signed with this job's token"
            reason += f", and the round written down there is no record of ours{signed}: not used"
        known = self._side.known_job
        if known is not None and known.base.rank > record.rank:
            # All that is decided was written down: the data was lost, or somebody put it back.
            record, written, lost = known.base, None, _leader_of(known.base)
            reason += f", and knows more than is written down there: round {record.round}"
        recovered = Recovered(
            term=Term(counter, node.incarnation),
            base=record,
            record=record,
            started=None if written is None else written.decided,
            contact_at=self._loop.now(),  # no other leader can grant a lease any more
            lost=lost,
            number=record.round,
            restarts_used=record.restart_count,
            granted_until=until,
        )
        self._side.lead(recovered, reason)  # which may give the key back at once
        self._loop.call_at(self._loop.now() + self._ttl_s / 4, self._renewer(key))

    def _renewer(self, key: Mapping[str, Any]) -> Callable[[], None]:
        def renew() -> None:
            if self._key is not key:
                return  # it was given back, or taken anew
            asked_at = self._loop.now()

            def on_done(ttl_s: Any, error: str) -> None:  # noqa: ANN401 (JSON)
                if self._key is not key:
                    return
                if error:
                    self._loop.call_at(self._loop.now() + _RETRY_S, renew)
                    return
                until = asked_at + int(ttl_s) - self._settings.drift_s if ttl_s else asked_at
                self._side.tell_leader(v.LeaseExtended(until=until))
                self._loop.call_at(asked_at + self._ttl_s / 4, renew)

            self._loop.ask("renew", key, timeout_s=self._ttl_s / 4, on_done=on_done)

        return renew

    def write(self, written: v.WriteRecord) -> None:
        """Write a record down while the key is ours; its end stands for a while by itself."""
        key, text = self._key, self._as_text(written)
        self._newest_write = written  # one that was given up is not tried again over it
        call, what = "record", {"record": text}
        if written.record.end is not None:
            call, what = "conclude", {"ending": text, "end_ttl_s": self._end_ttl_s}  # type: ignore[dict-item]

        def on_done(is_written: Any, error: str) -> None:  # noqa: ANN401 (JSON)
            if self._key is not key:
                return
            if error:
                self._loop.call_at(self._loop.now() + _RETRY_S, ask)
            elif is_written:
                self._side.tell_leader(v.RecordWritten(number=written.record.number))
            else:
                self._side.tell_leader(v.LeaseExtended(until=self._loop.now()))

        def ask() -> None:
            if key is not None and self._key is key and self._newest_write is written:
                arguments = {**key, **what}
                self._loop.ask(call, arguments, timeout_s=self._ttl_s / 4, on_done=on_done)

        ask()

    @property
    def _end_ttl_s(self) -> int:
        """How long the end stands: until a member that is cut off since has given up (R10)."""
        wanted = self._settings
        patience_s = wanted.lease_s + wanted.join_timeout_s
        return math.ceil(patience_s * (1 + wanted.drift_s / wanted.lease_s) + _MARGIN_S)

    def resign(self, on_done: Callable[[], None] = lambda: None) -> None:
        """Give the key back, so that another can be named at once; then go on."""
        key, self._key = self._key, None
        if key is None:
            on_done()
        else:
            self._loop.ask("resign", key, timeout_s=_RESIGN_S, on_done=lambda *_: on_done())


def _key_of(found: Mapping[str, Any]) -> dict[str, Any]:
    return {name: found[name] for name in ("value", "lease", "create_revision")}


def _leader_of(record: Record) -> str:
    """Return the name of the node that wrote a record down, as far as its roster tells."""
    names = {entry.incarnation: entry.name for entry in record.roster}
    return names.get(record.term.node, "the leader")
