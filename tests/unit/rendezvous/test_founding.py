"""How one of several hosts of endpoints founds a job, and never two of them."""

from __future__ import annotations

import heapq
from collections.abc import Callable

import pytest

from pytest_elastic.events.model import EndpointsReached
from pytest_elastic.rendezvous import founding_vocabulary as f
from pytest_elastic.rendezvous.founding import FoundingMachine, announced_within_s
from pytest_elastic.rendezvous.messages import Place
from pytest_elastic.rendezvous.model import Settings
from pytest_elastic.rendezvous.records import as_text, read_record
from pytest_elastic.rendezvous.vocabulary import Emit, TimePassed

SETTINGS = Settings(run_id="r", min_nodes=2, max_nodes=4, max_restarts=0, quorum="majority")
NAMES = ("a:1", "b:1", "c:1")
WAIT_S = announced_within_s(SETTINGS)
_DELAY_S = 0.002


class Field:
    """Stores, and founders that swap what they hold; each store is up with its host."""

    def __init__(self, names: tuple[str, ...] = NAMES) -> None:
        self.names = names
        self.time = 0.0
        self.stores: dict[int, str] = {}
        self.cut: set[tuple[int, int]] = set()  # (rank of a founder, endpoint)
        self.founders: dict[int, FoundingMachine] = {}
        self.coordinates: set[int] = set()
        self.founded: list[int] = []
        self.yields: list[tuple[int, str]] = []
        self.reached: dict[int, EndpointsReached] = {}
        self._incarnations = 0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def host(self, rank: int) -> None:
        """Start the host of an endpoint, with an empty store."""
        self._incarnations += 1
        self.stores[rank] = ""
        place = Place(
            term=1, name=f"n{rank}", incarnation=str(self._incarnations), address="x", port=1
        )
        machine = FoundingMachine(
            settings=SETTINGS, place=place, rank=rank, names=self.names, now=self.time
        )
        self.founders[rank] = machine
        self.coordinates.discard(rank)
        self._step(rank, machine, TimePassed())

    def lose(self, rank: int) -> None:
        """Let a host be gone, and its store with it."""
        self.stores.pop(rank, None)
        self.founders.pop(rank, None)
        self.coordinates.discard(rank)

    def announce(self, endpoint: int, term: int = 2) -> None:
        """Let the survivors of a job write down where it is."""
        place = Place(term=term, name="old", incarnation="old", address="y", port=2)
        self.stores[endpoint] = as_text(place, "r", None)

    def want(self, rank: int, for_s: float = 60.0) -> None:
        """Have enough nodes for so long."""
        machine = self.founders[rank]
        until = self.time + for_s

        def say() -> None:
            if self.time < until and rank in self.coordinates:
                self._step(rank, machine, f.Wanted())
                self._later(SETTINGS.beat_interval_s, say)

        say()

    def does(self, rank: int, stage: f.Stage) -> bool:
        """Tell whether a founder is at this stage."""
        return self.founders[rank].stage is stage

    def join(self, rank: int) -> None:
        """Be in a job."""
        self._step(rank, self.founders[rank], f.Joined())

    def run(self, seconds: float) -> None:
        """Let time pass."""
        end = self.time + seconds
        while self._queue and self._queue[0][0] <= end:
            self.time, _, act = heapq.heappop(self._queue)
            act()
        self.time = end

    def _later(self, delay_s: float, act: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._queue, (self.time + delay_s, self._count, act))

    def _step(self, rank: int, machine: FoundingMachine, given: f.FoundingInput) -> None:
        if self.founders.get(rank) is not machine:
            return
        for command in machine.step(given, self.time):
            match command:
                case f.Look() | f.Swap():
                    self._ask(rank, machine, command)
                case f.Begin():
                    self.coordinates.add(rank)
                case f.Yield(reason=reason):
                    self.coordinates.discard(rank)
                    self.yields.append((rank, reason))
                case f.Founded():
                    self.founded.append(rank)
                case Emit(event=EndpointsReached() as event):
                    self.reached[rank] = event
        wake_at = machine.wake_at()
        if wake_at is not None:
            self._later(
                max(wake_at - self.time, 1e-6), lambda: self._step(rank, machine, TimePassed())
            )

    def _ask(self, rank: int, machine: FoundingMachine, command: f.Look | f.Swap) -> None:
        endpoint = command.endpoint

        def answer() -> None:
            delay_s = _DELAY_S
            if endpoint not in self.stores:
                given = f.Answered(endpoint=endpoint, error="Connection refused")
            elif (rank, endpoint) in self.cut:
                given = f.Answered(endpoint=endpoint, error="no answer")
                delay_s = f.ANSWER_WITHIN_S
            else:
                text = self._swap(command)
                given = f.Answered(
                    endpoint=endpoint, text=text, record=read_record(text, "r", None)
                )
            self._later(delay_s, lambda: self._step(rank, machine, given))

        self._later(_DELAY_S, answer)

    def _swap(self, command: f.Look | f.Swap) -> str:
        if isinstance(command, f.Swap) and self.stores[command.endpoint] == command.expected:
            self.stores[command.endpoint] = "released"
            if command.record is not None:
                self.stores[command.endpoint] = text_of(command.record)
        return self.stores[command.endpoint]


