"""What each toxic does to the bytes of a stream, in played time."""

from __future__ import annotations

import random

import pytest
from elastic_harness.toxiproxy.stream import Stream, Toxic
from elastic_harness.toxiproxy.toxics import TOXIC_TYPES, Ending, Item, Stage, slices
from hypothesis import given
from hypothesis import strategies as st


def toxic(kind: str, name: str = "", *, toxicity: float = 1.0, **attributes: int) -> Toxic:
    """Return a toxic as a server would make it: what is left out is 0."""
    return Toxic(
        name=name or kind,
        type=kind,
        stream="downstream",
        toxicity=toxicity,
        attributes={**dict.fromkeys(TOXIC_TYPES[kind].attributes, 0), **attributes},
    )


def stream(*toxics: Toxic, seed: int = 7) -> Stream:
    """Return a stream that has passed through these toxics since 0.0."""
    made = Stream(lambda name: random.Random(f"{seed}/{name}"))
    for one in toxics:
        made.add(one, 0.0)
    return made


def given_by(made: Stream, now: float) -> list[Item]:
    """Take out all that may leave by `now`."""
    items: list[Item] = []
    while (item := made.give(now)) is not None:
        items.append(item)
    return items


def timed(made: Stream, *, until: float = 1e6, now: float = 0.0) -> list[tuple[float, Item]]:
    """Take everything out, waking when the stream says so; return when what left."""
    items: list[tuple[float, Item]] = []
    for _ in range(100_000):
        items += [(now, item) for item in given_by(made, now)]
        wake_at = made.wake_at()
        if wake_at is None or wake_at > until:
            return items
        assert wake_at > now, "a stream that is due has given all it has"
        now = wake_at
    raise AssertionError("the stream does not come to rest")


def joined(items: list[tuple[float, Item]]) -> bytes:
    """Return the bytes of what left."""
    return b"".join(item for _, item in items if isinstance(item, bytes))


def test_a_stream_without_toxics_passes_everything_at_once() -> None:
    """Chunks and the end come out as they went in, and nothing waits."""
    made = stream()
    made.take(b"a", 0.0)
    assert not made.has_room
    assert given_by(made, 0.0) == [b"a"]
    made.take(Ending.END, 0.0)
    assert given_by(made, 0.0) == [Ending.END]
    assert not made.has_room


@pytest.mark.parametrize(
    ("one", "chunks", "harmed"),
    [
        (toxic("latency", latency=5), [b"a", b"b", Ending.END], 2),
        (toxic("noop"), [b"a", Ending.END], 1),
        (toxic("latency", toxicity=0.0, latency=5), [b"a"], 0),
        (toxic("slow_close", delay=5), [b"a", b"b"], 0),
        (toxic("slow_close", delay=5), [b"a", Ending.END], 1),
        (toxic("limit_data", bytes=4), [b"a", b"bc", Ending.END], 0),
        (toxic("limit_data", bytes=3), [b"a", b"bc"], 1),
        (toxic("limit_data", bytes=0), [b"a"], 1),
        (toxic("slicer", average_size=4), [b"a", b"abcd", Ending.END], 0),
        (toxic("slicer", average_size=4), [b"a", b"abcde"], 1),
        (toxic("slicer", average_size=4, size_variation=1), [b"abcde"], 0),
    ],
)
def test_a_toxic_has_something_to_do_or_not(one: Toxic, chunks: list[Item], harmed: int) -> None:
    """A limit that is not reached, and slices larger than all that is sent, harm nothing."""
    told: list[str] = []
    made = Stream(random.Random, told.append)
    made.add(toxic("latency", "before", latency=1), 0.0)
    made.add(one, 0.0)
    for chunk in chunks:
        made.take(chunk, 0.0)
        timed(made)
    assert told.count(one.name) == harmed


def test_latency_counts_from_the_arrival_of_each_chunk() -> None:
    """Chunks are under way side by side; the end follows the last of them."""
    made = stream(toxic("latency", latency=100))
    for number in range(3):
        made.take(b"x", number * 0.01)
    made.take(Ending.END, 0.02)
    times = timed(made)
    assert [time for time, _ in times] == pytest.approx([0.1, 0.11, 0.12, 0.12])
    assert times[-1][1] is Ending.END


