"""What a node finds at endpoints, and the mark that a host leaves: real stores, a recorded node."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from pytest_elastic.backends.threaded_store import ThreadedStore
from pytest_elastic.config import Endpoint
from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.consensus.records import KnownJob
from pytest_elastic.rendezvous.driver.questions import Questions
from pytest_elastic.rendezvous.follower.connection import ConnectionPhase
from pytest_elastic.rendezvous.messages import LeaderAddress
from pytest_elastic.rendezvous.model import Node
from pytest_elastic.rendezvous.ports import STORE_S
from pytest_elastic.rendezvous.registries import endpoint_registry
from pytest_elastic.rendezvous.registries.endpoint_registry import EndpointRegistry
from pytest_elastic.rendezvous.registries.mark_file import MarkFile
from pytest_elastic.rendezvous.registries.registry import as_text, key_of
from tests.free_ports import free_port
from tests.unit.rendezvous.driver.bench import serve_until
from tests.unit.rendezvous.registries.bench import HOST, Stores, open_first_store
from tests.unit.rendezvous.samples import leader_address, record_of, settings_with

SETTINGS = replace(settings_with("majority"), beat_interval_s=0.1)
JOB = KnownJob(record=record_of(3, "n1"), base=record_of(3, "n1"), number=3, restarts_used=0)


@dataclass(slots=True)
class Follower:
    """What a registry asks of a node's follower."""

    connection: ConnectionPhase = ConnectionPhase.UNSTARTED
    may_move: bool = True
    has_ended: bool = False


@dataclass(slots=True)
class Side:
    """The driver of a node, and what it was told."""

    follower: Any = field(default_factory=Follower)
    told: list[v.FollowerInput] = field(default_factory=list)
    began: list[v.Bootstrap] = field(default_factory=list)
    leader: LeaderAddress | None = None
    known_job: KnownJob | None = None
    notices: list[ports.Notice] = field(default_factory=list)
    node: Node = field(
        default_factory=lambda: Node(name="n1", incarnation="n1", address=HOST, port=1, slots=1)
    )

    def tell_follower(self, given: v.FollowerInput) -> None:
        """Keep what the follower is told."""
        self.told.append(given)

    def tell_leader(self, given: v.LeaderInput) -> None:
        """No leader is here."""

    def lead(self, recovered: Any, reason: str) -> None:  # noqa: ANN401 (nothing is done with it)
        """No leader is here."""

    def look_at_place(self, then: Callable[[], None]) -> None:
        """It is where it was."""
        then()

    def bootstrap(self, given: v.Bootstrap, reason: str) -> None:
        """Keep with what it may found a job."""
        del reason
        self.began.append(given)

    def hear_of(self, leader: LeaderAddress, *, otherwise: Callable[[], None]) -> None:
        """Nothing is announced here."""

    def notify(self, notice: ports.Notice) -> None:
        """Keep what the agent is told."""
        self.notices.append(notice)


class Bench(Stores):
    """Stores, and the registries of a test."""

    def endpoint(self, *named: LeaderAddress) -> Endpoint:
        """Serve an endpoint that names a leader, or none."""
        endpoint = self.open()
        for leader in named:
            self.stores[-1].set(key_of(SETTINGS), as_text(leader, SETTINGS.run_id, None))
        return endpoint

    def registry(
        self,
        *endpoints: Endpoint,
        is_host: bool = False,
        marks: MarkFile | None = None,
        store: ThreadedStore | None = None,
    ) -> tuple[EndpointRegistry, Side]:
        """Return an open registry, and the side of its node."""
        side = Side()
        registry = EndpointRegistry(
            self.loop,
            settings=SETTINGS,
            endpoints=endpoints,
            is_host=is_host,
            store=store or ThreadedStore(self.loop),
            questions=cast("Questions", None),  # nothing is asked of agents here
            on_event=lambda _: None,
            marks=marks,
        )
        registry.open(side)
        self.stack.callback(registry.close, lambda: None)
        return registry, side


@pytest.fixture(scope="module", autouse=True)
def _first_store() -> None:
    open_first_store()


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """Return a bench on which nothing stands yet; registries wait for stores that are slow here."""
    monkeypatch.setattr(endpoint_registry, "_CHOOSE_S", 30.0)
    with ExitStack() as stack:
        yield Bench(stack)


def found(bench: Bench, *endpoints: Endpoint) -> v.LeaderFound | v.LeaderNotFound:
    """Return what a node is told of endpoints at which it looks."""
    registry, side = bench.registry(*endpoints)
    side.told.clear()
    registry.find(1.0)
    serve_until(bench.loop, lambda: bool(side.told))
    (told,) = side.told
    assert isinstance(told, v.LeaderFound | v.LeaderNotFound)
    return told


def test_of_several_endpoints_the_leader_of_a_job_that_runs_is_found(bench: Bench) -> None:
    """However many name another one first, whatever their terms are."""
    runs = leader_address("n3", 2)
    founders = [leader_address(name, 9, is_founding=True) for name in ("n1", "n2")]
    places = [bench.endpoint(each) for each in (founders[0], runs, founders[1])]
    assert found(bench, *places) == v.LeaderFound(leader=runs)
    assert found(bench, *reversed(places)) == v.LeaderFound(leader=runs)


def test_of_founders_that_of_the_highest_term_is_found(bench: Bench) -> None:
    """The others are to give way to it; one endpoint names no leader."""
    low, high = (leader_address(f"n{each}", each, is_founding=True) for each in (3, 9))
    places = [bench.endpoint(low), bench.endpoint(high), bench.endpoint()]
    assert found(bench, *places) == v.LeaderFound(leader=high)
    assert found(bench, *reversed(places)) == v.LeaderFound(leader=high)


