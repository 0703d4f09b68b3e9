"""`--elastic-leak-check` and its fixture: a test that leaves something behind does not pass."""

from __future__ import annotations

import pytest

from tests.plugin.place import Called, Place, scenario

TESTS = """
    import os, socket, subprocess, threading
    import pytest

    held = []

    @pytest.fixture(scope="session")
    def wide():
        # Longer than a test, and not its leak: it is there before the test begins.
        child = subprocess.Popen(["sleep", "600"])
        yield child
        child.kill()
        child.wait()

    @pytest.fixture(scope="session", autouse=True)
    def put_away():
        yield
        for thing in held:
            thing()

    def test_clean(wide, tmp_path, capfd):
        (tmp_path / "file").write_text("stays, as pytest wants it")

    def test_process():
        child = subprocess.Popen(["sleep", "600"])
        held.append(lambda: (child.kill(), child.wait()))

    def test_thread():
        stop = threading.Event()
        threading.Thread(target=stop.wait, name="straggler").start()
        held.append(stop.set)

    def test_descriptor():
        fd = os.open("/dev/null", os.O_RDONLY)
        held.append(lambda: os.close(fd))

    def test_garbage():
        loop = [socket.socket()]
        loop.append(loop)  # goes when it is collected, and not before

    def test_fails_and_leaks():
        fd = os.open("/dev/null", os.O_RDONLY)
        held.append(lambda: os.close(fd))
        raise AssertionError("the test's own failure")

    def test_job(elastic_job):
        assert elastic_job("hello.py", nodes=2).wait().succeeded

    def test_dirty(elastic_job, elastic_cluster):
        os.mkdir(elastic_cluster.session.cluster.scratch + "/run-left")
        assert elastic_job("hello.py", nodes=1).wait().succeeded

    def test_job_again(elastic_job):
        assert elastic_job("hello.py", nodes=1).wait().succeeded
"""


@pytest.fixture(scope="module")
def called(tmp_path_factory: pytest.TempPathFactory) -> Called:
    """Run all of them once, with every test looked at."""
    place = Place(tmp_path_factory.mktemp("leaks"))
    place.add_ini("elastic_leak_check = on")
    place.add_scripts()
    place.add("test_some.py", TESTS)
    place.add("some.elastic.yaml", scenario("passes"))
    return place.pytest("-rA", "-W", "ignore::ResourceWarning")


def test_what_leaves_nothing_passes(called: Called) -> None:
    """The cluster is the session's, wider fixtures are theirs, and what is garbage goes."""
    clean = ("test_clean", "test_garbage", "test_job", "test_dirty", "test_job_again", "passes")
    outcomes = {name: called.outcomes[name] for name in clean}
    assert outcomes == dict.fromkeys(clean, "PASSED"), called.out
    assert called.outcomes["test_fails_and_leaks"] == "FAILED"
    assert "test_fails_and_leaks has left" not in called.out


def test_a_cluster_that_is_not_clean_is_replaced_and_that_is_said(called: Called) -> None:
    """The test's own job runs on a new one, which is no leak of the test."""
    assert called.out.count("elastic: the cluster was replaced: it was not clean: ") == 1
    assert "/run-left is left" in called.out


@pytest.mark.parametrize(
    ("test", "line"),
    [
        ("test_process", "process left: "),
        ("test_thread", "thread left: straggler"),
        ("test_descriptor", "(/dev/null)"),
    ],
)
def test_what_leaves_something_is_an_error_that_names_it(
    called: Called, test: str, line: str
) -> None:
    """Without a traceback: the test's lines have nothing to do with it."""
    assert called.code == pytest.ExitCode.TESTS_FAILED, called.out
    about = called.about(f"ERROR at teardown of {test}")
    assert about.splitlines()[0] == f"{test} has left behind:"
    assert line in about
    assert "leak_check.py" not in about


def test_one_test_can_ask_for_it(place: Place) -> None:
    """By the fixture; the others are left alone."""
    place.add(
        "test_some.py",
        """
        import os
        def test_watched(elastic_leak_check):
            os.dup(0)
        def test_unwatched():
            os.dup(0)
        """,
    )
    called = place.pytest("-rA")
    assert "1 error" in called.out, called.out
    assert "ERROR test_some.py::test_watched" in called.out
    assert "test_unwatched has left" not in called.out


def test_an_interrupted_test_is_not_blamed_for_what_it_left(place: Place) -> None:
    """Its session ends at once, as ever, in the middle of everything."""
    place.add(
        "test_some.py",
        """
        def test_interrupted(tmp_path):
            held = open(tmp_path / "file", "w")
            raise KeyboardInterrupt
        """,
    )
    called = place.pytest("--elastic-leak-check=on")
    assert called.code == 2, called.out
    assert "left behind" not in called.out
    assert "pytest_elastic" not in called.out