def test_the_end_alone_is_not_late() -> None:
    """Latency delays bytes, not the close of a connection that has none under way."""
    made = stream(toxic("latency", latency=1000))
    made.take(Ending.END, 5.0)
    assert given_by(made, 5.0) == [Ending.END]


def test_two_latencies_add_up() -> None:
    """Each toxic of a chain does its part."""
    made = stream(toxic("latency", "a", latency=100), toxic("latency", "b", latency=50))
    made.take(b"x", 0.0)
    assert [time for time, _ in timed(made)] == pytest.approx([0.15])


def test_jitter_spreads_between_its_bounds_and_keeps_the_order() -> None:
    """Delays are uniform in [latency - jitter, latency + jitter), and a late chunk holds others."""
    delays = []
    for seed in range(200):
        made = stream(toxic("latency", latency=100, jitter=50), seed=seed)
        made.take(b"x", 0.0)
        delays += [time for time, _ in timed(made)]
    assert 0.05 <= min(delays) < 0.06
    assert 0.14 < max(delays) < 0.15
    made = stream(toxic("latency", latency=50, jitter=80))
    for number in range(50):
        made.take(bytes([number]), number * 0.001)
    times = timed(made)
    assert joined(times) == bytes(range(50))
    assert [time for time, _ in times] == sorted(time for time, _ in times)


@pytest.mark.parametrize("kind", ["change", "remove"])
def test_held_bytes_leave_at_once_when_a_latency_is_changed_or_removed(kind: str) -> None:
    """Nobody waits for a delay that is not there any more."""
    made = stream(toxic("latency", latency=60_000))
    made.take(b"x", 0.0)
    assert given_by(made, 1.0) == []
    if kind == "change":
        made.change(toxic("latency", latency=50_000), 1.0)
    else:
        made.remove("latency", 1.0)
    assert given_by(made, 1.0) == [b"x"]


def test_bandwidth_sends_pieces_at_its_rate() -> None:
    """A rate counts thousands of bytes a second, in pieces of a tenth of a second."""
    made = stream(toxic("bandwidth", rate=10))
    made.take(bytes(2500), 0.0)
    assert not made.has_room
    pieces = timed(made)
    assert [len(item) for _, item in pieces if isinstance(item, bytes)] == [1000, 1000, 500]
    assert [time for time, _ in pieces] == pytest.approx([0.1, 0.2, 0.25])


def test_bandwidth_gives_no_credit_for_silence_but_for_its_own_lateness() -> None:
    """Four bytes at one a millisecond take four, however long nothing came before."""
    made = stream(toxic("bandwidth", rate=1))
    made.take(b"ping", 0.0)
    assert [time for time, _ in timed(made)] == pytest.approx([0.004])
    made.take(b"ping", 0.05)
    assert made.wake_at() == pytest.approx(0.054)
    assert given_by(made, 0.0565) == [b"ping"]  # 2.5 ms late
    made.take(b"ping", 0.06)
    assert made.wake_at() == pytest.approx(0.0615)


def test_a_rate_of_nothing_keeps_the_bytes_until_it_is_removed() -> None:
    """At a rate of 0 (or less) nothing passes, nothing wakes, nothing is lost."""
    made = stream(toxic("bandwidth", rate=0))
    made.take(b"x", 0.0)
    assert timed(made) == []
    made.remove("bandwidth", 9.0)
    assert given_by(made, 9.0) == [b"x"]


def test_slow_close_delays_only_the_end() -> None:
    """Bytes pass at once; the end leaves late, or at once when the toxic is removed."""
    made = stream(toxic("slow_close", delay=1000))
    made.take(b"x", 0.0)
    assert given_by(made, 0.0) == [b"x"]
    made.take(Ending.END, 0.5)
    assert timed(made, now=0.5) == [(1.5, Ending.END)]
    removed = stream(toxic("slow_close", delay=1000))
    removed.take(Ending.END, 0.0)
    assert given_by(removed, 0.2) == []
    removed.remove("slow_close", 0.2)
    assert given_by(removed, 0.2) == [Ending.END]


