"""Lets others find the coordinator that runs here: at the endpoint, and at each other's ports.

The first coordinator publishes its place in the store that it hosts. A successor tells the members
of the round that it goes on with. The endpoint's store may have died with the coordinator of
before; so the successor looks there once a beat. When somebody serves it again, the place is
published there for newcomers, and whoever believes to be the job's first coordinator is told that
it is not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pytest_elastic.config import Endpoint
from pytest_elastic.credentials import Credentials
from pytest_elastic.loop import Loop, Timer
from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous.agent_probe import Call, tell_agent
from pytest_elastic.rendezvous.belief import is_believable
from pytest_elastic.rendezvous.founding_vocabulary import Record
from pytest_elastic.rendezvous.messages import Announcement, Place
from pytest_elastic.rendezvous.model import Node, RosterEntry, Settings
from pytest_elastic.rendezvous.records import as_text, key_of, read_place, read_record
from pytest_elastic.rendezvous.vocabulary import CoordinatorFound

__all__ = ["Announcer", "as_text", "found_at", "key_of", "place_of", "read_place"]

# A store that is served answers in milliseconds; a frozen one costs a thread for so long.
_STORE_S = 1.0
# How often the endpoint is looked at; nobody notices less, and a beat may be much shorter.
_LEAST_INTERVAL_S = 0.5


def place_of(node: Node, term: int) -> Place:
    """Return where a coordinator on a node is."""
    return Place(
        term=term,
        name=node.name,
        incarnation=node.incarnation,
        address=node.address,
        port=node.port,
    )


def found_at(place: Place, *, is_here: bool) -> CoordinatorFound:
    """Return what a member is told about a place that it looked for."""
    return CoordinatorFound(
        address=place.address,
        port=place.port,
        term=place.term,
        is_here=is_here,
        incarnation=place.incarnation,
    )


class Announcer:
    """Announces one place until it is stopped."""

    def __init__(
        self,
        loop: Loop,
        settings: Settings,
        endpoint: Endpoint,
        store: ports.EndpointStore,
        place: Place,
        *,
        credentials: Credentials | None,
        on_newer: Callable[[Place, Callable[[], None]], None],
    ) -> None:
        self._loop = loop
        self._on_newer = on_newer
        self._settings = settings
        self._endpoint = endpoint
        self._store = store
        self._place = place
        self._credentials = credentials
        self._elder: Place | None = None
        """Who was published before, and has not been reached yet."""
        self._elder_until = 0.0
        self._timer: Timer | None = None
        self._is_stopped = False

    def publish(self, on_done: Callable[[str], None]) -> None:
        """Publish the place in the endpoint's store."""
        self._store.publish(
            self._endpoint.host,
            self._endpoint.port,
            key_of(self._settings),
            as_text(self._place, self._settings.run_id, self._credentials),
            timeout_s=60.0,
            on_done=on_done,
        )

    def tell(self, members: Sequence[RosterEntry]) -> None:
        """Tell the members of a round who decides now."""
        for entry in members:
            self._tell(entry.incarnation, entry.address, entry.port, lambda: None)

    def watch_endpoint(self) -> None:
        """Look at the endpoint now, and once a beat from here on."""
        if self._is_stopped:
            return
        self._swap("", None, self._on_seen)

    def stop(self) -> None:
        """Announce nothing any more."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _swap(self, expected: str, value: str | None, on_done: Callable[[str, str], None]) -> None:
        self._store.swap(
            self._endpoint.host,
            self._endpoint.port,
            key_of(self._settings),
            expected=expected,
            value=value,
            timeout_s=_STORE_S,
            on_done=on_done,
        )

    def _on_seen(self, value: str, error: str) -> None:
        if self._is_stopped:
            return
        own = Record(place=self._place)
        found = None if error else read_record(value, self._settings.run_id, self._credentials)
        if not error and found != own:
            term = -1 if found is None or found.claim is not None else found.place.term
            is_other = found is not None and found.place.incarnation != self._place.incarnation
            if found is not None and is_other and term <= self._place.term:
                self._elder = found.place
                self._elder_until = self._loop.now() + self._settings.join_timeout_s
            if not is_believable(term, self._place.term):
                term = -1
            if found is not None and term > self._place.term:
                self._on_newer(found.place, lambda: self._overwrite(value))
            if term <= self._place.term:
                self._overwrite(value)
        self._tell_elder()
        interval_s = max(self._settings.beat_interval_s, _LEAST_INTERVAL_S)
        self._timer = self._loop.call_at(self._loop.now() + interval_s, self.watch_endpoint)

    def _overwrite(self, value: str) -> None:
        """Publish the place over what was found, unless something else is there by now."""
        if not self._is_stopped:
            text = as_text(self._place, self._settings.run_id, self._credentials)
            self._swap(value, text, lambda _value, _error: None)

    def _tell_elder(self) -> None:
        """Tell who was published before, at every look until it is reached.

        It may believe to be the job's first coordinator, and nobody else would tell it again.
        """
        elder = self._elder
        if elder is not None and self._loop.now() < self._elder_until:
            self._tell(elder.incarnation, elder.address, elder.port, lambda: self._reach(elder))

    def _reach(self, elder: Place) -> None:
        if self._elder is elder:
            self._elder = None

    def _tell(self, incarnation: str, address: str, port: int, on_said: Callable[[], None]) -> None:
        if incarnation == self._place.incarnation:
            return
        announcement = Announcement(run_id=self._settings.run_id, place=self._place)
        tell_agent(
            self._loop,
            Call(
                incarnation=incarnation,
                address=address,
                port=port,
                question=announcement,
                within_s=self._settings.lease_s,
                credentials=self._credentials,
            ),
            on_said,
        )
