"""Wrong jobs and careless tests, through the public interface only: none comes out green."""

from __future__ import annotations

import json

import pytest

from tests.plugin.place import Called, Place, scenario

TESTS = """
    import os, signal
    import pytest

    def test_check_is_false(elastic_job):
        job = elastic_job("hello.py")
        job.wait()
        assert job.check("restarts", 5)

    def test_check_that_nobody_looks_at(elastic_job):
        job = elastic_job("hello.py")
        job.wait()
        job.check("restarts", 5)

    def test_outcome_is_false(elastic_job):
        assert elastic_job("exits_3.py").wait()

    def test_that_never_looks_at_a_failed_job(elastic_job):
        elastic_job("exits_3.py").wait()

    def test_that_never_looks_at_refused_arguments(elastic_job):
        job = elastic_job("refuses.py", "--no-such-option")
        job.wait_for_event("worker_hello")
        job.wait()

    def test_check_on_the_timeline(elastic_job, elastic_chaos):
        job = elastic_job("forever.py", max_restarts=2)
        elastic_chaos.when(event="worker_hello").check([{"restarts": 2}])
        job.wait_for_event("worker_hello")
        job.wait_for_event("clause_judged")

    def test_fault_that_never_fires(elastic_job, elastic_chaos):
        job = elastic_job("forever.py")
        elastic_chaos.at(step=5, rank=0).kill("rank 0")
        job.wait_for_event("worker_hello")

    def test_check_that_is_never_reached(elastic_job, elastic_chaos):
        job = elastic_job("forever.py")
        elastic_chaos.at("60s").check(["ranks"])
        job.wait_for_event("worker_hello")

    def test_cluster_that_is_lost(elastic_job, elastic_cluster):
        job = elastic_job("forever.py")
        job.wait_for_event("worker_hello")
        for pid in sorted(elastic_cluster.session.cluster.own_pids, reverse=True):
            os.kill(pid, signal.SIGKILL)
        elastic_cluster.session._open.wait()

    def test_helper_that_outlives_its_worker(elastic_job):
        job = elastic_job("leaves_a_helper.py")
        assert job.wait()
        job.check("no_strays")

    def test_helper_that_ends_as_it_is_told(elastic_job):
        job = elastic_job("leaves_a_polite_helper.py")
        assert job.wait()
        job.check("no_strays")

    # and what is right

    def test_helpers_that_end_with_their_worker(elastic_job):
        job = elastic_job("has_a_helper.py")
        assert job.wait()
        job.check("no_strays")

    def test_that_looks_at_a_failed_job(elastic_job):
        assert not elastic_job("exits_3.py").wait().succeeded

    def test_that_names_how_it_ends(elastic_job):
        job = elastic_job("exits_3.py")
        job.wait()
        job.check("job", "failed")

    def test_that_ends_its_job(elastic_job, elastic_chaos):
        job = elastic_job("forever.py")
        elastic_chaos.at(step=5, rank=0).kill("rank 0", optional=True)
        job.wait_for_event("worker_hello")

    def test_that_expects_to_wait_in_vain(elastic_job):
        job = elastic_job("forever.py")
        with pytest.raises(AssertionError, match="not in time"):
            job.wait_for_round(2, within="100ms")
        assert not job.check("restarts", 5)
"""
LEAVES_A_HELPER = """
    import subprocess
    subprocess.Popen(["sleep", "987"], start_new_session=True)
"""
LEAVES_A_POLITE_HELPER = """
    import subprocess, sys
    code = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit()); "
    code += "print(flush=True); signal.pause()"
    helper = [sys.executable, "-c", code]
    subprocess.Popen(helper, start_new_session=True, stdout=subprocess.PIPE).stdout.readline()
"""
# The standard library's own helpers end a moment after the worker.
HAS_A_HELPER = """
    import multiprocessing, multiprocessing.shared_memory
    if __name__ == "__main__":
        memory = multiprocessing.shared_memory.SharedMemory(create=True, size=1)
        context = multiprocessing.get_context("forkserver")
        child = context.Process(target=print, args=("hello",))
        child.start()
        child.join()
        memory.close()
        memory.unlink()
"""
WRONG = {
    "test_check_is_false": "<restarts: 5: invalid: 0 restarts, 5 were expected>",
    "test_check_that_nobody_looks_at": "INVALID: restarts: 5",
    "test_outcome_is_false": "<job failed: all launchers that count have ended>",
    "test_that_never_looks_at_a_failed_job": "INVALID: job: succeeded",
    "test_that_never_looks_at_refused_arguments": "INVALID: job: succeeded",
    "test_check_on_the_timeline": "INVALID: check: restarts: 2",
    "test_fault_that_never_fires": "UNKNOWN: faults_effective",
    "test_check_that_is_never_reached": "UNKNOWN: check: ranks",
    "test_cluster_that_is_lost": "the cluster was lost",
    "test_helper_that_outlives_its_worker": "which the launcher ended: sleep 987",
    "test_helper_that_ends_as_it_is_told": "left 1 processes behind on n1",
}
RIGHT = [
    "test_helpers_that_end_with_their_worker",
    "test_that_looks_at_a_failed_job",
    "test_that_names_how_it_ends",
    "test_that_ends_its_job",
    "test_that_expects_to_wait_in_vain",
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Return a folder with all of them."""
    # Each of many launchers loads torch's library for its store, but where torch is there already.
    place = Place(tmp_path_factory.mktemp("wrongs"))
    place.add_ini("elastic_nodes = 1")
    place.add_scripts()
    place.add("refuses.py", "import argparse\nargparse.ArgumentParser().parse_args()")
    place.add("leaves_a_helper.py", LEAVES_A_HELPER)
    place.add("leaves_a_polite_helper.py", LEAVES_A_POLITE_HELPER)
    place.add("has_a_helper.py", HAS_A_HELPER)
    place.add("test_wrongs.py", TESTS)
    wrong = scenario("exits", script="exits_3.py").replace(
        "expect: {finally: [{job: succeeded}]}\n", ""
    )
    seen = scenario("seen", "expect: {sometimes: [{event: lease_lost}]}")
    place.add("some.elastic.yaml", f"{wrong}---\n{seen}")
    return place


@pytest.fixture(scope="module")
def called(place: Place) -> Called:
    """Run all of it once."""
    return place.pytest("-rA", "-p", "no:randomly")


@pytest.mark.parametrize("test", WRONG)
def test_what_is_wrong_is_red_and_says_why(called: Called, test: str) -> None:
    """With the reason on the screen."""
    assert called.outcomes[test] == "FAILED", called.out
    assert WRONG[test] in called.about(test), called.about(test)


@pytest.mark.parametrize("test", RIGHT)
def test_what_is_right_is_green(called: Called, test: str) -> None:
    """Nothing is asked of a test that it has answered itself."""
    assert called.outcomes[test] == "PASSED", called.about(test)


@pytest.mark.parametrize("id", ["exits", "seen"])
def test_check_repeats_the_verdict_of_the_run(called: Called, place: Place, id: str) -> None:
    """Clause for clause, with the exit code of the worst."""
    assert called.outcomes[id] == "FAILED", called.out
    (run,) = (name for name in place.runs if f"-{id}-" in name)
    again = place.call(["pytest-elastic", "check", f".elastic/{run}"])
    assert again.code == 1, again.out
    page = (place.folder / ".elastic" / run / "timeline.html").read_text()
    title = {"exits": "job: succeeded", "seen": "sometimes: event lease_lost"}[id]
    assert f"invalid  {title}: " in again.out
    assert f'<td class="invalid">invalid</td><td>{title}</td>' in page
    lines = (place.folder / ".elastic" / run / "history.jsonl").read_text().splitlines()
    planned = [json.loads(line) for line in lines if '"clause_planned"' in line]
    assert len(again.out.splitlines()) == len(planned) + 1, "and the harness's own part"
