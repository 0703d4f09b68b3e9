"""Jobs in Python tests: one session with many of them, run once, and what came of each."""

from __future__ import annotations

import pytest

from tests.plugin.place import Called, Place

# Of its first life it does not see the end; the second one begins after step 6.
PRINTS_STEPS = """
    import os, time
    is_first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    round = f"up-{os.environ['TORCHELASTIC_RUN_ID']}-{is_first}-"
    open(round + os.environ["RANK"], "w").close()
    while not all(os.path.exists(f"{round}{rank}") for rank in range(2)):
        time.sleep(0.01)  # no rank makes steps, or is killed, before the other one is there
    for step in range(1 if is_first else 7, 9):
        if is_first and step == 7:
            time.sleep(600)
        print(f"step {step} of 8", flush=True)
"""

TESTS = """
    import json, os, pathlib, signal, sys
    import pytest
    from pytest_elastic.errors import UsageError

    def world():
        return int(os.environ["GROUP_WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])

    def scaled(rank_times, by):
        return int(os.environ["RANK"]) * rank_times, by

    # -- what a job may be

    def test_a_function_and_its_results(elastic_job):
        local = 100
        def shifted(by):
            return local + by * int(os.environ["RANK"])
        done = elastic_job(shifted, 7, nodes=2, nproc=2).wait()
        assert done.succeeded
        assert done.results == {0: 100, 1: 107, 2: 114, 3: 121}

    def test_a_module(elastic_job):
        job = elastic_job("some_module", 5, module=True)
        assert job.wait().succeeded
        assert "it is 5 here" in job.log("n1")

    def test_a_command(elastic_job):
        job = elastic_job("/bin/sh", "-c", f"exec {sys.executable} hello.py", command=True)
        assert job.wait().succeeded
        assert "hello from rank 1 of 2" in job.log("n1")

    def test_a_script_in_tmp_path(elastic_job, tmp_path, monkeypatch):
        monkeypatch.setenv("GREETING", "good day")
        script = tmp_path / "inner.py"
        script.write_text("import os, sys; open(sys.argv[1], 'a').write(os.environ['GREETING'])")
        assert elastic_job(script, tmp_path / "out").wait().succeeded
        assert (tmp_path / "out").read_text() == "good day" * 2

    # -- where settings come from

    def test_command_line_beats_ini(elastic_job):
        assert elastic_job(world).wait().results[0] == (1, 2)

    @pytest.mark.elastic(nodes="1:3", nproc=1)
    def test_marker_beats_command_line(elastic_job):
        assert elastic_job(world).wait().results[0] == (3, 1)

    @pytest.mark.elastic(nodes=3, nproc=2)
    class TestClass:
        @pytest.mark.elastic(nproc=1)
        def test_call_beats_markers(self, elastic_job):
            assert elastic_job(world, nodes=2).wait().results[0] == (2, 1)

    # -- what can be done to it

    @pytest.mark.elastic(nproc=1)
    def test_fewer_nodes_at_the_start(elastic_job, elastic_chaos):
        job = elastic_job("forever.py", nodes="1:2", initial_nodes=1, max_restarts=3)
        job.wait_for_round(1)
        assert job.world_sizes == [1]
        elastic_chaos.now().join(1)
        job.wait_for_world_size(2, within="20s")

    @pytest.mark.elastic(nproc=1, nodes={"initial": 1, "min": 1, "max": 2})
    def test_nodes_as_a_scenario_has_them(elastic_job, elastic_chaos):
        job = elastic_job("forever.py", max_restarts=3)
        job.wait_for_round(1)
        assert job.world_sizes == [1]
        elastic_chaos.now().join(1)
        job.wait_for_world_size(2, within="20s")

    @pytest.mark.elastic(nodes=1, nproc=1, max_restarts=1)
    def test_a_fault_that_is_called_as_a_statement(elastic_job, elastic_chaos):
        job = elastic_job("forever.py")
        fault = elastic_chaos.at("60s").raise_("rank 0", optional=True)
        assert fault.id == "raise-1"
        job.wait_for_round(1)

    # -- what can be waited for

    def test_a_restart(elastic_job, elastic_chaos, elastic_history):
        job = elastic_job("second_try.py", nodes=2, nproc=1, max_restarts=1)
        assert repr(job) == "<Job second_try.py, not started>"
        job.wait_for_round(1)
        assert repr(job) == "<Job second_try.py, running, world sizes [2]>"
        crash = elastic_chaos.now().kill("rank 1")
        assert job.wait_for_round(2, within="20s", after=crash).world_size == 2
        assert job.wait().succeeded
        assert job.restarts == 1
        assert job.world_sizes == [2, 2]
        assert repr(job) == "<Job second_try.py, succeeded, world sizes [2, 2]>"
        fired = [entry for entry in elastic_history() if entry.event.kind == "fault_fired"]
        assert [entry.event.fault for entry in fired] == ["kill"]

    def test_steps_that_are_printed(elastic_job, elastic_chaos):
        steps = {"step": "step ([0-9]+) of"}
        job = elastic_job("prints_steps.py", nodes=2, nproc=1, max_restarts=1, observe=steps)
        crash = elastic_chaos.at(step=6, rank=1).kill("rank 1")
        job.wait_for_round(2, within="60s", after=crash)
        assert job.wait().succeeded
        assert [job.round(number).first_step for number in (1, 2)] == [1, 7]
        assert job.steps_lost == 0

    def test_a_wait_that_is_not_met(elastic_job):
        job = elastic_job("forever.py")
        job.wait_for_round(1)
        job.wait_for_round(2, within="500ms")

    def test_a_wait_that_is_not_met_as_expected(elastic_job):
        job = elastic_job("forever.py")
        job.wait_for_round(1)
        with pytest.raises(AssertionError, match="round 2 within 500ms"):
            job.wait_for_round(2, within="500ms")

    # -- how a test may end

    def test_an_assertion_of_its_own(elastic_job):
        job = elastic_job("hello.py")
        assert job.wait().succeeded
        assert job.restarts == 1

    @pytest.mark.elastic(nodes=2, nproc=1)
    def test_faults_that_a_running_job_cannot_have(elastic_job, elastic_chaos):
        job = elastic_job("forever.py")
        job.wait_for_round(1)
        with pytest.raises(UsageError, match="there is no rank 9"):
            elastic_chaos.now().kill("rank 9")
        with pytest.raises(UsageError, match="no entry of the timeline has the id 'nope'"):
            elastic_chaos.after("nope").kill("rank 1")
        with pytest.raises(UsageError, match="^nodes: a whole number is expected, found 1.5"):
            elastic_chaos.now().join(1.5)
        with pytest.raises(UsageError, match="^`worker` is missing"):
            elastic_chaos.now().kill()
        first = elastic_chaos.now().pause("rank 0", lasting="100ms")
        elastic_chaos.after(first.healed).kill("rank 1")
        assert not job.wait().succeeded

    @pytest.fixture
    def greeted(elastic_job):
        job = elastic_job("hello.py").wait()
        assert job.restarts == 1

    def test_of_a_fixture_that_fails(greeted):
        pass

    def test_that_leaves_a_job_running(elastic_job):
        elastic_job("forever.py").wait_for_round(1)

    def test_with_a_fault_that_never_fires(elastic_job, elastic_chaos):
        job = elastic_job("hello.py")
        elastic_chaos.at("60s").kill("rank 0")
        assert job.wait().succeeded

    @pytest.mark.xfail(strict=True)
    def test_with_a_fault_that_never_fires_as_expected(elastic_job, elastic_chaos):
        job = elastic_job("hello.py")
        elastic_chaos.at("60s").kill("rank 0")
        assert job.wait().succeeded

    def test_with_a_fault_that_comes_too_late(elastic_job, elastic_chaos):
        job = elastic_job("hello.py")
        assert job.wait().succeeded
        elastic_chaos.now().kill("rank 0")
        elastic_chaos.at(step=12).crash("n1")

    def test_with_a_storm_that_comes_too_late(elastic_job):
        job = elastic_job("hello.py", max_restarts=3)
        assert job.wait().succeeded
        job.storm(max=3)

    @pytest.mark.elastic(without=["faults_effective"])
    def test_with_a_fault_that_need_not_fire(elastic_job, elastic_chaos):
        job = elastic_job("hello.py")
        elastic_chaos.at("60s").kill("rank 0")
        assert job.wait().succeeded

    def test_with_a_wrong_job_and_a_right_one(elastic_job):
        with pytest.raises(Exception, match="3:2|at least 3"):
            elastic_job("hello.py", nodes="3:2")
        assert elastic_job("hello.py", nodes=1).wait().succeeded

    def test_that_never_starts_its_job(elastic_job):
        elastic_job("hello.py")

    def test_that_skips_with_a_job_under_way(elastic_job):
        elastic_job("forever.py").start()
        pytest.skip("not today")

    def test_with_a_job_after_the_other(elastic_job):
        assert not elastic_job("exits_3.py").wait().succeeded
        assert elastic_job("hello.py").wait().succeeded

    def test_with_two_jobs_at_a_time(elastic_job):
        elastic_job("forever.py").start()
        elastic_job("hello.py").start()

    # -- what cannot be meant

    def test_unknown_setting(elastic_job):
        elastic_job("hello.py", node=2)

    def test_wrong_setting(elastic_job):
        elastic_job("hello.py", nproc=0)

    def test_wrong_nodes(elastic_job):
        elastic_job("hello.py", nodes="3:2")

    def test_wrong_observe(elastic_job):
        elastic_job("hello.py", observe={"step": "step"})

    def test_unknown_conf(elastic_job):
        elastic_job("hello.py", conf={"leese": 3}).start()

    def test_unknown_observe(elastic_job):
        elastic_job("hello.py", observe={"stap": "step ([0-9]+)"})

    def test_unknown_option(elastic_job):
        elastic_job("hello.py", options=["--nnodes=7"]).wait()

    def test_unknown_invariant(elastic_job):
        elastic_job("hello.py", without=["one_wolrd"])

    def test_missing_script(elastic_job):
        elastic_job("helo.py")

    @pytest.mark.elastic(2)
    def test_wrong_marker(elastic_job):
        elastic_job("hello.py")

    def test_unknown_fault(elastic_job, elastic_chaos):
        elastic_job("hello.py")
        elastic_chaos.now().kil("rank 0")

    def test_what_cannot_be_sent(elastic_job):
        elastic_job(scaled, 1, sys.stdout)

    def test_of_subtests(elastic_job, subtests):
        with subtests.test("planted"):
            assert elastic_job("hello.py").wait().restarts == 1
        with subtests.test("fine"):
            pass

    def test_chaos_without_a_job(elastic_chaos):
        elastic_chaos.now().kill("rank 0")
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Return the folder that the session was run in."""
    place = Place(tmp_path_factory.mktemp("python-api"))
    place.add_ini()
    place.add_scripts()
    place.add("prints_steps.py", PRINTS_STEPS)
    place.add("some_module.py", "import sys\nprint('it is', sys.argv[1], 'here')")
    place.add("test_jobs.py", TESTS)
    return place


