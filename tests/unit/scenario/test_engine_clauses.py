"""When the scenario engine takes a clause for met, unmet or unknown."""

from __future__ import annotations

from elastic_harness.history.events import ClauseJudged, FilesUnseen, FileWritten, LogMatched

from tests.unit.scenario.bench import CRASH, running


def test_a_round_that_forms_in_time_meets_its_clause() -> None:
    """`{round: 2, within: 10s, after: crash}`."""
    bench = running(CRASH, expect={"eventually": [{"round": 2, "within": "10s", "after": "crash"}]})
    bench.hold(1, 3)
    bench.prove("crash")
    bench.lose(0, 1)
    assert bench.verdict("eventually[0]") == "open"
    bench.pass_time(1)
    bench.form("n1", "n2")
    assert bench.verdict("eventually[0]") == "valid"
    assert bench.facts(ClauseJudged)[0].text == "round 2 within 10s after crash"


def test_a_clause_that_is_not_met_in_time_ends_the_run_and_says_what_was_seen() -> None:
    """Soon: it is watched for as long again, to tell what is late from what never comes."""
    bench = running(CRASH, expect={"eventually": [{"round": 2, "within": "10s", "after": "crash"}]})
    bench.hold(1, 3)
    bench.prove("crash")
    bench.lose(1)
    bench.pass_time(19.9)
    assert not bench.is_over
    bench.pass_time(0.1)
    assert bench.end is not None
    assert bench.end.outcome == "unmet"
    assert bench.end.reason == (
        "round 2 within 10s after crash: not in time, nor after 20.0 s; "
        "last seen: round 1 with 2 ranks"
    )


def test_what_comes_too_late_is_told_from_what_never_comes() -> None:
    """`within` is what was asked, and the verdict says when it came."""
    bench = running(CRASH, expect={"eventually": [{"round": 2, "within": "10s", "after": "crash"}]})
    bench.hold(1, 3)
    bench.prove("crash")
    bench.lose(0, 1)
    bench.pass_time(12)
    bench.form("n1", "n2")
    assert bench.verdict("eventually[0]") == "invalid"
    assert bench.reason("eventually[0]") == (
        "round 2 within 10s after crash: too late: round 2 formed with 2 ranks, after 12.0 s; "
        "10 s were asked"
    )
    assert bench.end is not None


def test_patience_multiplies_what_is_waited_for_and_nothing_else() -> None:
    """The same file judges a slow machine; faults come, and last, as they do anywhere."""
    pause = {"at": "1s", "id": "stop", "pause": "rank 1", "for": "2s"}
    bench = running(
        pause, patience=4, limit="15s", expect={"eventually": [{"round": 2, "within": "10s"}]}
    )
    bench.pass_time(1)
    assert bench.fired == ["stop"]
    bench.in_force("stop")
    bench.prove("stop")
    bench.pass_time(2)
    assert bench.healed == ["stop"]
    bench.pass_time(35)
    bench.form("n1", "n2")
    assert bench.verdict("eventually[0]") == "valid"
    assert "10 s were asked, and the patience of 4 allows it" in bench.reason("eventually[0]")
    bench.pass_time(30)
    assert bench.end is not None
    assert bench.end.reason.startswith("the job did not end within 60s")


def test_a_world_size_asks_for_a_new_world_or_for_steps_that_began_since() -> None:
    """A world that stood before the fault proves nothing by standing."""
    clause = {"world_size": 2, "within": "10s", "after": "cut.healed"}
    cut = {"at": "1s", "id": "cut", "partition": "n2", "for": "2s"}
    bench = running(cut, expect={"eventually": [clause]})
    bench.pass_time(1)
    bench.in_force("cut", proof_needs_job=True)
    bench.prove("cut")
    bench.pass_time(2)
    bench.undo("cut")
    assert bench.verdict("eventually[0]") == "open"
    bench.steps(1)
    assert bench.verdict("eventually[0]") == "valid"


def test_a_state_is_not_taken_for_met_while_its_fault_is_still_being_injected() -> None:
    """Steps between the order and the effect are the old world's."""
    replace = {"at": "1s", "id": "swap", "replace": "n2"}
    clause = {"world_size": 2, "within": "10s", "after": "swap"}
    bench = running(replace, expect={"eventually": [clause]})
    bench.pass_time(1)
    assert bench.fired == ["swap"]
    bench.steps(1)
    assert bench.verdict("eventually[0]") == "open"
    bench.in_force("swap")
    assert bench.verdict("eventually[0]") == "open"
    bench.form("n1", "n2")
    assert bench.verdict("eventually[0]") == "valid"


