"""A key outside as the only voter: who holds it leads, and what is written there is decided."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_elastic.loop import Timer
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.consensus.records import End, KnownJob, Record
from pytest_elastic.rendezvous.consensus.replication import Recovered
from pytest_elastic.rendezvous.messages import LeaderAddress
from pytest_elastic.rendezvous.model import Node
from pytest_elastic.rendezvous.registries.key_holder import KeyHolder
from pytest_elastic.rendezvous.registries.registry import as_text, read_text
from pytest_elastic.rendezvous.settings import Settings
from tests.unit.rendezvous.samples import decided, leader_address, record_of, settings_with

SETTINGS = settings_with("granted")


def text_of(value: object) -> str:
    """Return a value as it is written down."""
    return as_text(value, SETTINGS.run_id, None)


def written(record: Record) -> v.WriteRecord:
    """Return the order to write a record down."""
    return v.WriteRecord(record=record, decided=decided(record))


FIRST = record_of(1, "n2", "n3", counter=5, node="n2")
SECOND = replace(FIRST, number=2, round=2)
END = replace(FIRST, number=2, end=End(result="succeeded", reason="x"))


class Bench:
    """The key holder of n1, the calls that it made and what its machines were told."""

    def __init__(self, settings: Settings = SETTINGS) -> None:
        self.time = 100.0
        self.calls: list[tuple[str, Mapping[str, Any], Callable[[Any, str], None]]] = []
        self.timers: list[Callable[[], None]] = []
        self.rings_at: list[float] = []
        self.follower: list[v.FollowerInput] = []
        self.leader: list[v.LeaderInput] = []
        self.led: list[Recovered] = []
        self.known_job: KnownJob | None = None
        self.node = Node(name="n1", incarnation="n1", address="n1", port=1, slots=1)
        self.holder = KeyHolder(self, self, settings)

    # What the holder stands in.

    def now(self) -> float:
        """Return the time."""
        return self.time

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer | None:
        """Keep what is to be called."""
        self.rings_at.append(when)
        self.timers.append(callback)
        return None

    def ask(
        self,
        call: str,
        arguments: Mapping[str, Any],
        *,
        timeout_s: float,
        on_done: Callable[[Any, str], None],
    ) -> None:
        """Keep a call."""
        del timeout_s
        self.calls.append((call, arguments, on_done))

    def tell_follower(self, given: v.FollowerInput) -> None:
        """Keep what the follower is told."""
        self.follower.append(given)

    def tell_leader(self, given: v.LeaderInput) -> None:
        """Keep what the leader is told."""
        self.leader.append(given)

    def lead(self, recovered: Recovered, reason: str) -> None:
        """Keep what a leader begins with."""
        del reason
        self.led.append(recovered)

    # What a test does.

    def answer(self, found: Any, error: str = "") -> str:  # noqa: ANN401 (JSON)
        """Answer the oldest call; return which it was."""
        call, _, on_done = self.calls.pop(0)
        on_done(found, error)
        return call

    def find(self, *, is_won: bool, record: str = "", ending: str = "", **found: Any) -> None:  # noqa: ANN401
        """Look who leads, and be told; the key names n1 where it is won, and n2 else."""
        self.holder.find(1.0)
        value = self.calls[0][1]["value"] if is_won else text_of(leader_address("n2", 5))
        known = {"is_won": is_won, "value": value, "record": record, "ending": ending}
        self.answer({**known, "create_revision": 6, "lease": 1, "ttl_s": 6, **found})


def test_who_wins_the_key_goes_on_with_what_is_written_there() -> None:
    """Under a term above all that were there; its lease is that of the key, less the drift."""
    bench = Bench()
    bench.find(is_won=True, record=text_of(written(FIRST)))
    (recovered,) = bench.led
    assert (recovered.base, recovered.record) == (FIRST, FIRST)
    assert recovered.started == decided(FIRST)
    assert (recovered.term.counter, recovered.term.node) == (6, "n1")
    assert recovered.granted_until == 100.0 + 6 - SETTINGS.drift_s
    assert isinstance(bench.follower[-1], v.LeaderFound)


def test_who_looks_for_the_key_does_not_look_a_second_time_meanwhile() -> None:
    """It would win the key anew, and give that back as the leader of the first one ends."""
    bench = Bench()
    bench.holder.find(1.0)
    bench.holder.find(1.0)
    assert len(bench.calls) == 1
    bench.answer(None, "timeout")
    bench.holder.find(1.0)
    assert len(bench.calls) == 1


def test_a_key_that_is_given_back_at_once_is_not_renewed() -> None:
    """A node that leaves is led to hand over as soon as it is elected."""
    bench = Bench()

    def lead(recovered: Recovered, reason: str) -> None:
        del recovered, reason
        bench.holder.resign()

    bench.lead = lead  # type: ignore[method-assign]
    bench.find(is_won=True)
    assert bench.answer(None) == "resign"
    (renew,) = bench.timers
    renew()
    assert not bench.calls


@pytest.mark.parametrize("record", ["", "7", "{}", "garbage"])
def test_who_finds_nothing_of_ours_there_begins_a_job(record: str) -> None:
    """Whatever it is."""
    bench = Bench()
    bench.find(is_won=True, record=record)
    (recovered,) = bench.led
    assert recovered.record.number == 0


def test_a_key_that_took_longer_than_its_lease_names_nobody() -> None:
    """It may be another's by now."""
    bench = Bench()
    bench.holder.find(1.0)
    value = bench.calls[0][1]["value"]
    bench.time += 6.0
    found = {"is_won": True, "value": value, "record": "", "ending": "", "create_revision": 6}
    bench.answer({**found, "lease": 1, "ttl_s": 6})
    assert not bench.led
    assert isinstance(bench.follower[-1], v.LeaderNotFound)