@pytest.fixture(scope="module")
def called(place: Place) -> Called:
    """Run all of it once."""
    return place.pytest(
        "-rA", "--elastic-nodes=1", "-o", "elastic_nodes=3", "-o", "elastic_nproc=2",
        "-p", "no:randomly", "test_jobs.py",
    )  # fmt: skip


def test_the_session_ends_as_a_session_with_failures_does(called: Called) -> None:
    """Exit code 1; every failure is one of a test, or of its own fixture, none of a teardown."""
    assert called.code == pytest.ExitCode.TESTS_FAILED, called.out
    errors = [test for test, outcome in called.outcomes.items() if outcome == "ERROR"]
    assert errors == ["test_of_a_fixture_that_fails"], called.out


@pytest.mark.parametrize(
    "test",
    [
        "test_a_function_and_its_results",
        "test_a_module",
        "test_a_command",
        "test_a_script_in_tmp_path",
        "test_command_line_beats_ini",
        "test_marker_beats_command_line",
        "test_call_beats_markers",
        "test_fewer_nodes_at_the_start",
        "test_nodes_as_a_scenario_has_them",
        "test_a_fault_that_is_called_as_a_statement",
        "test_a_restart",
        "test_steps_that_are_printed",
        "test_a_wait_that_is_not_met_as_expected",
        "test_that_leaves_a_job_running",
        "test_with_a_fault_that_need_not_fire",
        "test_with_a_job_after_the_other",
        "test_faults_that_a_running_job_cannot_have",
    ],
)
def test_what_holds_passes(called: Called, test: str) -> None:
    """The inner test of that name makes the assertions."""
    assert called.outcomes[test] == "PASSED", called.about(test)