def test_timeout_loses_bytes_and_closes_after_silence() -> None:
    """The clock starts with the toxic and anew with each chunk."""
    made = stream(toxic("timeout", timeout=500))
    assert made.wake_at() == pytest.approx(0.5)
    for number in range(20):
        made.take(b"lost", number * 0.1)
        assert given_by(made, number * 0.1) == []
    [(closed_at, ending)] = timed(made, now=1.9)
    assert closed_at == pytest.approx(2.4)
    assert ending is Ending.CLOSE


def test_timeout_without_a_time_never_closes_until_it_is_removed() -> None:
    """A connection that lost bytes must not go on; the sender's end passes."""
    made = stream(toxic("timeout"))
    made.take(b"lost", 0.0)
    assert timed(made) == []
    made.remove("timeout", 100.0)
    assert given_by(made, 100.0) == [Ending.CLOSE]
    ended = stream(toxic("timeout"))
    ended.take(Ending.END, 1.0)
    assert given_by(ended, 1.0) == [Ending.END]


def test_a_timeout_that_is_changed_counts_anew() -> None:
    """From 0 to 300 closes after 300, also on a connection that was mute for long."""
    made = stream(toxic("timeout"))
    made.change(toxic("timeout", timeout=300), 10.0)
    assert timed(made, now=10.0) == [(10.0 + 0.3, Ending.CLOSE)]


def test_slicer_cuts_and_pauses() -> None:
    """A chunk leaves in halves of halves, each a while after another."""
    made = stream(toxic("slicer", average_size=100, delay=10_000))
    made.take(bytes(range(256)) * 4, 0.0)
    times = timed(made)
    assert [len(item) for _, item in times if isinstance(item, bytes)] == [64] * 16
    assert joined(times) == bytes(range(256)) * 4
    assert [time for time, _ in times] == pytest.approx([0.01 * number for number in range(16)])


@given(st.binary(min_size=1), st.integers(-5, 70), st.integers(-5, 1000), st.integers(0, 99))
def test_slices_are_the_chunk_again(data: bytes, average: int, variation: int, seed: int) -> None:
    """Whatever the sizes, none is empty, none too long, and nothing is lost."""
    found = list(slices(data, average, variation, random.Random(seed)))
    assert b"".join(found) == data
    assert all(found)
    if average > 0:
        assert max(map(len, found)) <= average + max(variation, 0)
    else:
        assert found == [data]


def test_limit_data_passes_exactly_so_many_bytes() -> None:
    """The rest is lost, the connection closes; raising the limit keeps the count."""
    made = stream(toxic("limit_data", bytes=10))
    made.take(b"123456", 0.0)
    assert given_by(made, 0.0) == [b"123456"]
    made.change(toxic("limit_data", bytes=12), 0.0)
    made.take(b"7890ab cdef", 0.0)
    assert given_by(made, 0.0) == [b"7890ab", Ending.CLOSE]
    exact = stream(toxic("limit_data", bytes=3))
    exact.take(b"123", 0.0)
    assert given_by(exact, 0.0) == [b"123", Ending.CLOSE]
    none = stream(toxic("limit_data"))
    assert timed(none) == []
    none.take(b"1", 0.0)
    assert given_by(none, 0.0) == [Ending.CLOSE]


def test_reset_peer_counts_from_the_first_bytes() -> None:
    """An idle connection is not reset; removal in time lets the bytes go."""
    made = stream(toxic("reset_peer", timeout=2000))
    assert timed(made) == []
    made.take(b"x", 5.0)
    assert timed(made, now=5.0) == [(7.0, Ending.RESET)]
    spared = stream(toxic("reset_peer", timeout=2000))
    spared.take(b"x", 5.0)
    spared.remove("reset_peer", 6.0)
    assert given_by(spared, 6.0) == [b"x"]


