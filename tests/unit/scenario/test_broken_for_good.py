"""What a running test broke and nobody mends, and jobs whose nodes were all told to leave."""

from __future__ import annotations

import pytest
from elastic_harness.scenario.engine.messages import EndRun

from tests.unit.scenario.bench import Bench, scenario


def test_what_a_test_broke_for_good_stays_so_when_it_waits_for_the_end() -> None:
    """`wait()` heals nothing that nobody asked to heal; what has a time of its own still ends."""
    bench = Bench(scenario(nodes=2), is_open=True)
    bench.start_nodes("n1", "n2")
    bench.add(id="for-good", at="0s", partition="n2")
    bench.add(id="for-a-while", at="0s", partition="n2", for_="5s")
    for name in ("for-good", "for-a-while"):
        bench.in_force(name, proof_needs_job=True)
        bench.prove(name)
    bench.close()
    assert bench.healed == []
    bench.pass_time(6)
    assert bench.healed == ["for-a-while"]


def test_a_launcher_that_a_test_broke_for_good_is_not_waited_for() -> None:
    """Nor does its end say anything about the job, from the moment when nobody can mend it."""
    bench = Bench(scenario(nodes=2), is_open=True)
    bench.start_nodes("n1", "n2")
    bench.add(id="frozen", at="0s", pause={"agent": "n2"})
    bench.in_force("frozen")
    bench.prove("frozen")
    bench.exit_launcher("n1", 0)
    bench.pass_time(1)
    assert not bench.all_of(EndRun), "it may still be mended"
    bench.close()
    bench.pass_time(1)
    assert bench.end is not None
    assert bench.end.outcome == "succeeded"


def test_a_launcher_that_will_be_mended_is_waited_for() -> None:
    """A `heal` that is still to come names it."""
    bench = Bench(scenario(nodes=2), is_open=True)
    bench.start_nodes("n1", "n2")
    bench.add(id="frozen", at="0s", pause={"agent": "n2"})
    bench.add(id="mend", at="3s", heal="frozen")
    bench.in_force("frozen")
    bench.prove("frozen")
    bench.exit_launcher("n1", 0)
    bench.close()
    bench.pass_time(1)
    assert not bench.all_of(EndRun)
    bench.pass_time(3)
    bench.undo("frozen")
    bench.exit_launcher("n2", 1)
    bench.pass_time(1)
    assert bench.end is not None
    assert bench.end.outcome == "failed"


def is_over_without_n2(bench: Bench) -> bool:
    """Close the timeline, let n1 end well, and tell whether that ends the run."""
    bench.close()
    bench.exit_launcher("n1", 0)
    bench.pass_time(1)
    return bench.is_over


def frozen(bench: Bench) -> None:
    """Let it be frozen."""
    bench.in_force("frozen")
    bench.prove("frozen")


def test_only_what_nothing_mends_is_broken_for_good() -> None:
    """A heal that is over mends nothing any more, nor does one of something else."""
    pause = {"id": "frozen", "pause": {"agent": "n2"}}
    cases: list[tuple[list[dict[str, object]], bool]] = [
        ([{**pause, "at": "0s"}], True),
        ([{**pause, "at": "0s", "for": "5s"}], False),
        ([{"id": "mend", "at": "0s", "heal": "frozen"}, {**pause, "at": "0s"}], True),
        (
            [
                {"id": "cut", "at": "30s", "partition": "n1"},
                {"id": "mend", "after": "cut + 1s", "heal": "cut"},
                {**pause, "at": "0s"},
            ],
            True,
        ),
    ]
    for entries, is_over in cases:
        bench = Bench(scenario(nodes=2), is_open=True)
        bench.start_nodes("n1", "n2")
        for entry in entries:
            bench.add(**entry)
        frozen(bench)
        assert is_over_without_n2(bench) == is_over, entries


def test_what_breaks_after_the_last_was_added_is_broken_for_good() -> None:
    """Nobody is left to mend it."""
    bench = Bench(scenario(nodes=2), is_open=True)
    bench.start_nodes("n1", "n2")
    bench.add(id="frozen", at="2s", pause={"agent": "n2"})
    bench.close()
    bench.pass_time(2)
    frozen(bench)
    bench.exit_launcher("n1", 0)
    bench.pass_time(1)
    assert bench.is_over


def test_a_launcher_that_was_mended_counts_again() -> None:
    """It fails by itself."""
    bench = Bench(scenario(nodes=2), is_open=True)
    bench.start_nodes("n1", "n2")
    bench.add(id="frozen", at="0s", pause={"agent": "n2"})
    frozen(bench)
    bench.add(id="mend", at="0s", heal="frozen")
    bench.undo("frozen")
    assert not is_over_without_n2(bench)
    bench.exit_launcher("n2", 1)
    bench.pass_time(1)
    assert bench.end is not None
    assert bench.end.outcome == "failed"


def test_a_run_that_reaches_its_limit_says_what_is_still_in_force() -> None:
    """A job that could not end because of it is the first thing to think of."""
    bench = Bench(scenario(nodes=2), is_open=True)
    bench.start_nodes("n1", "n2")
    bench.add(id="cut", at="0s", partition="n2")
    bench.in_force("cut", proof_needs_job=True)
    bench.close()
    bench.pass_time(100)
    assert bench.end is not None
    assert bench.end.outcome == "limit"
    assert bench.end.reason.endswith("; still in force: cut (partition)")


@pytest.mark.parametrize(
    ("code", "outcome"), [(0, "drained"), (143, "drained"), (-15, "drained"), (1, "failed")]
)
def test_a_job_is_drained_when_every_node_left_because_it_was_told_to(
    code: int, outcome: str
) -> None:
    """A launcher that obeys SIGTERM ends with 0, with 143, or by the signal itself."""
    bench = Bench(scenario({"at": "1s", "id": "bye", "leave": "all"}, nodes=2))
    bench.start_nodes("n1", "n2")
    bench.pass_time(1)
    bench.in_force("bye")
    bench.prove("bye")
    bench.end_job(code)
    bench.pass_time(1)
    assert bench.end is not None
    assert bench.end.outcome == outcome


@pytest.mark.parametrize(
    ("code", "undone", "works", "outcome"),
    [
        (-9, False, True, "succeeded"),
        (137, False, True, "succeeded"),
        (1, False, True, "failed"),
        (-9, True, True, "failed"),
        (-9, False, False, "failed"),
    ],
    ids=["killed", "killed below a shell", "ended by itself", "killed later", "limit without use"],
)
def test_a_launcher_that_the_kernel_killed_for_lack_of_memory_says_nothing(
    *, code: int, undone: bool, works: bool, outcome: str
) -> None:
    """The limit may have chosen it, as long as it was in force and met; another end is its own."""
    bench = Bench(scenario(nodes=2), is_open=True)
    bench.start_nodes("n1", "n2")
    bench.add(id="short", at="0s", memory_limit={"node": "n2", "size": "1MiB"}, for_="9s")
    bench.in_force("short")
    if works:
        bench.prove("short")
    if undone:
        bench.pass_time(10)
        bench.undo("short")
    bench.exit_launcher("n2", code)
    if not works:
        bench.disprove("short")
    bench.close()
    bench.exit_launcher("n1", 0)
    bench.pass_time(20)
    assert bench.end is not None
    assert bench.end.outcome == outcome
