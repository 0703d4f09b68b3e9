"""Checkers, launchers and reporters of a user's own; one checker is written as in release 0.1."""

from __future__ import annotations

import pytest

from tests.plugin.place import Called, Place, scenario

CONFTEST = """
    import json
    from dataclasses import dataclass

    from elastic_harness.faults.context import IN_FORCE, Sleep
    from elastic_harness.faults.workers.worker import WorkerFault
    from elastic_harness.history.checkers import checker
    from elastic_harness.history.events import WorkerHello
    from elastic_harness.history.verdict import invalid, valid
    from elastic_harness.scenario.launchers import Launcher

    @dataclass(frozen=True, kw_only=True)
    class ArgvParameters:
        contains: str

    @checker("argv", ArgvParameters, shorthand="contains")
    def argv(history, parameters):
        \"\"\"Every worker was started with a word on its command line.\"\"\"
        for hello in history.of_kind(WorkerHello):
            if parameters.contains not in hello.event.argv:
                return invalid(f"{hello.node}: {hello.event.argv}", [hello.seq])
        return valid("so it was")

    def pytest_elastic_register_checkers(registry):
        registry.add(argv)

    class Buggy(WorkerFault):
        \"\"\"A worker gets nothing. Stands for a bug. Does not stand for: anything else.\"\"\"

        name = "buggy"

        def inject(self, context, targets, *, id):
            yield IN_FORCE
            yield Sleep(1)

    def pytest_elastic_register_faults(registry):
        registry.add(Buggy)

    def pytest_elastic_register_launchers(registry):
        words = ["env", "GREETING=hello", "$python", "-m", "pytest_elastic", "run"]
        words += ["--nnodes=$nnodes", "--rdzv-backend=c10d", "--rdzv-endpoint=$endpoint"]
        words += ["--rdzv-id=$run_id", "--node-name=$node", "$options", "$program"]
        registry.add(Launcher(name="greeting", command=words))

    def pytest_elastic_run_judged(item, history, judgements, directory):
        outcome = min(each.verdict.outcome.value for each in judgements)
        with open("reported.jsonl", "a") as file:
            file.write(json.dumps([item.name, len(history) > 0, outcome]) + "\\n")
"""
TESTS = """
    import pytest

    def test_a_checker_of_mine(elastic_job):
        job = elastic_job("hello.py", "--fast")
        job.wait()
        assert job.check("argv", "--fast")
        assert not job.check("argv", {"contains": "--slow"})

    def test_a_launcher_of_mine(elastic_job):
        job = elastic_job("greets.py", launcher="greeting")
        assert job.wait()

    def test_a_fault_of_mine_that_crashes(elastic_job, elastic_chaos):
        job = elastic_job("forever.py", max_restarts=1)
        buggy = elastic_chaos.when(event="worker_hello").buggy(worker="rank 0", optional=True)
        job.wait_for_round(2, within="60s", after=buggy)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Return a folder with a conftest.py, tests and scenarios that use what is in it."""
    place = Place(tmp_path_factory.mktemp("hooks"))
    place.add_ini("elastic_nodes = 1")
    place.add_scripts()
    place.add("conftest.py", CONFTEST)
    place.add("greets.py", 'import os\nassert os.environ["GREETING"] == "hello"')
    place.add("test_mine.py", TESTS)
    slow = scenario("slow", "expect: {finally: [{argv: --slow}]}", nodes="1")
    place.add("mine.elastic.yaml", slow)
    return place


@pytest.fixture(scope="module")
def called(place: Place) -> Called:
    """Run all of it once."""
    return place.pytest("-rA", "-p", "no:randomly")


def test_what_a_conftest_registers_works_in_python_and_in_files(called: Called) -> None:
    """By its name, like what comes with the harness."""
    assert called.outcomes == {
        "slow": "FAILED",
        "test_a_checker_of_mine": "PASSED",
        "test_a_launcher_of_mine": "PASSED",
        "test_a_fault_of_mine_that_crashes": "FAILED",
    }, called.out
    assert "INVALID: argv: --slow" in called.about("slow")


def test_a_fault_that_crashes_is_what_the_screen_begins_with(called: Called, place: Place) -> None:
    """Once, in full, with its place; the run is not waited for, and the job not blamed."""
    screen = called.about("test_a_fault_of_mine_that_crashes").partition("elastic job ---")[2]
    said = " ".join(screen.split())
    assert "UNKNOWN: faults_effective buggy-1: it crashed with TypeError: Sleep.__init__() " in said
    assert f"({place.folder}/conftest.py:" in said
    assert "INVALID" not in said
    assert "run ended: aborted" in said


def test_a_recorded_run_is_judged_by_the_same_checkers(called: Called, place: Place) -> None:
    """`--conftest` names where they are; without it, their clauses are unknown."""
    assert called.code == 1
    (run,) = (name for name in place.runs if "-slow-" in name)
    with_it = place.call(["pytest-elastic", "check", "--conftest=conftest.py", f".elastic/{run}"])
    assert with_it.code == 1, with_it.out
    assert "invalid  argv: --slow: n1: (" in with_it.out
    without = place.call(["pytest-elastic", "check", f".elastic/{run}"])
    assert without.code == 3, without.out
    assert "unknown  argv: --slow: no checker is called 'argv'" in without.out
    missing = place.call(["pytest-elastic", "check", "--conftest=none.py", f".elastic/{run}"])
    assert missing.code == 2, missing.out
    assert "none.py" in missing.out


def test_an_editor_can_complete_them(place: Place) -> None:
    """The schema knows names and parameters of clauses, a user's own among them."""
    schema = place.call(["pytest-elastic", "schema", "--conftest=conftest.py"])
    assert schema.code == 0, schema.out
    assert '"argv": {' in schema.out
    assert '"Every worker was started with a word on its command line."' in schema.out


def test_a_wrong_parameter_is_shown_where_it_stands(place: Place) -> None:
    """With its position and the way out, before anything runs."""
    place.add("wrong.elastic.yaml", scenario("wrong", "expect: {finally: [{argv: {holds: x}}]}"))
    called = place.pytest("wrong.elastic.yaml")
    (place.folder / "wrong.elastic.yaml").unlink()
    assert called.code == pytest.ExitCode.INTERRUPTED, called.out
    assert "wrong.elastic.yaml:6:28: unknown key 'holds' (known: contains)" in called.out


def test_reporters_hear_of_every_run(called: Called, place: Place) -> None:
    """Of good ones and bad ones, once each."""
    lines = (place.folder / "reported.jsonl").read_text().splitlines()
    assert len(lines) == len(called.outcomes)
    assert '["slow", true, "invalid"]' in lines
    assert '["test_a_checker_of_mine", true, "valid"]' in lines
