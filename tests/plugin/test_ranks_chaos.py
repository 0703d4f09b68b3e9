"""Faults in the body of a test on ranks, and what ranks tell beside how they ended."""

from __future__ import annotations

import sys

import pytest

from tests.plugin.place import Called, Place

TESTS = """
    import datetime, os, signal, time, warnings
    import pytest, torch, torch.distributed as dist

    @pytest.mark.ranks(4)
    def test_survivors_hear_of_a_kill(rank, elastic_chaos):
        dist.barrier()
        elastic_chaos.here().kill("rank 3")
        assert rank != 3
        with pytest.raises(RuntimeError, match="onnection"):
            dist.all_reduce(torch.ones(1))

    @pytest.mark.ranks(3)
    def test_not_expected(elastic_chaos):
        elastic_chaos.here().kill("rank 1")
        dist.all_reduce(torch.ones(1))

    @pytest.mark.ranks(2)
    def test_a_signal_may_be_caught(rank, elastic_chaos):
        heard = []
        signal.signal(signal.SIGUSR1, lambda *_: heard.append(True))
        elastic_chaos.here().kill("rank 1", signal="SIGUSR1")
        dist.barrier()
        assert heard == [True] * rank

    @pytest.mark.ranks(3)
    def test_a_paused_rank_is_named_and_goes_on(rank, elastic_chaos):
        pause = elastic_chaos.here().pause("rank 2")
        if rank != 2:
            with pytest.raises(RuntimeError):
                dist.monitored_barrier(timeout=datetime.timedelta(seconds=0.3))
        if rank == 0:
            pause.heal()
            pause.heal()

    @pytest.mark.ranks(2)
    def test_a_pause_may_end_by_itself(rank, elastic_chaos):
        began = time.monotonic()
        if rank == 0:
            elastic_chaos.now().pause("rank 1", lasting="300ms")
        dist.barrier()
        if rank == 0:
            assert time.monotonic() - began >= 0.3

    @pytest.mark.ranks(2)
    def test_a_pause_that_nothing_ends(rank, elastic_chaos):
        elastic_chaos.here().pause("rank 1")
        assert rank == 0

    @pytest.mark.ranks(3, limit="1s")
    def test_hangs_on_a_paused_rank(elastic_chaos):
        elastic_chaos.here().pause("rank 1")
        dist.barrier()

    @pytest.mark.ranks(2)
    def test_a_failure_beside_a_kill(rank, elastic_chaos):
        elastic_chaos.here().kill("rank 1")
        raise KeyError("the survivor's")

    @pytest.mark.ranks(2)
    def test_dies_of_another_signal(rank, elastic_chaos):
        signal.signal(signal.SIGUSR1, lambda *_: None)
        elastic_chaos.here().kill("rank 1", signal="SIGUSR1")
        if rank == 1:
            os.kill(os.getpid(), signal.SIGSEGV)

    @pytest.mark.ranks(2)
    def test_no_rank_is_left(elastic_chaos):
        elastic_chaos.here().kill(["rank 0", "rank 1"])

    @pytest.mark.ranks(2)
    def test_not_the_same(rank, elastic_chaos):
        elastic_chaos.here().kill(f"rank {rank}")

    @pytest.mark.ranks(2, limit="20s")
    def test_who_has_passed_is_not_hit(rank, elastic_chaos):
        signal.signal(signal.SIGUSR1, lambda *_: None)
        elastic_chaos.here().kill("rank 1", signal="SIGUSR1")
        while rank == 0:
            elastic_chaos.now().kill("rank 1", signal="SIGUSR1")

    @pytest.mark.ranks(2)
    def test_no_such_rank(elastic_chaos):
        elastic_chaos.here().kill("rank 7")

    @pytest.mark.ranks(2)
    def test_no_such_fault(elastic_chaos):
        elastic_chaos.now().partition("n1")

    @pytest.mark.ranks(2)
    def test_no_steps(elastic_chaos):
        elastic_chaos.at(step=3).kill("rank 1")

    @pytest.mark.ranks(2)
    def test_a_job_beside_ranks(elastic_job):
        pass

    init_process_group, joined_s = dist.init_process_group, []

    def join_slowly(*args, **settings):
        init_process_group(*args, **settings)
        if (os.environ["RANK"], os.environ["WORLD_SIZE"]) == ("1", "5"):
            time.sleep(0.3)
        joined_s.append(time.monotonic())

    dist.init_process_group = join_slowly

    @pytest.mark.ranks(5)
    def test_begins_when_all_have_joined():
        began_s, told = time.monotonic(), [None] * 5
        dist.all_gather_object(told, (joined_s[0], began_s))
        assert min(began for _, began in told) >= max(joined for joined, _ in told)

    @pytest.mark.ranks(3)
    def test_warns(rank):
        class Local(UserWarning):
            pass

        warnings.warn("said on all")
        warnings.warn("of a class of the test", Local)
        if rank == 2:
            warnings.warn("said on one", DeprecationWarning)
"""
PASSED = {
    *("test_survivors_hear_of_a_kill", "test_a_signal_may_be_caught", "test_warns"),
    *("test_a_paused_rank_is_named_and_goes_on", "test_a_pause_may_end_by_itself"),
    *("test_a_pause_that_nothing_ends", "test_begins_when_all_have_joined"),
}
FAILURES = {
    "test_not_expected": ["ranks 0, 2: RuntimeError", "rank 1 was ended by this test with SIGKILL"],
    "test_hangs_on_a_paused_rank": [
        "rank 1 did not come to where ranks 0, 2 waited, in barrier",
        "was paused by this test; the limit of 1 s is over",
    ],
    "test_dies_of_another_signal": ["rank 1: at ", "was killed by SIGSEGV", "rank 0 passed"],
    "test_a_failure_beside_a_kill": [
        'rank 0: KeyError: "the survivor\'s"',
        "rank 1 was ended by this test",
    ],
    "test_no_rank_is_left": ["no rank is left to say whether the test passed"],
    "test_not_the_same": ["here() means the same fault on every rank, but rank 0: kill rank 0;"],
    "test_who_has_passed_is_not_hit": ["rank 1 had ended before"],
    "test_no_such_rank": ["kill rank 7: there is no rank 7 among 2 (0 to 1)"],
    "test_no_such_fault": ["partition: a test on ranks knows the faults kill and pause"],
    "test_no_steps": ["a test on ranks says when by here() or now()"],
    "test_a_job_beside_ranks": ["the fixture elastic_job starts a job, which has ranks of its own"],
}