def test_toxicity_is_drawn_once_for_each_connection() -> None:
    """Some connections are harmed and others never, whatever happens to other toxics."""
    harmed = 0
    for seed in range(400):
        made = stream(toxic("latency", latency=100, toxicity=0.25), seed=seed)
        made.take(b"x", 0.0)
        is_harmed = not given_by(made, 0.0)
        harmed += is_harmed
        made.add(toxic("noop"), 0.0)
        made.remove("noop", 0.0)
        made.change(toxic("latency", latency=200, toxicity=0.25), 0.0)
        given_by(made, 0.0)
        made.take(b"y", 0.0)
        assert (not given_by(made, 0.0)) == is_harmed
    assert 70 < harmed < 130


def test_a_toxic_spares_everybody_at_0_and_nobody_above_1() -> None:
    """Toxicity is compared with a draw in [0, 1); changing it takes hold at once."""
    made = stream(toxic("timeout", toxicity=0.0))
    made.take(b"x", 0.0)
    assert given_by(made, 0.0) == [b"x"]
    made.change(toxic("timeout", toxicity=2.0), 0.0)
    made.take(b"lost", 0.0)
    assert given_by(made, 0.0) == []
    made.change(toxic("timeout", toxicity=-1.0), 0.0)
    made.take(b"y", 0.0)
    assert given_by(made, 0.0) == [b"y"]


def test_a_stage_that_waits_for_the_next_one_does_not_ask_to_be_woken() -> None:
    """What is due but has nowhere to go is moved when there is room, not by the clock."""
    made = stream(toxic("latency", latency=10), toxic("bandwidth", rate=0))
    made.take(b"a", 0.0)
    made.take(b"b", 0.0)
    assert timed(made) == []
    made.remove("bandwidth", 1.0)
    assert given_by(made, 1.0) == [b"a", b"b"]


def test_a_slow_reader_slows_the_sender() -> None:
    """Without anybody who takes, a chain of stages takes in no more than a chunk each."""
    made = stream(
        toxic("slicer", average_size=1000), toxic("noop"), toxic("limit_data", bytes=10**9)
    )
    taken = 0
    while made.has_room:
        made.take(bytes(1000), 0.0)
        made.step(0.0)
        taken += 1
        assert taken < 10
    assert len(given_by(made, 0.0)) == taken


@given(
    st.lists(
        st.sampled_from(
            [
                toxic("latency", latency=30, jitter=20),
                toxic("bandwidth", rate=5),
                toxic("slicer", average_size=5, size_variation=2, delay=100),
                toxic("slow_close", delay=50),
                toxic("noop"),
            ]
        ),
        max_size=4,
        unique_by=lambda one: one.name,
    ),
    st.lists(st.binary(min_size=1, max_size=50), max_size=10),
    st.integers(0, 10),
)
def test_no_chain_loses_or_reorders_bytes(
    toxics: list[Toxic], chunks: list[bytes], removed_after: int
) -> None:
    """Toxics that only delay deliver everything in order, then the end, removals included."""
    made = stream(*toxics)
    now = 0.0
    out: list[tuple[float, Item]] = []
    waiting: list[Item] = [*chunks, Ending.END]
    for step in range(10_000):
        out += [(now, item) for item in given_by(made, now)]
        if step == removed_after and toxics:
            made.remove(toxics[0].name, now)
        elif waiting and made.has_room:
            made.take(waiting.pop(0), now)
        elif (wake_at := made.wake_at()) is not None:
            now = max(now, wake_at)
        elif not waiting and step > removed_after:
            break
    assert joined(out) == b"".join(chunks)
    assert out[-1][1] is Ending.END


def test_every_type_has_a_stage_that_can_be_changed_and_released() -> None:
    """No attribute of zero, and no negative one, is more than a stage can take."""
    for kind, made in TOXIC_TYPES.items():
        for value in (0, -1, 1, 2**62):
            attributes = dict.fromkeys(made.attributes, value)
            stage: Stage = made.stage(attributes, random.Random(1))
            stage.take(b"data", 0.0)
            stage.give(0.0)
            stage.change(attributes, 0.0)
            stage.take(Ending.END, 0.0)
            stage.give(0.0)
            stage.release(0.0)
            assert stage.has_room or kind in ("limit_data", "reset_peer", "timeout")
