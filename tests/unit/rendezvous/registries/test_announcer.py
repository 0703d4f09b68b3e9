"""What stands at the endpoint: real nodes, and a real store that two leaders publish to."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest

from pytest_elastic.backends.threaded_store import ThreadedStore
from pytest_elastic.config import Endpoint
from pytest_elastic.events import model as events
from pytest_elastic.loop import Loop
from pytest_elastic.rendezvous.consensus.records import Term, founding_record
from pytest_elastic.rendezvous.consensus.replication import Recovered
from pytest_elastic.rendezvous.machine import ConnectionPhase
from pytest_elastic.rendezvous.messages import LeaderAddress
from pytest_elastic.rendezvous.model import Settings
from pytest_elastic.rendezvous.registries.announcer import Announcer
from pytest_elastic.rendezvous.registries.registry import as_text, key_of, read_text
from pytest_elastic.workers.store import torch_store
from tests.unit.rendezvous.driver.bench import Agent, serve_until

HOST = "127.0.0.1"
SETTINGS = Settings(
    run_id="r", min_nodes=2, max_nodes=2, max_restarts=0, quorum="majority", linger_s=0.0
)


class Place:
    """One endpoint, with the store of torch's behind it, and the nodes of a test."""

    def __init__(self, stack: ExitStack) -> None:
        self.loop = Loop()
        self.loop.enable_thread_wakeup()
        stack.callback(self.loop.close)
        stack.callback(self._serve_the_rest, threading.active_count())
        self._stack = stack
        self._store, port = torch_store.open_store(HOST, None, None)
        self._endpoint = Endpoint(host=HOST, port=port)

    def _serve_the_rest(self, threads: int) -> None:
        """Let calls of the store end, and what was said last leave."""
        serve_until(self.loop, lambda: threading.active_count() <= threads)
        for _ in range(20):
            self.loop.run_once(0)
        del self._store

    def agent(self, name: str) -> Agent:
        """Return a node that follows itself once it leads."""
        agent = Agent(self.loop, name, SETTINGS, succeeds=False)
        self._stack.callback(agent.close)
        return agent

    @property
    def named(self) -> LeaderAddress | None:
        """Who is named at the endpoint."""
        key = key_of(SETTINGS)
        text = self._store.get(key).decode() if self._store.check([key]) else ""
        return read_text(LeaderAddress, text, "r", None)

    def name(self, leader: LeaderAddress) -> None:
        """Name a leader there, as one has done before."""
        self._store.set(key_of(SETTINGS), as_text(leader, "r", None))

    def announce(self, agent: Agent) -> None:
        """Announce the leader of a node from here on."""
        announcer = Announcer(
            self.loop,
            SETTINGS,
            self._endpoint,
            ThreadedStore(self.loop),
            agent.registry.side,
            questions=agent.questions,
            credentials=None,
        )
        self._stack.callback(announcer.stop)
        announcer.watch()


@pytest.fixture(scope="module", autouse=True)
def _first_store() -> None:
    """The first store of a process opens a pipe that stays."""
    torch_store.open_store(HOST, None, None)


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
    """Also one of a higher term: its address is replaced, and it is told."""
    runs, founds = place.agent("runs"), place.agent("founds")
    leader = lead(runs, 2, is_founding=False)
    place.name(lead(founds, 5, is_founding=True))
    place.announce(runs)
    serve_until(place.loop, lambda: bool(stepped_down(founds)) and place.named == leader)
    assert (stepped_down(founds), stepped_down(runs)) == ([5], [])


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