def test_an_unmet_wait_fails_where_it_stands_and_shows_the_job(called: Called) -> None:
    """The assertion, then the job on one screen with the command that repeats it."""
    about = called.about("test_a_wait_that_is_not_met")
    assert called.outcomes["test_a_wait_that_is_not_met"] == "FAILED"
    assert '>       job.wait_for_round(2, within="500ms")' in about
    assert about.count("NotSeen: round 2 within 500ms") == 2, "by the test's line, on the screen"
    assert "round 2 within 500ms: round 2" not in about, "and said once there"
    assert "def _wait_for" not in about, "none of our frames is shown"
    screen = about.partition("elastic job")[2]
    assert "INVALID: test test_a_wait_that_is_not_met" in screen
    assert "round 1: ranks 0-1" in screen or "round 1: rank" in screen
    assert "last seen      round 1 on n1" in screen
    assert "run directory  .elastic/test_jobs.py-test_a_wait_that_is_not_met-" in screen
    again = "pytest test_jobs.py::test_a_wait_that_is_not_met -o elastic_nodes=3"
    assert f"again          {again} -o elastic_nproc=2 --elastic-nodes=1 --elastic-seed=" in screen


def test_an_assertion_of_the_test_keeps_the_traces_of_a_job_that_went_well(
    called: Called, place: Place
) -> None:
    """Who asserts on a job wants to see it, whatever the invariants say of it."""
    about = called.about("test_an_assertion_of_its_own")
    assert "assert 0 == 1" in about
    assert "INVALID: test test_an_assertion_of_its_own" in about
    (kept,) = [name for name in place.runs if "test_an_assertion_of_its_own" in name]
    files = {path.name for path in (place.folder / ".elastic" / kept).iterdir()}
    assert {"history.jsonl", "plan.json", "logs", "timeline.html", "trace.json"} <= files


