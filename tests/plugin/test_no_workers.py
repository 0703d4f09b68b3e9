"""Python tests of jobs that are never to begin: one session with all of them."""

from __future__ import annotations

import pytest

from tests.plugin.place import Called, Place

TESTS = """
    import pytest

    # Waits for a second node, and there is none.
    ALONE = (
        "$python -m pytest_elastic run --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=$endpoint "
        "--rdzv-id=$run_id --rdzv-conf=join_timeout=1 --node-name=$node --preload= $program"
    )

    def test_that_asks(elastic_job):
        job = elastic_job("hello.py", launcher=ALONE, no_workers=True)
        assert not job.wait().succeeded
        assert job.check("exit_codes", 3).verdict.is_valid
        assert "1 of at least 2 nodes were ready" in job.log("n1")

    @pytest.mark.elastic(no_workers=True)
    def test_whose_marker_asks(elastic_job):
        assert not elastic_job("hello.py", launcher=ALONE).wait().succeeded

    def test_that_does_not_ask(elastic_job):
        assert not elastic_job("hello.py", launcher=ALONE).wait()

    def test_whose_job_begins(elastic_job):
        assert elastic_job("hello.py", no_workers=True).wait().succeeded

    def test_with_a_word(elastic_job):
        elastic_job("hello.py", no_workers="yes")

    def test_with_a_storm(elastic_job):
        job = elastic_job("hello.py", no_workers=True, max_restarts=5)
        job.storm(faults=["worker"])
        job.start()
"""


@pytest.fixture(scope="module")
def called(tmp_path_factory: pytest.TempPathFactory) -> Called:
    """Run all of it once."""
    place = Place(tmp_path_factory.mktemp("no-workers"))
    place.add_ini("elastic_nodes = 1")
    place.add_scripts()
    place.add("test_jobs.py", TESTS)
    return place.pytest("-rA", "-p", "no:randomly")


@pytest.mark.parametrize("test", ["test_that_asks", "test_whose_marker_asks"])
def test_a_job_that_never_begins_passes_where_that_is_asked_for(called: Called, test: str) -> None:
    """By the call or by the marker; nothing is judged that only workers could show."""
    assert called.outcomes[test] == "PASSED", called.out


def test_it_is_unknown_where_it_is_not_asked_for(called: Called) -> None:
    """A script that nobody has heard of must not pass; and what would ask is named."""
    assert called.outcomes["test_that_does_not_ask"] == "FAILED", called.out
    about = called.about("test_that_does_not_ask")
    assert about.startswith("UNKNOWN: ")
    assert "no worker said hello (if none is to be started, `no_workers` asks for that)" in about


def test_a_job_that_begins_all_the_same_fails(called: Called) -> None:
    """However well it ended."""
    assert called.outcomes["test_whose_job_begins"] == "FAILED", called.out
    about = called.about("test_whose_job_begins")
    assert about.startswith("INVALID: no_workers\n  workers of n1 were started")


@pytest.mark.parametrize(
    ("test", "message"),
    [
        ("test_with_a_word", "no_workers='yes': True or False is expected"),
        (
            "test_with_a_storm",
            "`recovered` is about workers, and `no_workers` says: none is started",
        ),
    ],
)
def test_what_cannot_be_meant_is_said(called: Called, test: str, message: str) -> None:
    """In one line, at the test's own."""
    about = called.about(test)
    (line,) = (line for line in about.splitlines() if line.startswith("E "))
    assert line.endswith(f"UsageError: {message}")
