"""What stands at the endpoint: real nodes, and a real store that two leaders publish to."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_elastic.backends.threaded_store import ThreadedStore
from pytest_elastic.events import model as events
from pytest_elastic.rendezvous.consensus.records import Term, founding_record, seat_of
from pytest_elastic.rendezvous.consensus.replication import Recovered
from pytest_elastic.rendezvous.follower.connection import ConnectionPhase
from pytest_elastic.rendezvous.messages import LeaderAddress
from pytest_elastic.rendezvous.registries.announcer import Announcer, Hosts
from pytest_elastic.rendezvous.registries.registry import as_text, key_of, read_text
from pytest_elastic.rendezvous.settings import Settings
from tests.unit.rendezvous.driver.bench import Agent, serve_until
from tests.unit.rendezvous.registries.bench import HOST, Stores, open_first_store

SETTINGS = Settings(
    run_id="r", min_nodes=2, max_nodes=2, max_restarts=0, quorum="majority", linger_s=0.0
)


class Place(Stores):
    """Endpoints, each with a store of torch's behind it, and the nodes of a test."""

    def __init__(self, stack: ExitStack, endpoints: int = 1) -> None:
        super().__init__(stack)
        self.endpoints = [self.open() for _ in range(endpoints)]

    def agent(self, name: str, settings: Settings = SETTINGS) -> Agent:
        """Return a node, which listens and does nothing yet."""
        agent = Agent(self.loop, name, settings, succeeds=False)
        self.stack.callback(agent.close)
        return agent

    @property
    def named(self) -> LeaderAddress | None:
        """Who is named at the endpoint."""
        key = key_of(SETTINGS)
        store = self.stores[0]
        text = store.get(key).decode() if store.check([key]) else ""
        return read_text(LeaderAddress, text, "r", None)

    def name(self, leader: LeaderAddress) -> None:
        """Name a leader there, as one has done before."""
        self.stores[0].set(key_of(SETTINGS), as_text(leader, "r", None))

    def announce(self, agent: Agent) -> None:
        """Announce the leader of a node from here on."""
        announcer = Announcer(
            self.loop,
            SETTINGS,
            self.endpoints[0],
            ThreadedStore(self.loop),
            agent.registry.side,
            questions=agent.questions,
            credentials=None,
        )
        self.stack.callback(announcer.stop)
        announcer.watch()

    def forget_hosts(self) -> None:
        """Have the stores forget where their hosts are."""
        for store in self.stores:
            store.delete_key("pytest-elastic/r/host")

    def host(self, name: str, number: int) -> Agent:
        """Return a node that is the host of an endpoint, and looks for those of the others."""
        settings = replace(SETTINGS, endpoints=",".join(map(str, self.endpoints)))
        agent = self.agent(name, settings)
        agent.registry.begin()
        hosts = Hosts(
            self.loop,
            settings,
            self.endpoints,
            ThreadedStore(self.loop),
            agent.registry.side,
            hosted=number,
            credentials=None,
        )
        self.stack.callback(hosts.close)
        hosts.open()
        return agent


@pytest.fixture(scope="module", autouse=True)
def _first_store() -> None:
    open_first_store()


@pytest.fixture
def place() -> Iterator[Place]:
    """Return an endpoint that names no leader yet."""
    with ExitStack() as stack:
        yield Place(stack)


def lead(agent: Agent, counter: int, *, is_founding: bool) -> LeaderAddress:
    """Let a node lead, and follow itself; unless it is founding, a round is decided."""
    side = agent.registry.side
    base = founding_record([side.node])
    if not is_founding:
        base = replace(base, number=1, round=1)
    side.lead(
        Recovered(
            term=Term(counter, side.node.incarnation),
            base=base,
            record=base,
            started=None,
            contact_at=agent.loop.now(),
            heard_at={side.node.incarnation: agent.loop.now()},
        ),
        "elected",
    )
    leader = side.leader
    assert leader is not None
    assert leader.is_founding is is_founding
    agent.registry.names = leader
    agent.registry.begin()
    serve_until(agent.loop, lambda: side.follower.connection is ConnectionPhase.JOINED)
    return leader


def stepped_down(agent: Agent) -> list[int]:
    """Return the terms under which a node leads no more."""
    return [e.term for e in agent.events if isinstance(e, events.CoordinatorSteppedDown)]


