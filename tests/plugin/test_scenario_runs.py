"""Scenarios that run: what a failure shows, how it is repeated, and what is kept.

The tests lie below the root, and pytest is called where they lie: what is printed for copying must
hold there.
"""

from __future__ import annotations

import json
import re
import shlex

import pytest

from tests.plugin.place import Called, Place, scenario

NEIGHBOUR = "timeline: [{when: {event: worker_hello}, run: 'sleep 600 & touch neighbour'}]"
LATE = "expect: {eventually: [{round: 2, within: 500ms}]}"

KILLED = """
    timeline: [{when: {event: worker_hello, rank: 1}, kill: rank 1}]
    expect: {finally: [{job: succeeded}, {restarts: 1}]}
"""
SPOKEN = """
    expect:
      sometimes: [{log: hello from rank 1, by: rank 1}, {log: round 1, by: launcher}]
      never: [{log: hello from rank 0, by: rank 1}, {log: hello, by: launcher}]
"""
MUCH = "expect: {finally: [{log_contains: that was all}], never: [{log: 'no such line'}]}"

SCENARIOS = (
    scenario("passes", SPOKEN),
    scenario("exits-3", nodes="1", script="exits_3.py"),
    scenario("syntax-error", nodes="1", script="broken.py"),
    scenario("prints-much", MUCH, nodes="1", script="prints_much.py"),
    scenario("unmet", "expect:\n  finally:\n  - job: succeeded\n  - restarts: 1\n", max_restarts=1),
    scenario("too-late", LATE, nodes="1", script="forever.py"),
    scenario("never-ends", "limit: 2s", nodes="1", script="forever.py"),
    scenario("never-fires", "timeline: [{at: 50s, kill: rank 0}]"),
    scenario("killed", KILLED, script="second_try.py", max_restarts=1),
    scenario("neighbour", NEIGHBOUR, nodes="1", script="waits_for_a_neighbour.py"),
    scenario("strange-exit", "marks: [xfail]", nodes="1", script="exits_3.py"),
)

# The peak of pytest's own memory, for the job that prints much. Not ru_maxrss: that begins with the
# size of whatever forked this process.
CONFTEST = """
    import re
    def pytest_unconfigure(config):
        with open("/proc/self/status") as status:
            print("peak MB:", int(re.search(r"VmHWM:\\s+(\\d+)", status.read())[1]) // 1024)
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Return the root, with the ini file."""
    root = Place(tmp_path_factory.mktemp("runs"))
    root.add_ini()
    return root


@pytest.fixture(scope="module")
def place(root: Place) -> Place:
    """Return the folder of the scenarios, below the root."""
    place = Place(root.folder / "chaos")
    place.add("some.elastic.yaml", "---\n".join(SCENARIOS))
    place.add("conftest.py", CONFTEST)
    place.add_scripts()
    place.add(
        "waits_for_a_neighbour.py",
        """
        import os, time
        while not os.path.exists("neighbour"):
            time.sleep(0.01)
        """,
    )
    return place


@pytest.fixture(scope="module")
def called(place: Place) -> Called:
    """Run all of them once."""
    called = place.pytest("-rA", "some.elastic.yaml", "--junitxml=junit.xml")
    assert called.code == pytest.ExitCode.TESTS_FAILED, called.out
    return called


def test_each_comes_out_as_it_should(called: Called) -> None:
    """Each is one test."""
    assert called.outcomes == {
        "passes": "PASSED",
        "neighbour": "PASSED",
        "exits-3": "FAILED",
        "syntax-error": "FAILED",
        "prints-much": "PASSED",
        "unmet": "FAILED",
        "too-late": "FAILED",
        "never-ends": "FAILED",
        "never-fires": "FAILED",
        "killed": "PASSED",
        "strange-exit": "XFAIL",
    }, called.out