def test_a_fixture_that_fails_shows_its_job(called: Called) -> None:
    """As a test that fails does."""
    about = called.about("test_of_a_fixture_that_fails")
    assert ">       assert job.restarts == 1" in about
    assert "INVALID: test test_of_a_fixture_that_fails" in about
    assert "again          pytest test_jobs.py::test_of_a_fixture_that_fails" in about


def test_what_holds_for_every_job_is_judged_as_part_of_the_test(called: Called) -> None:
    """A fault that never fired: the test fails (no error of its teardown), and may be an xfail."""
    test = "test_with_a_fault_that_never_fires"
    assert called.outcomes[test] == "FAILED"
    about = called.about(test)
    assert about.startswith("UNKNOWN: faults_effective")
    assert "kill-1: it never fired" in about
    assert "def test_with" not in about, "the screen is all that is shown"
    assert called.outcomes[f"{test}_as_expected"] == "XFAIL"


@pytest.mark.parametrize(
    ("test", "faults"),
    [
        ("test_with_a_fault_that_comes_too_late", ["kill-1", "crash-2"]),
        ("test_with_a_storm_that_comes_too_late", ["storm"]),
    ],
)
def test_what_is_asked_for_after_the_end_of_a_job_is_judged_too(
    called: Called, test: str, faults: list[str]
) -> None:
    """It never fired."""
    assert called.outcomes[test] == "FAILED"
    about = " ".join(called.about(test).split())
    for fault in faults:
        assert f"{fault}: it never fired: the run was over when it was asked for" in about