def test_a_founder_gives_way_to_the_leader_of_a_job_that_runs(place: Place) -> None:
    """Also one of a higher term: its address is replaced, and it is told.

    It then joins the job, and its higher term has the leader be elected anew (Raft, section 5.1).
    """
    runs, founds = place.agent("runs"), place.agent("founds")
    leader = lead(runs, 2, is_founding=False)
    place.name(lead(founds, 5, is_founding=True))
    place.announce(runs)
    serve_until(place.loop, lambda: bool(stepped_down(founds)) and place.named == leader)
    assert stepped_down(founds) == [5]


def test_of_two_founders_the_one_of_the_lower_term_gives_way(place: Place) -> None:
    """It leaves the address of the other one where it is."""
    low, high = place.agent("low"), place.agent("high")
    lead(low, 1, is_founding=True)
    leader = lead(high, 2, is_founding=True)
    place.name(leader)
    place.announce(low)
    serve_until(place.loop, lambda: bool(stepped_down(low)))
    assert (place.named, stepped_down(low), stepped_down(high)) == (leader, [1], [])


def test_a_leader_that_is_not_there_any_more_is_replaced(place: Place) -> None:
    """Though it was one of a job that ran, under a higher term."""
    runs = place.agent("runs")
    leader = lead(runs, 2, is_founding=False)
    with socket.create_server((HOST, 0)) as server:
        port = server.getsockname()[1]
    place.name(replace(leader, term=Term(7, "gone"), incarnation="gone", port=port))
    place.announce(runs)
    serve_until(place.loop, lambda: place.named == leader)
    assert stepped_down(runs) == []


@pytest.mark.parametrize("changed", [{"term": Term(7, "other")}, {"incarnation": "before"}])
def test_a_leader_is_believed_only_if_it_says_that_it_leads_so(
    place: Place, changed: dict[str, Any]
) -> None:
    """Another agent behind that port, or the same one under another term, is not the one named."""
    runs, other = place.agent("runs"), place.agent("other")
    leader = lead(runs, 5, is_founding=False)
    named = replace(lead(other, 6, is_founding=False), **changed)
    place.name(named)
    place.announce(runs)
    serve_until(place.loop, lambda: place.named == leader)
    assert stepped_down(runs) == []


def voters(agent: Agent) -> list[tuple[str, str]]:
    """Return the name and the incarnation of each host that a node would ask for its vote."""
    base = agent.registry.side.follower.voter.base
    return [] if base is None else [(each.name, each.role) for each in base.roster]


def test_hosts_of_all_endpoints_find_each_other_and_elect_the_first() -> None:
    """The last one to come completes them; each is known by its incarnation, and by its place."""
    with ExitStack() as stack:
        place = Place(stack, endpoints=3)
        second, third = place.host("b", 1), place.host("c", 2)
        unknown = (str(place.endpoints[0]), "unknown")
        others = [unknown, ("b", "b"), ("c", "c")]
        serve_until(place.loop, lambda: voters(second) == voters(third) == others)
        assert not any(agent.registry.side.leader for agent in (second, third))
        first = place.host("a", 0)
        serve_until(place.loop, lambda: first.registry.side.leader is not None)
        base = first.registry.side.follower.voter.base
        assert base is not None
        assert voters(first) == [("a", "a"), ("b", "b"), ("c", "c")]
        seats = [seat_of(str(each)) for each in place.endpoints]
        assert list(base.configuration.voters) == seats
        assert [each.registry.side.follower.voter.seat for each in (first, second, third)] == seats


def test_a_host_that_another_agent_has_replaced_is_known_as_that_one() -> None:
    """Its place is the same, and it may have forgotten what it promised.

    A host that its endpoint does not name any more is unknown again.
    """
    with ExitStack() as stack:
        place = Place(stack, endpoints=3)
        first, _ = place.host("a", 0), place.host("b", 1)
        unknown = (str(place.endpoints[2]), "unknown")
        serve_until(place.loop, lambda: voters(first) == [("a", "a"), ("b", "b"), unknown])
        place.host("b again", 1)
        serve_until(place.loop, lambda: voters(first)[1] == ("b again", "b again"))
        place.forget_hosts()
        unknown = (str(place.endpoints[1]), "unknown")
        serve_until(place.loop, lambda: voters(first)[1] == unknown)
