"""With pytest-xdist: one seed for all workers, the same failures, the same exit codes."""

from __future__ import annotations

import re

import pytest

from tests.plugin.place import Place, scenario

TESTS = """
    import os, pytest

    @pytest.fixture(scope="session", autouse=True)
    def note_the_seed(elastic_seed):
        with open(f"seed-{os.environ['PYTEST_XDIST_WORKER']}", "w") as file:
            file.write(str(elastic_seed))

    @pytest.mark.parametrize("number", range(6))
    def test_nothing(number):
        pass

    def test_in_python(elastic_job):
        assert elastic_job("hello.py", nodes=1).wait().succeeded
"""


@pytest.mark.slow
def test_two_workers_share_the_work_and_the_seed(place: Place) -> None:
    """Every item runs once, a failure is the screen with the common seed, and exit code 1."""
    place.add_scripts()
    fixture, tests = TESTS.split("    @pytest.mark")
    place.add("conftest.py", fixture)
    place.add("test_some.py", f"    import pytest\n    @pytest.mark{tests}")
    unmet = "expect: {finally: [{restarts: 1}]}"
    failing = scenario("unmet", unmet, nodes="1", max_restarts=1)
    place.add("some.elastic.yaml", f"{scenario('passes')}---\n{failing}")
    summary = place.folder / "summary.md"
    place.environ["GITHUB_STEP_SUMMARY"] = str(summary)
    called = place.pytest("-n", "2", "-rA")
    assert called.code == pytest.ExitCode.TESTS_FAILED, called.out
    names = [*(f"test_nothing[{number}]" for number in range(6)), "test_in_python", "passes"]
    assert called.outcomes == {**dict.fromkeys(names, "PASSED"), "unmet": "FAILED"}
    files = sorted(place.folder.glob("seed-gw*"))
    assert [path.name for path in files] == ["seed-gw0", "seed-gw1"]
    (seed,) = {path.read_text() for path in files}
    screen = re.search(r"\[gw\d\].*?\n(INVALID: restarts: 1.*)", called.out, re.DOTALL)
    assert screen is not None, called.out
    assert f"again          pytest some.elastic.yaml::unmet --elastic-seed={seed}" in screen[1]
    assert len(place.runs) == 1
    assert re.search(rf"^elastic: seed {seed} on gw\d(, gw\d)?$", called.out, re.MULTILINE), (
        called.out
    )
    page = (place.folder / ".elastic" / "index.html").read_text()
    assert all(name in page for name in ("::test_in_python", "::passes", "::unmet"))
    assert called.out.count("elastic: 3 runs: 1 invalid, 2 valid: .elastic/index.html") == 1
    assert summary.read_text().count("### pytest-elastic: 3 runs: 1 invalid, 2 valid") == 1


def test_mistakes_end_the_session_as_without_workers(place: Place) -> None:
    """Usage errors by the controller, collection errors by the workers."""
    place.add("broken.elastic.yaml", "- a")
    refused = place.pytest("-n", "2", "--elastic-nodes=0")
    assert refused.code == pytest.ExitCode.USAGE_ERROR, refused.out
    assert "--elastic-nodes=0 asks for at least 0" in refused.out
    collected = place.pytest("-n", "2")
    assert collected.code in {pytest.ExitCode.INTERRUPTED, pytest.ExitCode.TESTS_FAILED}
    assert "broken.elastic.yaml:1:1: a scenario is keys with values" in collected.out