def test_an_event_counts_from_the_order_of_its_fault_on() -> None:
    """What a fault causes may be seen before the fault is proven."""
    clause = {"event": "worker_gone", "rank": 1, "within": "10s", "after": "crash"}
    bench = running(CRASH, expect={"eventually": [clause]})
    bench.hold(1, 3)
    bench.lose(1)
    assert bench.verdict("eventually[0]") == "valid"


def test_progress_counts_steps_of_every_rank_that_began_since() -> None:
    """Ten steps by one rank are none."""
    clause = {"progress": {"steps": 3}, "within": "10s", "after": "x"}
    bench = running({"at": "1s", "id": "x", "kill": "rank 0"}, expect={"eventually": [clause]})
    bench.steps(5)
    bench.pass_time(0.5)
    bench.prove("x")
    bench.steps(3, ranks=1)
    assert bench.verdict("eventually[0]") == "open"
    bench.steps(3)
    assert bench.verdict("eventually[0]") == "valid"


def test_a_clause_open_at_the_end_of_the_job_is_not_met() -> None:
    """The job that ended cannot form a round any more."""
    bench = running(expect={"eventually": [{"round": 2, "within": "50s"}]})
    bench.end_job()
    assert bench.verdict("eventually[0]") == "invalid"
    assert "the job ended first" in bench.reason("eventually[0]")


def test_a_clause_whose_fault_never_took_effect_is_unknown() -> None:
    """Its time never began: there is nothing to be right or wrong about."""
    bench = running(CRASH, expect={"eventually": [{"round": 2, "within": "5s", "after": "crash"}]})
    bench.end_job()
    assert bench.verdict("eventually[0]") == "unknown"


def test_an_event_that_must_never_be_seen_ends_the_run() -> None:
    """And whether one that must be seen sometimes would have been is not known then."""
    bench = running(
        expect={"never": [{"event": "worker_gone"}], "sometimes": [{"event": "lease_lost"}]}
    )
    bench.lose(0)
    assert bench.end is not None
    assert bench.end.outcome == "unmet"
    assert bench.verdict("never[0]") == "invalid"
    assert bench.verdict("sometimes[0]") == "unknown"


def test_a_line_that_was_there_before_does_not_follow_a_fault() -> None:
    """A test asks for it when its fault has come: what is older has another cause."""
    bench = running(CRASH, is_open=True)
    bench.hold(1, 3)
    bench.prove("crash")
    bench.wait_for("a", log="lost", within="10s", after="crash")
    bench.wait_for("b", log="lost", within="10s")
    bench.see(LogMatched(pattern="lost", line="lost n1", by="worker", was_there=True), node="n1")
    assert bench.verdict("a") == "open"
    assert bench.verdict("b") == "valid"
    bench.see(LogMatched(pattern="lost", line="lost n2", by="worker"), node="n1")
    assert bench.verdict("a") == "valid"


def test_clauses_only_a_checker_knows_are_left_to_it() -> None:
    """`split_brain` is no event."""
    bench = running(expect={"never": ["split_brain"], "sometimes": ["rank_reassigned"]})
    assert bench.engine.clauses == ()


def test_a_file_that_nobody_may_have_seen_is_unknown_and_not_unwritten() -> None:
    """What was seen was seen; and of files alone: other events are told all the same."""
    of_files = {"event": "file_written"}
    other = {"event": "worker_raised"}
    expect = {
        "never": [of_files, other],
        "sometimes": [of_files, other],
        "eventually": [{**of_files, "within": "10s"}],
    }
    bench = running(expect=expect)
    bench.see(FilesUnseen(reason="no more watches"))
    bench.see(FilesUnseen(reason="and another"))
    bench.pass_time(20)
    why = "event file_written within 10s: files may have been written unseen: no more watches"
    assert bench.verdict("eventually[0]") == "unknown"
    assert bench.reason("eventually[0]") == why
    bench.end_job()
    bench.pass_time(1)
    found = {key: bench.verdict(key) for key in ("never[0]", "never[1]", "sometimes[0]")}
    assert found == {"never[0]": "unknown", "never[1]": "valid", "sometimes[0]": "unknown"}
    bench = running(expect=expect)
    bench.see(FilesUnseen(reason="no more watches"))
    bench.see(FileWritten(path="a.pt", how="written", size=1))
    assert bench.verdict("eventually[0]") == "valid"
    assert bench.verdict("never[0]") == "invalid"