def text_of(record: f.Record) -> str:
    """Return a record as stores hold it."""
    return as_text(record.place, "r", None, claim=record.claim)


@pytest.fixture
def field() -> Field:
    """Return a field with three endpoints, and nobody there yet."""
    return Field()


def test_the_job_is_founded_at_once_when_all_endpoints_are_there(field: Field) -> None:
    """A cold start with every host waits for nothing but swaps of a store."""
    for rank in (2, 1, 0):
        field.host(rank)
        field.run(0.3)
    assert field.coordinates == {1}, "the first that had a majority stays the one"
    field.want(1)
    field.run(0.05)
    assert field.founded == [1]


def test_of_hosts_that_start_together_the_first_in_the_list_is_the_one(field: Field) -> None:
    """Nobody has a majority yet: then the order of the list decides."""
    for rank in (2, 1, 0):
        field.host(rank)
    field.run(0.5)
    assert field.coordinates == {0}
    field.want(0)
    field.run(0.05)
    assert field.founded == [0]


def test_a_minority_begins_nothing(field: Field) -> None:
    """One of three endpoints is no majority, whatever is asked for and however long."""
    field.host(0)
    field.want(0)
    field.run(60.0)
    assert field.coordinates == set()
    assert field.founded == []
    event = field.reached[0]
    assert tuple(event.reached) == ("a:1",)
    assert event.missing == {"b:1": "Connection refused", "c:1": "Connection refused"}


def test_without_one_endpoint_a_majority_waits_until_a_running_job_had_been_announced(
    field: Field,
) -> None:
    """The one that is missing might know of one, and the two that are there have just started."""
    field.host(1)
    field.host(2)
    field.run(1.0)
    field.want(1)
    field.run(WAIT_S - 1.5)
    assert field.founded == []
    field.run(1.0)
    assert field.founded == [1]


def test_a_job_that_is_announced_while_one_waits_is_joined(field: Field) -> None:
    """Two of three hosts came back at once, and the survivors find them."""
    field.host(1)
    field.host(2)
    field.run(0.5)
    field.want(1)
    field.run(WAIT_S / 2)
    field.announce(2)
    field.run(WAIT_S)
    assert field.founded == []
    assert field.coordinates == set()
    assert [stage.stage for stage in field.founders.values()] == [f.Stage.LOOKING] * 2
    assert field.yields[0] == (1, "the job is there already: old decides, under term 2")


def test_a_host_that_comes_back_finds_the_job_at_another_endpoint(field: Field) -> None:
    """Its own store has forgotten everything."""
    field.host(1)
    field.host(2)
    field.announce(1)
    field.announce(2)
    field.host(0)
    field.run(0.5)
    assert field.coordinates == set()
    assert field.does(0, f.Stage.LOOKING)
    field.join(0)
    assert field.does(0, f.Stage.OVER)


def test_a_job_that_is_gone_with_the_endpoint_that_told_of_it_is_begun_anew(field: Field) -> None:
    """Its hosts were started again while one of the old ones still stayed for those who ask."""
    field.host(2)
    field.announce(2, term=1)
    field.host(0)
    field.host(1)
    field.run(2.0)
    field.want(0)
    assert field.coordinates == set()
    field.lose(2)
    field.run(SETTINGS.lease_s + 2 * SETTINGS.beat_interval_s)
    assert field.coordinates == {0}
    field.want(0)
    field.run(WAIT_S + 2.0)
    assert field.founded == [0]


def test_who_has_seen_a_job_leaves_its_survivors_time_though_all_endpoints_are_free(
    field: Field,
) -> None:
    """All three hosts were started again, one after the other; of the last one there is a store."""
    for rank in (0, 1, 2):
        field.host(rank)
        field.announce(rank, term=1)
    field.run(0.5)
    for rank in (0, 1):
        field.lose(rank)
        field.host(rank)
    field.run(2.0)
    field.lose(2)
    field.stores[2] = ""
    field.run(2.0)
    assert field.coordinates == {0}
    field.want(0)
    field.run(WAIT_S - 3.0)
    assert field.founded == []
    field.run(4.0)
    assert field.founded == [0]