@pytest.fixture(scope="module")
def called(tmp_path_factory: pytest.TempPathFactory) -> Called:
    """All of these tests, called once."""
    place = Place(tmp_path_factory.mktemp("chaos"))
    place.add_ini()
    place.add("test_some.py", TESTS)
    return place.pytest("-rA")


def test_faults_take_effect_where_the_body_says(called: Called) -> None:
    """A rank that the test has killed does not fail it; what its survivors do decides."""
    expected = dict.fromkeys(PASSED, "PASSED") | dict.fromkeys(FAILURES, "FAILED")
    assert called.outcomes == expected, called.out


@pytest.mark.parametrize("test", FAILURES)
def test_a_failure_says_what_the_test_has_done(called: Called, test: str) -> None:
    """The fault is named beside what followed from it, and a mistake at the test's own line."""
    said = called.about(test)
    for sentence in FAILURES[test]:
        assert sentence in said
    assert "ranks/chaos.py" not in said.replace("in elastic_chaos (", "")


def test_a_warning_is_in_the_summary_once(called: Called) -> None:
    """However many ranks have met it."""
    _, _, summary = called.out.partition("= warnings summary =")
    summary, _, _ = summary.partition("-- Docs")
    assert summary.count("test_some.py::test_warns\n") == 3, called.out
    for sentence in (
        *("UserWarning: said on all", "DeprecationWarning: said on one"),
        "test_warns.<locals>.Local: of a class of the test",
    ):
        assert summary.count(sentence) == 1


def test_lines_that_ran_on_ranks_are_covered(place: Place) -> None:
    """Those that only one rank came to are, and those that none came to are not."""
    place.add(
        "used.py",
        """
        def by_all(number):
            if number > 100:
                return 0
            return number

        def by_one():
            return 1
        """,
    )
    place.add(
        "test_some.py",
        """
        import pytest, used

        @pytest.mark.ranks(2)
        def test_some(rank):
            assert used.by_all(rank) == rank
            if rank == 1:
                used.by_one()
        """,
    )
    measured = [sys.executable, "-m", "coverage"]
    called = place.call([*measured, "run", "--include=used.py", "-m", "pytest"])
    assert called.code == pytest.ExitCode.OK, called.out
    told = place.call([*measured, "report", "--show-missing"]).out
    assert "used.py       6      1    83%   3\n" in told