def test_a_record_is_written_until_that_is_known_and_never_over_a_newer_one() -> None:
    """A call that failed may have been carried out."""
    bench = Bench()
    bench.find(is_won=True)
    bench.timers.clear()
    bench.holder.write(written(FIRST))
    assert bench.answer(None, "timeout") == "record"
    (retry,) = bench.timers
    retry()
    bench.holder.write(written(SECOND))
    assert bench.answer(None, "timeout") == "record"
    bench.timers.pop()()
    assert len(bench.calls) == 1, "the first one was given up"
    assert bench.answer(True) == "record"
    assert bench.leader == [v.RecordWritten(number=2)]


def test_a_leader_whose_key_is_another_s_leads_no_more() -> None:
    """What it wanted to write is not written."""
    bench = Bench()
    bench.find(is_won=True)
    bench.holder.write(written(FIRST))
    bench.answer(False)
    assert bench.leader == [v.LeaseExtended(until=bench.time)]


def test_what_comes_after_the_key_was_given_back_is_not_heard() -> None:
    """Neither that a record is written, nor that the lease was extended."""
    bench = Bench()
    bench.find(is_won=True)
    bench.holder.write(written(FIRST))
    (renew,) = bench.timers
    renew()
    bench.holder.resign()
    bench.answer(True)
    bench.answer(6)
    assert not bench.leader
    assert bench.answer(None) == "resign"


def test_the_end_that_is_written_there_is_heard_by_who_was_in_that_job() -> None:
    """A new node begins another job; one that was told of a later leader is in another, too."""
    ending = text_of(written(END))
    new = Bench()
    new.find(is_won=True, ending=ending)
    assert len(new.led) == 1
    member = Bench()
    member.find(is_won=False, create_revision=5)
    member.find(is_won=True, ending=ending)
    assert member.answer(None) == "resign"
    assert member.follower[-1] == v.EndHeard(record=END)
    assert not member.led
    later = Bench()
    later.find(is_won=False, create_revision=6)
    later.find(is_won=True, ending=ending)
    assert len(later.led) == 1


def test_its_own_name_from_before_is_no_leader() -> None:
    """The lease of the key runs out; nobody here leads."""
    bench = Bench()
    own = text_of(leader_address("n1", 5))
    bench.find(is_won=False, value=own)
    assert isinstance(bench.follower[-1], v.LeaderNotFound)


@pytest.mark.parametrize(("lease_s", "ttl_s"), [(5.0, 6), (1.5, 2), (1.2, 2), (6.0, 7)])
def test_a_key_is_asked_for_as_long_as_a_lease_and_the_drift(lease_s: float, ttl_s: int) -> None:
    """In whole seconds, which etcd counts in, and for two at least."""
    bench = Bench(replace(SETTINGS, beat_interval_s=0.3, lease_s=lease_s, drift_s=0.5))
    bench.find(is_won=True, ttl_s=ttl_s)
    bench.holder.find(1.0)
    assert bench.calls[0][1]["ttl_s"] == ttl_s
    assert bench.rings_at == [bench.time + ttl_s / 4], "then it is renewed"


