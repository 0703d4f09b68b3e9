"""What is published in the store of an endpoint: where its leader is, and where its host is.

The store may have died with the leader of before; so it is looked at once a beat. When it is served
again, the address is published there for newcomers. An agent that was published before, and may
believe that it leads still, is told. Hosts of several endpoints find each other the same way, to
elect one of them (R12).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from pytest_elastic.config import Endpoint
from pytest_elastic.credentials import Credentials
from pytest_elastic.loop import Loop, Timer
from pytest_elastic.rendezvous.consensus.records import founding_record, seat_of
from pytest_elastic.rendezvous.driver.questions import Questions
from pytest_elastic.rendezvous.follower.connection import ConnectionPhase
from pytest_elastic.rendezvous.messages import LeaderAddress, is_believable
from pytest_elastic.rendezvous.model import Node
from pytest_elastic.rendezvous.ports import EndpointStore
from pytest_elastic.rendezvous.registries.registry import NodeSide, as_text, key_of, read_text
from pytest_elastic.rendezvous.settings import Settings
from pytest_elastic.rendezvous.vocabulary import Bootstrap

__all__ = ["Announcer", "Hosts"]

# How often the endpoint is looked at, at most: a beat may be much shorter than anyone notices.
_LEAST_INTERVAL_S = 0.5
# How often the other endpoints are looked at while a job begins: hosts start within a moment of
# each other; for how long that is worth the effort; then once a beat.
_LOOK_S = 0.1
_FAST_FOR_S = 10.0


class Announcer:
    """Keeps the address of the leader that runs here at one endpoint, until it is stopped."""

    def __init__(
        self,
        loop: Loop,
        settings: Settings,
        endpoint: Endpoint,
        store: EndpointStore,
        side: NodeSide,
        *,
        questions: Questions,
        credentials: Credentials | None,
    ) -> None:
        self._loop = loop
        self._settings = settings
        self._endpoint = endpoint
        self._store = store
        self._side = side
        self._questions = questions
        self._credentials = credentials
        self._elder: LeaderAddress | None = None
        """The leader that was published before, while it has not been reached."""
        self._elder_until = 0.0
        self._timer: Timer | None = None
        self._is_stopped = False

    def watch(self) -> None:
        """Look at the endpoint now, and once a beat from here on."""
        if not self._is_stopped and self._side.leader is not None:
            self._store.swap(self._endpoint, key_of(self._settings), "", None, self._on_seen)

    def stop(self) -> None:
        """Announce nothing any more."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _text(self) -> str:
        leader = self._side.leader
        assert leader is not None, "a leader is here"
        return as_text(leader, self._settings.run_id, self._credentials)

    def _on_seen(self, text: str, error: str) -> None:
        own = self._side.leader
        if self._is_stopped or own is None:
            return
        if not error:
            self._look_at(text, own)
        elder = self._elder
        if elder is not None and self._loop.now() < self._elder_until:
            # It may believe that it leads, and no other node would tell it again.
            self._questions.announce(own, elder, lambda: self._reach(elder))
        if self._timer is not None:  # it was to look at once, besides
            self._timer.cancel()
        interval_s = max(self._settings.beat_interval_s, _LEAST_INTERVAL_S)
        self._timer = self._loop.call_at(self._loop.now() + interval_s, self.watch)

    def _look_at(self, text: str, own: LeaderAddress) -> None:
        found = read_text(LeaderAddress, text, self._settings.run_id, self._credentials)
        if found == own:
            return
        is_other = found is not None and found.incarnation != own.incarnation
        if found is not None and is_other and is_believable(found.term.counter, own.term.counter):
            if found.goes_before(own):
                self._side.hear_of(found, otherwise=lambda: self._overwrite(text))
                return
            self._elder = found
            self._elder_until = self._loop.now() + self._settings.join_timeout_s
        self._overwrite(text)

    def _overwrite(self, text: str) -> None:
        """Publish the address over what was found, unless something else is there by now."""
        if not self._is_stopped and self._side.leader is not None:
            key = key_of(self._settings)
            self._store.swap(self._endpoint, key, text, self._text(), lambda _value, _error: None)

    def _reach(self, elder: LeaderAddress) -> None:
        if self._elder is elder:
            self._elder = None


class Hosts:
    """What the host of one endpoint, of number `hosted`, knows of the others.

    Each publishes where its agent is, and looks at the other stores until it is in a job.
    """

    def __init__(
        self,
        loop: Loop,
        settings: Settings,
        endpoints: Sequence[Endpoint],
        store: EndpointStore,
        side: NodeSide,
        *,
        hosted: int,
        credentials: Credentials | None,
    ) -> None:
        self._loop = loop
        self._settings = settings
        self._endpoints = endpoints
        self._store = store
        self._side = side
        self._hosted = hosted
        self._credentials = credentials
        self._key = f"pytest-elastic/{settings.run_id}/host"
        self._found: dict[int, Node] = {}
        self._asked: set[int] = set()
        self._told: Sequence[Node] = ()
        self._fast_until = loop.now() + _FAST_FOR_S
        self._timer: Timer | None = None
        self._is_closed = False

    def open(self) -> None:
        """Publish where this node is, and look for the others."""
        self.publish()
        self._look()

    def publish(self) -> None:
        """Publish where this node is."""
        own = self._found[self._hosted] = self._side.node
        text = as_text(own, self._settings.run_id, self._credentials)
        self._store.publish(self._endpoints[self._hosted], self._key, text, lambda _error: None)

    def close(self) -> None:
        """Look no more."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        """Look for the hosts of the other endpoints, until this node is in a job."""
        follower, now = self._side.follower, self._loop.now()
        if self._is_closed or follower.voter.record is not None:
            return
        wait_s = _LOOK_S if now < self._fast_until else self._settings.beat_interval_s
        self._timer = self._loop.call_at(now + wait_s, self._look)
        if follower.connection is ConnectionPhase.JOINED:
            return
        for number, endpoint in enumerate(self._endpoints):
            if number != self._hosted and number not in self._asked:
                self._asked.add(number)
                self._store.swap(endpoint, self._key, "", None, self._taker(number))
        self._tell()

    def _taker(self, number: int) -> Callable[[str, str], None]:
        def take(text: str, error: str) -> None:
            self._asked.discard(number)
            self._found.pop(number, None)
            run_id = self._settings.run_id
            host = None if error else read_text(Node, text, run_id, self._credentials)
            if host is not None:
                self._found[number] = host

        return take

    def _tell(self) -> None:
        hosts = tuple(self._entry_of(number) for number in range(len(self._endpoints)))
        if hosts == self._told or self._side.leader is not None:
            return
        self._told = hosts
        self._side.bootstrap(
            Bootstrap(base=founding_record(hosts), seat=self._seat_of(self._hosted)),
            "the hosts of the endpoints chose it",
        )

    def _entry_of(self, number: int) -> Node:
        """Return a host as a voter; without a port while its agent's address is unknown."""
        host, seat = self._found.get(number), self._seat_of(number)
        if host is None:
            name = str(self._endpoints[number])
            return Node(name=name, incarnation=seat, address="", slots=1, role="unknown")
        # As its role it has its incarnation: another agent there is another entry.
        return replace(host, incarnation=seat, role=host.incarnation)

    def _seat_of(self, number: int) -> str:
        return seat_of(str(self._endpoints[number]))