def test_a_job_that_was_refused_is_none_that_was_never_started(called: Called) -> None:
    """The test has seen the refusal, and goes on with another one."""
    assert called.outcomes["test_with_a_wrong_job_and_a_right_one"] == "PASSED"


def test_a_job_that_is_never_started_is_no_test(called: Called) -> None:
    """It would pass whatever is wrong."""
    about = called.about("test_that_never_starts_its_job")
    assert "was described and never started" in about


@pytest.mark.parametrize(
    ("test", "message"),
    [
        ("test_unknown_setting", "a job has no setting 'node': did you mean 'nodes'?"),
        ("test_wrong_setting", "nproc=0: at least 1 is expected, found 0"),
        ("test_wrong_observe", "'step' has 0 groups: one is expected, around the number of steps"),
        ("test_unknown_conf", "UsageError: conf.leese: `conf` has no setting 'leese'"),
        ("test_unknown_observe", "observe.stap: a job has no such setting"),
        ("test_unknown_option", "--nnodes is what `nodes: {min: …, max: …}` says"),
        ("test_wrong_nodes", "nodes=3:2 asks for at least 3 and at most 2 nodes"),
        ("test_unknown_invariant", "no invariant is called 'one_wolrd': did you mean 'one_world'"),
        ("test_missing_script", "there is no script 'helo.py': looked in "),
        ("test_wrong_marker", "the marker elastic takes settings by name, as in nodes=2"),
        ("test_unknown_fault", "no action is called 'kil': did you mean 'kill'"),
        ("test_what_cannot_be_sent", "cannot send <function scaled at"),
        ("test_chaos_without_a_job", "there is no job yet: call elastic_job(...) first"),
        ("test_with_two_jobs_at_a_time", "one job runs at a time: wait() for the one before"),
    ],
)
def test_what_cannot_be_meant_is_said_once_and_clearly(
    called: Called, test: str, message: str
) -> None:
    """The line of the test and our sentence."""
    about = called.about(test)
    assert called.outcomes[test] == "FAILED"
    assert (
        sum(message in line for line in about.splitlines() if line.startswith(("E ", "there"))) == 1
    )


def test_only_failed_tests_leave_artifacts(called: Called, place: Place) -> None:
    """And no run of a test that passed, was skipped, or only described a job."""
    assert called.code == 1
    kept = {name.removeprefix("test_jobs.py-").rpartition("-")[0] for name in place.runs}
    assert kept == {
        "test_a_wait_that_is_not_met",
        "test_an_assertion_of_its_own",
        "test_of_a_fixture_that_fails",
        "test_of_subtests",
        "test_with_a_fault_that_never_fires",
        "test_with_a_fault_that_never_fires_as_expected",
        "test_with_a_fault_that_comes_too_late",
        "test_with_a_storm_that_comes_too_late",
        "test_with_two_jobs_at_a_time",
    }


def test_a_subtest_that_fails_shows_its_job(called: Called) -> None:
    """In the report of its test, which has failed, too: the job goes on until then."""
    assert called.outcomes["test_of_subtests"] == "FAILED", called.out
    assert "INVALID: test test_of_subtests" in called.out
    assert "AssertionError: assert 0 == 1" in called.out
    assert "again          pytest test_jobs.py::test_of_subtests" in called.out