def test_what_was_held_before_a_job_was_seen_vouches_for_nothing(field: Field) -> None:
    """One of two endpoints is told of a job, and started again a moment later."""
    field.host(0)
    field.host(1)
    field.run(WAIT_S + 2.0)
    field.stores[2] = ""
    field.announce(2)
    while field.does(0, f.Stage.CLAIMING):
        field.run(_DELAY_S / 2)
    field.stores[2] = ""
    field.run(2.0)
    (host,) = field.coordinates
    field.want(host)
    field.run(WAIT_S - 4.0)
    assert field.founded == []
    field.run(8.0)
    assert field.founded == [host]


def test_a_job_is_not_founded_once_its_nodes_are_too_few_again(field: Field) -> None:
    """What is final would keep everybody else from it, and nothing would come of it."""
    field.host(0)
    field.host(1)
    field.run(0.5)
    field.want(0, for_s=1.0)
    field.run(WAIT_S + 5.0)
    assert field.founded == []
    field.want(0)
    field.run(1.0)
    assert field.founded == [0]


def test_a_job_that_appears_while_claims_are_made_final_is_not_founded_again(field: Field) -> None:
    """What was final already is given back."""
    field.host(0)
    field.host(1)
    field.run(0.5)
    field.want(0)
    while field.does(0, f.Stage.CLAIMING):
        field.run(_DELAY_S / 2)
    assert field.does(0, f.Stage.FOUNDING)
    field.announce(1)
    field.run(2.0)
    assert field.founded == []
    assert field.does(0, f.Stage.LOOKING)
    assert field.stores[0] == "released"


def test_who_founds_is_followed_by_another_if_it_is_lost_before(field: Field) -> None:
    """Its claims are renewed by nobody; a lease later they are free."""
    for rank in (0, 1, 2):
        field.host(rank)
    field.run(0.5)
    assert field.coordinates == {0}
    field.lose(0)
    field.run(SETTINGS.lease_s + 2 * SETTINGS.beat_interval_s)
    assert field.coordinates == {1}
    field.want(1)
    field.run(WAIT_S + 2.0)
    assert field.founded == [1]


def test_what_a_lost_founder_had_made_final_at_a_minority_holds_nobody_up(field: Field) -> None:
    """One of three is taken for good; the other two are a majority."""
    for rank in (0, 1, 2):
        field.host(rank)
    field.run(0.5)
    field.cut = {(0, 0), (0, 2)}
    field.want(0)
    field.run(0.02)
    assert field.founded == []
    field.lose(0)
    field.host(0)
    field.run(SETTINGS.lease_s + 2.0)
    (rank,) = field.coordinates
    field.want(rank)
    field.run(WAIT_S + 5.0)
    assert field.founded == [rank]


def test_a_founder_that_loses_its_majority_before_it_has_founded_gives_way(field: Field) -> None:
    """It is cut off from the two others, which go on without it."""
    for rank in (0, 1, 2):
        field.host(rank)
    field.run(0.5)
    field.cut = {(0, 1), (0, 2), (1, 0), (2, 0)}
    field.run(2 * SETTINGS.lease_s + 2.0)
    assert field.coordinates == {1}
    field.want(1)
    field.run(WAIT_S + 2.0)
    assert field.founded == [1]
    field.cut = set()
    field.run(2.0)
    assert field.coordinates == {1}


@pytest.mark.parametrize("first", range(3))
def test_two_that_reach_different_majorities_agree_at_the_one_they_share(first: int) -> None:
    """0 reaches a and b, 2 reaches b and c; both have all the nodes they need."""
    field = Field()
    field.cut = {(0, 2), (2, 0)}
    for rank in sorted(range(3), key=lambda each: each != first):
        field.host(rank)
        field.run(0.01)
    for _ in range(60):
        field.run(0.5)
        for rank in list(field.coordinates):
            field.want(rank)
    assert len(field.founded) == 1


def test_two_endpoints_are_both_needed(field: Field) -> None:
    """Half is no majority."""
    field = Field(("a:1", "b:1"))
    field.host(0)
    field.run(30.0)
    assert field.coordinates == set()
    field.host(1)
    field.run(2.0)
    (rank,) = field.coordinates
    field.want(rank)
    field.run(0.1)
    assert field.founded == [rank]
