"""The registry of a job with several endpoints: a record in each of their stores (R12).

Whoever owns the address of an endpoint hosts its store. The job is found through any of them that
can be reached, and begins where a majority can; see `founding` for who begins it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from typing_extensions import assert_never

from pytest_elastic.config import Endpoint
from pytest_elastic.credentials import Credentials
from pytest_elastic.events.model import EndpointsReached, Event
from pytest_elastic.loop import Loop, Timer
from pytest_elastic.rendezvous import founding_vocabulary as f
from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.announcer import Announcer, found_at, place_of
from pytest_elastic.rendezvous.founding import FoundingMachine, best_of
from pytest_elastic.rendezvous.messages import Place
from pytest_elastic.rendezvous.model import RosterEntry, Settings
from pytest_elastic.rendezvous.records import as_text, key_of, read_record, why_unread
from pytest_elastic.rendezvous.registry import NodeSide

__all__ = ["SeveralEndpoints"]

_FIRST_TERM = 1
# How long after the first claim that was found others are waited for: endpoints answer together.
_CHOOSE_S = 0.05
# How long a store is asked for a record that is not there yet; then all are asked again, also those
# that were not up.
_FIND_S = 1.0
# What a founder leaves in a store that it gives back.
_RELEASED = "released"


class SeveralEndpoints:
    """One node's view of all endpoints (see `registry.Registry`); `is_host` False: host none."""

    def __init__(
        self,
        loop: Loop,
        *,
        settings: Settings,
        endpoints: Sequence[Endpoint],
        is_host: bool | None,
        store: ports.EndpointStore,
        on_event: Callable[[Event], None],
        credentials: Credentials | None = None,
    ) -> None:
        self._loop = loop
        self._settings = settings
        self._endpoints = endpoints
        self._is_host = is_host
        self._store = store
        self._on_event = on_event
        self._credentials = credentials
        self._founding: FoundingMachine | None = None
        self._unknown: list[int] = []  # endpoints whose names are not known yet
        self._timer: Timer | None = None
        self._announcers: Sequence[Announcer] = ()
        self._search: _Search | None = None
        self._reached: tuple[str, ...] | None = None
        self._is_closed = False
        self._side: NodeSide

    def open(self, side: NodeSide) -> None:
        """Host an endpoint if one is here, and look for the job."""
        self._side = side
        side.tell_member(v.Start())
        if self._is_host is not False:
            self._host([*range(len(self._endpoints))])

    def find(self, within_s: float) -> None:
        """Ask all endpoints at once; whatever names a running job first, is believed."""
        self._end_search()
        unknown, self._unknown = self._unknown, []
        self._host(unknown)
        self._search = _Search(self._loop, len(self._endpoints), self._on_searched)
        for number, endpoint in enumerate(self._endpoints):
            self._store.fetch(
                endpoint.host,
                endpoint.port,
                key_of(self._settings),
                timeout_s=min(within_s, _FIND_S),
                on_done=self._taker(self._search, number),
            )

    def announce(self, place: Place, members: Sequence[RosterEntry]) -> None:
        """Tell the members, and whoever looks at any endpoint from now on."""
        self._found_no_more()
        self._announce(place)
        self._announcers[0].tell(members)

    def remember(self) -> None:
        """Keep nothing: the other endpoints know of the job."""

    def pass_on(self, command: v.CoordinatorCommand) -> None:
        """Found the job when the coordinator has the nodes for it; all else is done at once."""
        if isinstance(command, v.FoundJob):
            self._step(f.Wanted())
        else:
            self._side.perform(command)

    def end(self) -> None:
        """Announce nothing any more."""
        for announcer in self._announcers:
            announcer.stop()
        self._announcers = ()

    def close(self, *, is_over: bool, on_closed: Callable[[], None]) -> None:
        """Look and announce no more; a store goes with its process."""
        self._is_closed = True
        self.end()
        self._end_search()
        self._found_no_more()
        on_closed()

    # Hosting (R14): the first endpoint that is an address of this node, and free

    def _host(self, numbers: Sequence[int]) -> None:
        """Host the first of these endpoints that can be; those not known yet are asked of again."""
        if not numbers or self._is_closed or not self._side.member.may_move:
            return
        number, *others = numbers
        endpoint = self._endpoints[number]

        def on_done(why_not: str, why_unknown: str) -> None:
            if why_unknown:
                self._unknown.append(number)
            if why_not or why_unknown:
                self._host(others)
            else:
                self._unknown.clear()
                self._side.look_at_place(lambda: self._hosts(number))

        self._store.host(endpoint.host, endpoint.port, is_forced=False, on_done=on_done)

    def _hosts(self, number: int) -> None:
        if self._is_closed:
            return
        self._founding = FoundingMachine(
            settings=self._settings,
            place=place_of(self._side.node, _FIRST_TERM),
            rank=number,
            names=[str(endpoint) for endpoint in self._endpoints],
            now=self._loop.now(),
        )
        self._step(v.TimePassed())

    # Founding

    def _step(self, given: f.FoundingInput) -> None:
        machine = self._founding
        if machine is None:
            return
        now = self._loop.now()
        if self._side.has_acknowledged:
            given = f.Joined()
        for command in machine.step(given, now):
            self._perform(command)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        wake_at = machine.wake_at()
        if wake_at is not None and self._founding is machine:
            self._timer = self._loop.call_at(wake_at, lambda: self._step(v.TimePassed()))

    def _perform(self, command: f.FoundingCommand) -> None:
        match command:
            case f.Look(endpoint=number):
                self._swap(number, "", None)
            case f.Swap(endpoint=number, expected=expected, record=record):
                text = _RELEASED
                if record is not None:
                    run_id = self._settings.run_id
                    text = as_text(record.place, run_id, self._credentials, claim=record.claim)
                self._swap(number, expected, text)
            case f.Begin(reason=reason):
                self._side.coordinate(_FIRST_TERM, reason)
                if self._search is not None:
                    self._on_searched(f.Record(place=place_of(self._side.node, _FIRST_TERM)), {})
            case f.Yield(reason=reason):
                self._side.tell_coordinator(v.FoundingLost(reason=reason))
            case f.Founded():
                self._announce(place_of(self._side.node, _FIRST_TERM))
                self._side.tell_coordinator(v.JobFounded())
            case v.Emit(event=event):
                self._on_event(event)
            case _:
                assert_never(command)

    def _swap(self, number: int, expected: str, value: str | None) -> None:
        endpoint, machine = self._endpoints[number], self._founding

        def on_done(text: str, error: str) -> None:
            if self._founding is machine:
                record = read_record(text, self._settings.run_id, self._credentials)
                answer = f.Answered(endpoint=number, text=text, record=record, error=error)
                self._step(answer)

        self._store.swap(
            endpoint.host,
            endpoint.port,
            key_of(self._settings),
            expected=expected,
            value=value,
            timeout_s=f.ANSWER_WITHIN_S,
            on_done=on_done,
        )

    def _found_no_more(self) -> None:
        self._founding = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # Announcing

    def _announce(self, place: Place) -> None:
        self.end()
        self._announcers = [
            Announcer(
                self._loop,
                self._settings,
                endpoint,
                self._store,
                place,
                credentials=self._credentials,
                on_newer=self._on_newer,
            )
            for endpoint in self._endpoints
        ]
        for announcer in self._announcers:
            announcer.watch_endpoint()

    def _on_newer(self, place: Place, otherwise: Callable[[], None]) -> None:
        """Hear of a coordinator that could publish itself, and could not reach this node."""
        self._side.hear_of(place, otherwise=otherwise)

    # Finding

    def _taker(self, search: _Search, number: int) -> Callable[[str, str], None]:
        def take(value: str, error: str) -> None:
            record = None if error else read_record(value, self._settings.run_id, self._credentials)
            if not error and record is None:
                error = why_unread(value, "there", self._credentials)
            search.take(number, record, error)

        return take

    def _on_searched(self, record: f.Record | None, problems: dict[int, str]) -> None:
        self._end_search()
        if record is not None:
            is_here = record.place.incarnation == self._side.node.incarnation
            found = found_at(record.place, is_here=is_here)
            if self._founding is None:
                self._side.look_at_place(lambda: self._side.tell_member(found))
            else:  # this node's claim says where it is
                self._side.tell_member(found)
            return
        problems = {
            number: "nobody has begun the job there" if "has no key" in why else why
            for number, why in sorted(problems.items())
        }
        said = "; ".join(f"{self._endpoints[number]}: {why}" for number, why in problems.items())
        self._side.tell_member(v.CoordinatorNotFound(reason=said))
        self._say_what_is_reached(problems)

    def _say_what_is_reached(self, problems: dict[int, str]) -> None:
        """Tell it where nobody else does: on a node that hosts no endpoint."""
        if self._founding is not None:
            return
        missing = {
            str(self._endpoints[number]): why
            for number, why in problems.items()
            if not why.startswith("nobody")
        }
        reached = tuple(str(each) for each in self._endpoints if str(each) not in missing)
        if reached != self._reached:
            self._reached = reached
            self._on_event(EndpointsReached(reached=reached, missing=missing))

    def _end_search(self) -> None:
        if self._search is not None:
            self._search.end()
            self._search = None


class _Search:
    """One question to all endpoints; tells the best answer once, or why there is none."""

    def __init__(
        self, loop: Loop, count: int, tell: Callable[[f.Record | None, dict[int, str]], None]
    ) -> None:
        self._loop = loop
        self._count = count
        self._tell = tell
        self._found: list[f.Record] = []
        self._problems: dict[int, str] = {}
        self._timer: Timer | None = None
        self._is_over = False

    def take(self, number: int, record: f.Record | None, error: str) -> None:
        """Take one endpoint's answer."""
        if self._is_over:
            return
        if record is None:
            self._problems[number] = error
        else:
            self._found.append(record)
        is_complete = len(self._found) + len(self._problems) == self._count
        if is_complete or (record is not None and record.claim is None):
            self._finish()
        elif record is not None and self._timer is None:
            self._timer = self._loop.call_at(self._loop.now() + _CHOOSE_S, self._finish)

    def end(self) -> None:
        """Tell nothing any more."""
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()

    def _finish(self) -> None:
        found, problems = self._found, self._problems
        self.end()
        self._tell(best_of(found) if found else None, problems)