SCREEN = r"""
INVALID: restarts: 1
  some.elastic.yaml:\d+:5
  \d+ |   - restarts: 1
  +|     \^+
  0 restarts, 1 were expected

        n1 +n2
  ( *\d+\.\d\d .*
)+
last seen      round 1 on n1, n2: 2 of 2 ranks said hello, 0 alive, no step done
run directory  \S*/\.elastic/chaos-some.elastic.yaml-unmet-\w+
again          pytest some.elastic.yaml::unmet --elastic-seed=\d+
"""


def test_a_failure_is_one_screen_and_nothing_else(called: Called) -> None:
    """The clause where it is written, why, what happened, how far it came, where it lies, again."""
    about = called.about("unmet")
    pattern = SCREEN.strip().replace("|", r"\|")
    assert re.fullmatch(pattern, about.strip()), about
    assert len(about.splitlines()) <= 40


@pytest.mark.parametrize(
    ("test", "lines"),
    [
        (
            "exits-3",
            ["INVALID: job: succeeded", "first failure  rank 0 on n1, exit code 3"],
        ),
        (
            "syntax-error",
            [
                "INVALID: job: succeeded",
                "first failure  rank 0 on n1, exit code 1",
                "               SyntaxError: invalid syntax",
            ],
        ),
        (
            "too-late",
            [
                "INVALID: eventually: round 2 within 500ms",
                "  eventually: [{round: 2, within: 500ms}]}".strip(),
                "  round 2 within 500ms: not in time, nor after 1.5 s; last seen: ",
            ],
        ),
        (
            "never-ends",
            ["INVALID: ends_in_time", "  the job did not end within 2s: "],
        ),
        (
            "never-fires",
            ["UNKNOWN: faults_effective", "  entry-1: it never fired: the run was over before"],
        ),
    ],
)
def test_what_went_wrong_is_said_clearly(called: Called, test: str, lines: list[str]) -> None:
    """Each kind of failure by its own words, and no traceback of ours."""
    about = called.about(test)
    for line in lines:
        assert line in about
    assert "Traceback" not in about
    assert "pytest_elastic/" not in about


def test_a_job_that_prints_much_costs_no_memory(called: Called) -> None:
    """200 MB of output, watched for a line that never comes: pytest's own peak stays far below."""
    found = re.search(r"peak MB: (\d+)", called.out)
    assert found is not None
    assert int(found[1]) < 150


def test_artifacts_of_failed_runs_are_kept_and_of_no_other(
    called: Called, place: Place, root: Place
) -> None:
    """Below the root, a directory each, with all that is promised in it."""
    assert called.code == 1
    assert place.runs == []
    names = [name.removeprefix("chaos-some.elastic.yaml-").rpartition("-")[0] for name in root.runs]
    failed = {test for test, outcome in called.outcomes.items() if outcome in ("FAILED", "XFAIL")}
    assert set(names) == failed
    for run in root.runs:
        files = {path.name for path in (root.folder / ".elastic" / run).iterdir()}
        assert files >= {
            "history.jsonl",
            "logs",
            "plan.json",
            "scenario.yaml",
            "timeline.html",
            "trace.json",
        }


def test_reports_for_machines_name_the_run_directory(
    called: Called, place: Place, root: Place
) -> None:
    """A property of each failed test in JUnit's file: a build server finds the artifacts by it."""
    assert called.code == 1
    report = (place.folder / "junit.xml").read_text()
    named = re.findall(r'<property name="elastic_run_directory" value="(.*?)"', report)
    failed = [run for run in root.runs if "strange-exit" not in run]
    assert sorted(named) == [str(root.folder / ".elastic" / run) for run in failed]


def test_reports_for_machines_say_what_came_out_of_each_run(called: Called, place: Place) -> None:
    """Properties of each test in JUnit's file: verdict, seed, seconds, and the cause if any."""
    assert called.code == 1
    report = (place.folder / "junit.xml").read_text()
    for name in ("outcome", "seed", "seconds"):
        assert report.count(f'<property name="elastic_{name}"') == len(called.outcomes), name
    unmet = r'name="elastic_outcome" value="invalid" />\s*<property name="elastic_seed"'
    assert re.search(unmet, report)
    assert 'name="elastic_cause" value="restarts: 1: 0 restarts, 1 were expected' in report


