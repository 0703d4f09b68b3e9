"""Nodes on real sockets: names, leaving, and how the own leader tells its follower."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from msgspec.structs import replace

from pytest_elastic.events import model as events
from pytest_elastic.loop import Loop
from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.consensus.records import End, founding_record
from pytest_elastic.rendezvous.settings import Settings
from tests.unit.rendezvous.driver.bench import Agent, serve_until

SETTINGS = Settings(
    run_id="r", min_nodes=1, max_nodes=1, max_restarts=0, quorum="granted", linger_s=0.0
)


@pytest.fixture
def loop() -> Iterator[Loop]:
    """Return the loop of all nodes of a test."""
    made = Loop()
    yield made
    for _ in range(20):  # what was said last is sent before a connection is closed
        made.run_once(0)
    made.close()


def test_a_node_is_known_by_the_name_that_it_was_given(loop: Loop) -> None:
    """The second of a name gets a suffix; a registry publishes what it is told is the node's."""
    settings = replace(SETTINGS, min_nodes=2, max_nodes=2)
    with ExitStack() as stack:
        first, second = (
            Agent(loop, "host", settings, incarnation=each, succeeds=False) for each in ("i1", "i2")
        )
        for agent in (first, second):
            stack.callback(agent.close)
        first.registry.names = second.registry.names = first.registry.lead(1)
        for agent in (first, second):
            agent.registry.begin()
        serve_until(loop, lambda: second.rendezvous.node.name != "host")
        assert (first.rendezvous.node.name, second.rendezvous.node.name) == ("host", "host-2")
        leads = second.registry.lead(2)
        assert (leads.name, second.rendezvous.leader) == (
            "host-2",
            replace(leads, is_founding=True),
        )


def test_a_node_that_has_left_and_is_named_resigns_at_once(loop: Loop) -> None:
    """Who names it was asked before. Else it would lead for the others without a node."""
    agent = Agent(loop, "n1", SETTINGS)
    agent.registry.begin()
    agent.rendezvous.request(ports.DrainRequested(reason="SIGTERM", grace_s=5.0))
    assert agent.results == ["drained"]
    agent.registry.lead(7)
    resigned = [e.term for e in agent.events if isinstance(e, events.CoordinatorSteppedDown)]
    assert resigned == [7]
    assert agent.registry.resigned == 1
    assert agent.close()


@pytest.mark.parametrize("quorum", ["coordinator", "granted"])
def test_who_comes_to_its_own_leader_after_the_end_is_told(loop: Loop, quorum: str) -> None:
    """That waited for nobody any more; with `quorum=coordinator` the follower waits for ever."""
    settings = replace(SETTINGS, quorum=quorum)
    leads, works = Agent(loop, "n1", settings), Agent(loop, "n2", settings)
    leads.registry.names = works.registry.names = leads.registry.lead(1)
    works.registry.begin()
    serve_until(loop, lambda: works.results == ["succeeded"])
    assert leads.results == []
    leads.registry.begin()
    serve_until(loop, lambda: leads.results == ["succeeded"])
    assert leads.close()
    works.close()


class Asking:
    """A node that has lost its leader, and asks another one that its registry does not name."""

    def __init__(self, loop: Loop) -> None:
        settings = replace(SETTINGS, quorum="majority", max_nodes=3, min_nodes=2)
        self.loop = loop
        self.asks = Agent(loop, "n1", settings)
        self.knows = Agent(loop, "n2", settings)
        self.asks.registry.begin()
        self.knows.registry.begin()

    def ask(self, incarnation: str) -> None:
        """Ask the process at the port of n2, as a follower asks its peers; wait for the answer."""
        node = self.knows.rendezvous.node
        entry = replace(node, incarnation=incarnation)
        self.asks.questions.ask_who_leads([entry])
        shown: list[v.Answered] = []
        self.asks.questions.ask(v.Ask(node=entry), shown.append)
        serve_until(self.loop, lambda: bool(shown))


@pytest.mark.parametrize(("incarnation", "results"), [("n2", ["succeeded"]), ("n0", [])])
def test_who_asks_is_told_the_decided_end_by_whom_it_meant_only(
    loop: Loop, incarnation: str, results: list[str]
) -> None:
    """Another agent behind the port of one that is lost speaks of its own job."""
    nodes = Asking(loop)
    record = founding_record([nodes.knows.rendezvous.node])
    ended = replace(record, number=2, end=End(result="succeeded", reason="all is done"))
    nodes.knows.rendezvous.tell_follower(v.EndHeard(record=ended))
    assert nodes.knows.results == ["succeeded"]
    nodes.ask(incarnation)
    assert nodes.asks.results == results
    nodes.asks.close()
    nodes.knows.close()


def test_a_host_that_gives_way_stands_no_second_time(loop: Loop) -> None:
    """Its follower would win alone, before it hears who leads."""
    settings = replace(SETTINGS, max_nodes=2, quorum="majority", last_call_s=0.0)
    host, other = (Agent(loop, name, settings, succeeds=False) for name in ("n1", "n2"))
    with ExitStack() as stack:
        for agent in (host, other):
            stack.callback(agent.close)
        host.registry.begin()
        base = founding_record([host.rendezvous.node])
        leads = replace(other.registry.lead(7), is_founding=False)
        other.registry.begin()
        serve_until(loop, lambda: any(isinstance(n, ports.StartWorkers) for n in other.notices))
        host.rendezvous.bootstrap(v.Bootstrap(base=base), "hosts the endpoint")
        host.rendezvous.hear_of(leads, otherwise=lambda: None)
        serve_until(loop, lambda: bool(host.registry.resigned))
        began = [each.term for each in host.events if isinstance(each, events.CoordinatorStarted)]
        assert began == [1]


def test_what_a_host_has_begun_to_lead_keeps_nobody_when_another_job_has_ended(loop: Loop) -> None:
    """Its follower alone has heard of that job, and was in it."""
    settings = replace(
        SETTINGS, min_nodes=2, max_nodes=2, quorum="majority", last_call_s=0.0, min_round_s=0.1
    )
    host, other = (Agent(loop, name, settings) for name in ("n1", "n2"))
    with ExitStack() as stack:
        stack.callback(other.close)
        host.registry.begin()
        base = founding_record([host.rendezvous.node])
        host.rendezvous.bootstrap(v.Bootstrap(base=base), "hosts the endpoint")
        leads = replace(other.registry.lead(7), is_founding=False)
        other.registry.begin()
        host.rendezvous.tell_follower(v.LeaderHeard(leader=leads))
        serve_until(loop, lambda: host.results == ["succeeded"])
        serve_until(loop, lambda: host.rendezvous.leader is None)
        stack.callback(host.close)
