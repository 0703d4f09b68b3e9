"""A clock that is wrong on a node: proven by a worker that was asked for the time."""

from __future__ import annotations

from pathlib import Path

import pytest
from elastic_harness.cluster.node import faketime
from elastic_harness.faults.registry import built_in_faults

from tests.unit.faults.bench import World

HINT = "(pip install libfaketime has one that works)"


def test_a_wrong_clock_is_proven_by_a_worker_that_tells_the_time() -> None:
    """Not by what was asked for: until the library has looked, the time is still right."""
    world = World()
    world.fire("clock_skew", {"node": "n2", "by": "-2m"})
    assert world.cluster.clock.offsets == {"clock of n2": -120.0}
    world.answer(1, "tell_time", "ended", "1000.1")
    world.pass_time(1)
    assert world.story == ["in force, needs job"]
    world.answer(1, "tell_time", "ended", "880.1")
    world.pass_time(1)
    assert world.story[-1] == "proved: rank 1 (n2, pid 1002) wrong by -120s"
    world.heal()
    world.heal()
    world.pass_time(1)
    assert world.cluster.clock.offsets == {}
    assert world.story[-1].startswith("proved"), "the worker has not looked yet"
    world.answer(1, "tell_time", "ended", "1000.1")
    world.pass_time(0.2)
    assert world.story[-1] == "undone"


@pytest.mark.parametrize("ends", [True, False])
def test_a_clock_that_nobody_tells_of_is_given_back_all_the_same(*, ends: bool) -> None:
    """The worker has ended, or takes no step: it is waited for no longer than a clock is late."""
    world = World()
    world.fire("clock_skew", {"node": "n2", "by": "20s"})
    world.answer(1, "tell_time", "ended", "1020.0")
    world.pass_time(1)
    world.processes[1002].answers.clear()
    if ends:
        world.end(1)
    world.heal()
    world.pass_time(0.1 if ends else 3.1)
    assert world.story[-1] == "undone"


def test_a_node_with_two_skews_is_wrong_by_both() -> None:
    """As its workers see it."""
    world = World()
    world.fire("clock_skew", {"node": "n2", "by": "-2m"})
    world.fire("clock_skew", {"node": "n2", "by": "20s"}, entry_id="y")
    world.answer(1, "tell_time", "ended", "900.0")
    world.pass_time(1)
    assert world.story[-1] == "proved: rank 1 (n2, pid 1002) wrong by -100s"


def test_a_clock_that_stays_right_was_not_skewed() -> None:
    """A program that does not ask through the C library, for example."""
    world = World()
    world.fire("clock_skew", {"node": "n2", "by": "20s"})
    for _ in range(70):
        world.answer(1, "tell_time", "ended", "1000.0")
        world.pass_time(0.5)
    assert world.story[-1].endswith("is 0.0 s off, and not 20 s")


def test_a_skew_survives_the_way_through_a_plan() -> None:
    """Ahead and behind."""
    for text in ("20s", "-120s"):
        fault = built_in_faults().parse("clock_skew", {"node": "n1", "by": text})
        assert fault.describe()["by"] == text


def test_a_library_that_does_not_work_is_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each is tried: a file that is not there, and one that is no library."""
    library = tmp_path / "libfaketimeMT.so.1"
    monkeypatch.setenv(faketime.VARIABLE, str(library))
    find = faketime.find_libfaketime.__wrapped__
    assert find() == (None, f"{library}: there is no such file {HINT}")
    library.touch()
    found, why = find()
    assert found is None
    assert "it does not change the time of day" in why


def test_a_library_with_which_waiting_threads_take_a_processor_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As one did until it was told that the steady clock is not to be changed."""
    monkeypatch.delenv(faketime.VARIABLE, raising=False)
    find = faketime.find_libfaketime.__wrapped__
    library, why = find()
    assert library is not None, why
    told = faketime.faketime_environ
    wrong = {"FAKETIME_FORCE_MONOTONIC_FIX": "1"}
    monkeypatch.setattr(faketime, "faketime_environ", lambda *given: {**told(*given), **wrong})
    # On a busy machine there may be too little of a processor to take: it is tried again.
    problems = (faketime._try(library) for _ in range(20))
    assert "threads that wait take all of a processor with it" in problems


def test_a_clock_is_read_from_the_nodes_own_file() -> None:
    """Once a second, for the time of day alone."""
    environ = faketime.faketime_environ("/lib/faketime.so", "/logs/n1/clock")
    assert environ["LD_PRELOAD"] == "/lib/faketime.so"
    assert environ["FAKETIME_TIMESTAMP_FILE"] == "/logs/n1/clock"
    assert environ["DONT_FAKE_MONOTONIC"] == "1"
