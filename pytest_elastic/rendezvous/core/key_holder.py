"""A key outside (etcd, a file) as the only voter: who holds it leads, what stands there is decided.

Nothing is watched: a watch that has died looks like a key that does not change. See `backends.md`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from pytest_elastic.errors import RendezvousError
from pytest_elastic.plain import as_object
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.core import messages as m
from pytest_elastic.rendezvous.core import vocabulary as cv
from pytest_elastic.rendezvous.core.records import Term, founding_record
from pytest_elastic.rendezvous.model import Node, Settings
from pytest_elastic.rendezvous.wire import read_dataclass

__all__ = ["KeyHolder", "KeyLoop", "KeySide"]

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
        """Make a call of `workers.etcd_client`; call back with (value, error)."""


class KeySide(Protocol):
    """The machines beside it."""

    @property
    def node(self) -> Node:
        """The node."""

    def tell_follower(self, given: cv.FollowerInput) -> None:
        """Hand the follower an input."""

    def tell_leader(self, given: cv.LeaderInput) -> None:
        """Hand the leader an input, if one is here."""

    def lead(self, recovered: cv.Recovered) -> None:
        """Run the leader here."""


class KeyHolder:
    """One node's view of the key."""

    def __init__(self, loop: KeyLoop, side: KeySide, settings: Settings) -> None:
        assert settings.is_granted, "members have to know that another leader may be named"
        self._loop = loop
        self._side = side
        self._settings = settings
        self._ttl_s = max(math.ceil(settings.lease_s + settings.drift_s), 2)
        self._key: dict[str, Any] | None = None  # while it is ours
        self._highest = 0
        self._found = 0  # the counter of whom the follower was told last

    def find(self, within_s: float) -> None:
        """Look who leads, or be the one if nobody does."""
        asked_at = self._loop.now()
        # Its term is at least this, should the data be lost, and revisions begin at 1 again.
        text = _as_text(self._address(self._highest + 1))
        self._loop.ask(
            "campaign",
            {"value": text, "ttl_s": self._ttl_s},
            timeout_s=within_s,
            on_done=lambda found, error: self._on_found(found, error, asked_at),
        )

    def _address(self, counter: int) -> m.LeaderAddress:
        node = self._side.node
        return m.LeaderAddress(
            term=Term(counter, node.incarnation),
            name=node.name,
            incarnation=node.incarnation,
            address=node.address,
            port=node.port,
        )

    def _on_found(self, found: Any, error: str, asked_at: float) -> None:  # noqa: ANN401 (JSON)
        ended = None if error else _read(cv.WriteRecord, found["ending"])
        written = None if error else _read(cv.WriteRecord, found["record"])
        leader = None if error else _read(m.LeaderAddress, found["value"])
        if leader is None:
            reason = error or "what names the leader is none of ours"
            self._side.tell_follower(v.CoordinatorNotFound(reason=reason))
            return
        if ended is not None and 0 < self._found <= ended.record.term.counter:
            # It ends as its job did; if the key is ours now, it is for another job.
            self._key = _key_of(found) if found["is_won"] else None
            self._side.tell_follower(cv.EndHeard(record=ended.record))
            self.resign()
            return
        counter = max(int(found["create_revision"]), leader.term.counter)
        self._highest = max(self._highest, counter)
        if found["is_won"]:
            until = asked_at + int(found["ttl_s"]) - self._settings.drift_s
            if until <= self._loop.now():
                self._side.tell_follower(v.CoordinatorNotFound(reason="it took a lease to answer"))
                return
            self._take(counter, found, written, until)
        elif leader.incarnation == self._side.node.incarnation:
            self._side.tell_follower(v.CoordinatorNotFound(reason="our own lease runs out"))
            return
        self._found = counter
        leader = m.LeaderAddress(**{**_fields(leader), "term": Term(counter, leader.incarnation)})
        self._side.tell_follower(cv.LeaderFound(leader=leader))

    def _take(
        self,
        counter: int,
        found: Mapping[str, Any],
        written: cv.WriteRecord | None,
        until: float,
    ) -> None:
        self._key = _key_of(found)
        node = self._side.node
        record = founding_record((node.as_entry(),)) if written is None else written.record
        recovered = cv.Recovered(
            term=Term(counter, node.incarnation),
            base=record,
            record=record,
            started=None if written is None else written.decided,
            contact_at=self._loop.now(),  # nobody grants without the key, which is ours now
            lost="the leader" if written is None else written.record.term.node.partition("/")[0],
            number=record.round,
            restarts_used=record.restart_count,
            granted_until=until,
        )
        self._side.lead(recovered)
        self._loop.call_at(self._loop.now() + self._ttl_s / 4, self._renewer(self._key))

    def _renewer(self, key: Mapping[str, Any]) -> Callable[[], None]:
        def renew() -> None:
            if self._key is not key:
                return
            asked_at = self._loop.now()

            def on_done(ttl_s: Any, error: str) -> None:  # noqa: ANN401 (JSON)
                if self._key is not key:
                    return
                if error:
                    self._loop.call_at(self._loop.now() + _RETRY_S, renew)
                    return
                until = asked_at + int(ttl_s) - self._settings.drift_s if ttl_s else asked_at
                self._side.tell_leader(v.MandateExtended(until=until))
                self._loop.call_at(asked_at + self._ttl_s / 4, renew)

            self._loop.ask("renew", key, timeout_s=self._ttl_s / 4, on_done=on_done)

        return renew

    def write(self, written: cv.WriteRecord) -> None:
        """Write a record down while the key is ours; its end stands for a while by itself."""
        key, text = self._key, _as_text(written)
        call, what = "record", {"record": text}
        if written.record.end is not None:
            call, what = "conclude", {"ending": text, "end_ttl_s": self._end_ttl_s}  # type: ignore[dict-item]

        def on_done(is_written: Any, error: str) -> None:  # noqa: ANN401 (JSON)
            if self._key is not key:
                return
            if error:
                self._loop.call_at(self._loop.now() + _RETRY_S, ask)
            elif is_written:
                self._side.tell_leader(cv.RecordWritten(number=written.record.number))
            else:
                self._side.tell_leader(v.MandateExtended(until=self._loop.now()))

        def ask() -> None:
            if key is not None and self._key is key:
                arguments = {**key, **what}
                self._loop.ask(call, arguments, timeout_s=self._ttl_s / 4, on_done=on_done)

        ask()

    @property
    def _end_ttl_s(self) -> int:
        """How long the end stands: until a member that is cut off since has given up (R10)."""
        wanted = self._settings
        patience_s = wanted.lease_s + wanted.join_timeout_s
        return math.ceil(patience_s * (1 + wanted.drift_s / wanted.lease_s) + _MARGIN_S)

    def resign(self) -> None:
        """Give the key back, so that another can be named at once."""
        key, self._key = self._key, None
        if key is not None:
            self._loop.ask("resign", key, timeout_s=_RESIGN_S, on_done=lambda *_: None)


def _key_of(found: Mapping[str, Any]) -> dict[str, Any]:
    return {name: found[name] for name in ("value", "lease", "create_revision")}


def _fields(value: object) -> dict[str, Any]:
    return {name: getattr(value, name) for name in type(value).__dataclass_fields__}  # type: ignore[attr-defined]


def _as_text(value: object) -> str:
    return json.dumps(as_object(value))


def _read(kind: type[Any], text: str) -> Any:  # noqa: ANN401 (of the kind)
    try:
        return read_dataclass(kind, json.loads(text), kind.__name__) if text else None
    except (ValueError, RendezvousError):
        return None