def test_this_node_s_own_leader_is_known_as_such(bench: Bench) -> None:
    """Its follower dials nothing then."""
    own = leader_address("n1", 3)
    assert found(bench, bench.endpoint(own)) == v.LeaderFound(leader=own)


def test_endpoints_that_name_no_leader_say_why(bench: Bench) -> None:
    """Each of them: nothing stands at one, and one is another job's."""
    empty, other = bench.endpoint(), bench.endpoint()
    bench.stores[-1].set("pytest-elastic/run", "another")
    told = found(bench, empty, other)
    while isinstance(told, v.LeaderNotFound) and "no store answered" in told.reason:
        told = found(bench, empty, other)  # on a busy machine, as a node asks again
    assert isinstance(told, v.LeaderNotFound)
    assert f"{empty}: no node has begun the job there" in told.reason
    assert f"the store at {other} is that of run 'another'" in told.reason


def hosting(bench: Bench, folder: Path) -> tuple[EndpointRegistry, Side, MarkFile]:
    """Return the registry of a host, which is in a job; its mark is in a folder."""
    endpoint = Endpoint(host=HOST, port=free_port())
    marks = MarkFile(lambda: str(folder), SETTINGS.run_id, str(endpoint))
    registry, side = bench.registry(endpoint, is_host=True, marks=marks)
    serve_until(bench.loop, lambda: bool(side.began))
    side.known_job = JOB
    side.follower.connection = ConnectionPhase.JOINED
    return registry, side, marks


def test_a_host_whose_store_was_lost_serves_it_again(bench: Bench) -> None:
    """As soon as its port is free; it says whose store it is, also if it is lost twice."""
    endpoint, store = Endpoint(host=HOST, port=free_port()), ThreadedStore(bench.loop)
    _, side = bench.registry(endpoint, is_host=True, store=store)
    serve_until(bench.loop, lambda: bool(side.began))
    owner: list[str] = []

    def is_served() -> bool:
        store.swap(endpoint, "pytest-elastic/run", "", None, lambda text, _: owner.append(text))
        bench.loop.run_once(0.05)
        return SETTINGS.run_id in owner

    for _ in range(2):
        serve_until(bench.loop, is_served)
        store._hosted.clear()  # with that process it is gone
        with socket.create_server((HOST, endpoint.port)):
            assert store.on_lost is not None
            store.on_lost()
            since = bench.loop.now()
            serve_until(bench.loop, lambda s=since: bench.loop.now() > s + 0.3)  # type: ignore[misc]
        owner.clear()
    serve_until(bench.loop, is_served)
    assert len(side.began) == 1, "it is the same job"


def test_a_leader_is_published_once_its_store_is_served_again(bench: Bench) -> None:
    """It began while the store was lost with its process: no job ends for that."""
    endpoint, store = Endpoint(host=HOST, port=free_port()), ThreadedStore(bench.loop)
    registry, side = bench.registry(endpoint, is_host=True, store=store)
    serve_until(bench.loop, lambda: bool(side.began))
    store._hosted.clear()  # with that process it is gone
    side.leader, errors, named, swap = leader_address("n1", 3), [], [], store.swap

    def swap_and_tell(
        at: Endpoint,
        key: str,
        expected: str,
        value: str | None,
        on_done: Callable[[str, str], None],
        *,
        timeout_s: float = STORE_S,
    ) -> None:
        def tell(text: str, error: str) -> None:
            errors.append(error)
            on_done(text, error)

        swap(at, key, expected, value, tell, timeout_s=timeout_s)

    def is_named() -> bool:
        swap(endpoint, key_of(SETTINGS), "", None, lambda text, _: named.append(text))
        bench.loop.run_once(0.05)
        return as_text(side.leader, SETTINGS.run_id, None) in named

    store.swap = swap_and_tell  # type: ignore[assignment, method-assign]
    registry.announce(())
    serve_until(bench.loop, lambda: bool(errors))
    assert "Connection refused" in errors[0]
    assert store.on_lost is not None
    store.on_lost()
    serve_until(bench.loop, is_named)
    assert side.notices == []


def renewed_at(marks: MarkFile) -> float:
    """Return when a mark was renewed, 0 for none."""
    mark = marks.read()
    return 0.0 if mark is None else mark.renewed_at


def test_a_host_renews_its_mark_once_a_beat_while_it_is_in_contact(
    bench: Bench, tmp_path: Path
) -> None:
    """The next agent on this machine counts from then on how long it waits for the others."""
    _, side, marks = hosting(bench, tmp_path / "marks")
    assert side.began[0].mark is None
    serve_until(bench.loop, lambda: renewed_at(marks) > 0)
    first = renewed_at(marks)
    serve_until(bench.loop, lambda: renewed_at(marks) > first)
    side.follower.connection = ConnectionPhase.RESTING
    serve_until(bench.loop, lambda: marks.wait(1.0))
    last, since = renewed_at(marks), bench.loop.now()
    serve_until(bench.loop, lambda: bench.loop.now() > since + 3 * SETTINGS.beat_interval_s)
    assert renewed_at(marks) == last


@pytest.mark.parametrize("has_ended", [False, True])
def test_a_mark_goes_with_the_end_of_its_job_only(
    bench: Bench, tmp_path: Path, *, has_ended: bool
) -> None:
    """A host that is stopped may come back to a job that goes on."""
    registry, side, marks = hosting(bench, tmp_path / "marks")
    serve_until(bench.loop, lambda: renewed_at(marks) > 0)
    side.follower.has_ended = has_ended
    registry.close(lambda: None)
    assert marks.wait(60.0)
    assert (renewed_at(marks) == 0) is has_ended
