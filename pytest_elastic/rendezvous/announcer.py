"""Lets others find the coordinator that runs here: at the endpoint, and at each other's ports.

The first coordinator publishes its place in the store that it hosts. A successor tells the members
of the round that it goes on with. The endpoint's store may have died with the coordinator of
before; so the successor looks there once a beat. When somebody serves it again, the place is
published there for newcomers, and whoever believes to be the job's first coordinator is told that
it is not.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence

from pytest_elastic.config import Endpoint
from pytest_elastic.credentials import Credentials
from pytest_elastic.loop import Loop, Timer
from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous.agent_probe import Call, tell_agent
from pytest_elastic.rendezvous.messages import Announcement, Place
from pytest_elastic.rendezvous.model import Node, RosterEntry, Settings
from pytest_elastic.rendezvous.vocabulary import CoordinatorFound

__all__ = ["Announcer", "found_at", "key_of", "place_of", "read_place"]

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


def key_of(settings: Settings) -> str:
    """Return the key under which the coordinator's place is published."""
    return f"pytest-elastic/{settings.run_id}/coordinator"


def read_place(value: str, run_id: str, credentials: Credentials | None) -> Place | None:
    """Return what was published; None if it is nothing of ours, or not signed where it has to be.

    An old record that is played again names a term that is over: nobody obeys that.
    """
    try:
        fields = json.loads(value)
        signature = fields.pop("signature", None)
        place = Place(
            term=int(fields["term"]),
            name=str(fields["name"]),
            incarnation=str(fields["incarnation"]),
            address=str(fields["address"]),
            port=int(fields["port"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    if credentials is not None:
        is_ours = credentials.has_signed(signature, *_signed_parts(place, run_id))
        return place if is_ours else None
    return place


def as_text(place: Place, run_id: str, credentials: Credentials | None) -> str:
    """Return a place as it is published."""
    fields = dataclasses.asdict(place)
    if credentials is not None:
        fields["signature"] = credentials.sign(*_signed_parts(place, run_id))
    return json.dumps(fields)


def _signed_parts(place: Place, run_id: str) -> tuple[str, ...]:
    fields = dataclasses.asdict(place)
    return ("place", run_id, json.dumps(fields, sort_keys=True))


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
    ) -> None:
        self._loop = loop
        self._settings = settings
        self._endpoint = endpoint
        self._store = store
        self._place = place
        self._credentials = credentials
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
            self._tell(entry.incarnation, entry.address, entry.port)

    def watch_endpoint(self) -> None:
        """Look at the endpoint now, and once a beat from here on."""
        if self._is_stopped:
            return
        self._store.fetch(
            self._endpoint.host,
            self._endpoint.port,
            key_of(self._settings),
            timeout_s=_STORE_S,
            on_done=self._on_fetched,
        )

    def stop(self) -> None:
        """Announce nothing any more."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _on_fetched(self, value: str, error: str) -> None:
        if self._is_stopped:
            return
        found = None if error else read_place(value, self._settings.run_id, self._credentials)
        is_served = not error or "has no key" in error
        if is_served and found != self._place:
            if found is not None and found.term < self._place.term:
                self._tell(found.incarnation, found.address, found.port)
            if found is None or found.term <= self._place.term:
                self.publish(lambda _: None)
        interval_s = max(self._settings.beat_interval_s, _LEAST_INTERVAL_S)
        self._timer = self._loop.call_at(self._loop.now() + interval_s, self.watch_endpoint)

    def _tell(self, incarnation: str, address: str, port: int) -> None:
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
        )