def test_the_page_of_the_session_lists_every_run(called: Called, place: Place, root: Place) -> None:
    """Kept or not; its path is said once, as it is seen from where pytest was called."""
    page = (root.folder / ".elastic" / "index.html").read_text()
    for test in called.outcomes:
        assert page.count(f"some.elastic.yaml::{test}") >= 1, test
    said = re.findall(r"^elastic: (\d+) runs: .*: (\S+index\.html)$", called.out, re.MULTILINE)
    assert [count for count, _ in said] == [str(len(called.outcomes))]
    assert (place.folder / said[0][1]).resolve() == root.folder / ".elastic" / "index.html"
    links = re.findall(r'href="(.*?)/timeline.html"', page)
    assert sorted(links) == sorted(root.runs)
    assert page.count("(not kept)") == list(called.outcomes.values()).count("PASSED")


def test_what_failed_last_can_be_chosen(called: Called, place: Place) -> None:
    """`--lf`, as for any test."""
    chosen = place.pytest("--lf", "--collect-only", "-q", "some.elastic.yaml")
    ids = [line.rpartition("::")[2] for line in chosen.out.splitlines() if "::" in line]
    assert ids == [test for test, outcome in called.outcomes.items() if outcome == "FAILED"]


def test_the_printed_command_shows_the_same_failure(
    called: Called, place: Place, root: Place
) -> None:
    """Copied to a shell in the same folder; the page still links the failures of before."""
    about = called.about("unmet")
    (command,) = re.findall(r"^again +(.*)$", about, re.MULTILINE)
    before = root.runs
    again = place.call(shlex.split(command))
    page = (root.folder / ".elastic" / "index.html").read_text()
    assert all(f'href="{run}/timeline.html"' in page for run in before)
    assert again.code == pytest.ExitCode.TESTS_FAILED, again.out
    assert again.about("unmet").splitlines()[:5] == about.splitlines()[:5]
    assert f"again          {command}" in again.about("unmet")


@pytest.mark.slow
def test_a_plan_is_replayed_whatever_has_become_of_its_file(called: Called, root: Place) -> None:
    """The plan is run as it was, for the test it was made for; what is replayed may be kept."""
    assert called.code == 1
    (run,) = [name for name in root.runs if "-exits-3-" in name]
    place = Place(root.folder / "later")
    place.add_scripts()
    place.add("exits_3.py", "print('mended')")
    plan = root.folder / ".elastic" / run / "plan.json"
    data = json.loads(plan.read_text())
    data["scenario"]["job"]["script"] = str(place.folder / "exits_3.py")
    place.add("plan.json", json.dumps(data))
    place.add("some.elastic.yaml", f"{SCENARIOS[0]}---\n{SCENARIOS[1]}limit: 1s\n")
    again = place.pytest(
        "-rA", "--elastic-replay=plan.json", "--elastic-keep=all", "--elastic-artifacts=kept"
    )
    assert again.outcomes == {"exits-3": "PASSED"}, again.out
    assert "1 deselected" in again.out
    (kept,) = (path for path in (place.folder / "kept").iterdir() if path.is_dir())
    assert json.loads((kept / "plan.json").read_text()) == data
    assert (kept / "timeline.html").exists()
    place.add_scripts()
    unmet = place.pytest("--elastic-replay=plan.json", "-p", "no:cacheprovider")
    assert "INVALID: job: succeeded" in unmet.about("exits-3")
    assert "some.elastic.yaml:" not in unmet.about("exits-3").partition("again")[0], "no such line"
    refused = place.pytest("--elastic-replay=plan.json", "some.elastic.yaml::passes")
    assert refused.code == pytest.ExitCode.USAGE_ERROR
    assert "none of the tests here is 'exits-3', for which that plan was made" in refused.out