def renewed(found: object, error: str = "") -> Bench:
    """Return a holder whose key was to be renewed at 102; the answer came a second later."""
    bench = Bench()
    bench.find(is_won=True)
    bench.time = 102.0
    bench.timers.pop()()
    bench.rings_at.clear()
    bench.time = 103.0
    assert bench.answer(found, error) == "renew"
    return bench


def test_a_renewed_key_extends_the_lease_from_when_that_was_asked_for() -> None:
    """Less the drift: another may be named once the key is gone, by a clock that is fast."""
    bench = renewed(6)
    assert bench.leader == [v.LeaseExtended(until=102.0 + 6 - SETTINGS.drift_s)]
    assert bench.rings_at == [102.0 + 6 / 4]


def test_a_key_that_is_gone_ends_the_lease() -> None:
    """It may have been another's since before it was asked for."""
    assert renewed(0).leader == [v.LeaseExtended(until=102.0)]


def test_a_key_that_could_not_be_renewed_is_asked_for_again_soon() -> None:
    """The lease stands as it was."""
    bench = renewed(None, "timeout")
    assert (bench.leader, bench.rings_at) == ([], [103.0 + 0.2])
    bench.timers.pop()()
    assert bench.answer(6) == "renew"


def test_an_end_stays_until_a_member_that_is_cut_off_has_given_up() -> None:
    """By the slowest clock, and for another question: 671 s with the default settings."""
    bench = Bench()
    bench.find(is_won=True)
    bench.holder.write(written(END))
    assert bench.calls[0][1]["end_ttl_s"] == 671
    assert bench.calls[0][1]["ending"] == text_of(written(END))
    assert bench.answer(True) == "conclude"
    assert bench.leader == [v.RecordWritten(number=2)]


def test_terms_rise_though_the_data_of_the_service_is_lost() -> None:
    """Its revisions begin at 1 again; what the key holds then says under which term at least."""
    bench = Bench()
    bench.find(is_won=False, create_revision=9)
    bench.holder.find(1.0)
    value = bench.calls[0][1]["value"]
    asked = read_text(LeaderAddress, value, SETTINGS.run_id, None)
    assert asked is not None
    assert asked.term.counter == 10
    found = {"is_won": True, "value": value, "record": "", "ending": "", "create_revision": 1}
    bench.answer({**found, "lease": 1, "ttl_s": 6})
    assert bench.led[0].term.counter == 10


@pytest.mark.parametrize("record", ["", text_of(written(FIRST))], ids=["lost", "put back"])
def test_a_node_that_knows_more_than_what_is_written_goes_on_with_that(record: str) -> None:
    """All that is decided was written: the data was lost, or an older record was put back."""
    bench = Bench()
    bench.known_job = KnownJob(record=SECOND, base=SECOND, number=2, restarts_used=1)
    bench.find(is_won=True, record=record)
    (recovered,) = bench.led
    assert (recovered.base, recovered.record, recovered.number) == (SECOND, SECOND, 2)
    assert recovered.started is None  # whether that round was started, nobody says
    assert recovered.lost == "n2"
    bench = Bench()
    bench.known_job = KnownJob(record=SECOND, base=FIRST, number=2, restarts_used=1)
    bench.find(is_won=True, record=text_of(written(FIRST)))
    (recovered,) = bench.led
    assert (recovered.base, recovered.started) == (FIRST, decided(FIRST))


def test_what_is_no_leader_s_address_is_quoted() -> None:
    """With where it stands."""
    bench = Bench()
    bench.find(is_won=False, value="something else")
    (told,) = bench.follower
    assert isinstance(told, v.LeaderNotFound)
    assert "what stands in the key names no leader of a job, it is 'something else'" in told.reason


def test_the_leader_is_found_again_while_its_job_goes_on() -> None:
    """No end is written there."""
    bench = Bench()
    for _ in range(2):
        bench.find(is_won=False)
    assert [type(each) for each in bench.follower] == [v.LeaderFound, v.LeaderFound]
