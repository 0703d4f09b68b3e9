"""Tests marked `ranks`: the body runs on every rank, and one report says what was different."""

from __future__ import annotations

import os
import re
import select
import signal
import sys

import pytest
from elastic_harness.cluster import process_table

from tests.few_watches import needs_a_user_namespace
from tests.plugin.place import LIMIT_S, Called, Place

pytestmark = pytest.mark.usefixtures("forked_pytests")

TESTS = """
    import os, signal, subprocess, sys, time
    import pytest, torch, torch.distributed as dist
    from hypothesis import given, settings, strategies as st

    @pytest.fixture
    def summed(rank):
        tensor = torch.ones(3) * rank
        dist.all_reduce(tensor)
        yield tensor
        dist.barrier()

    @pytest.mark.ranks(4)
    def test_sums(summed):
        assert summed.tolist() == [6, 6, 6]

    @pytest.mark.ranks(2)
    @pytest.mark.parametrize("letter", ["a", "b"])
    def test_fixtures(rank, world_size, tmp_path, monkeypatch, capsys, letter, record_property):
        monkeypatch.setenv("LETTER", letter)
        record_property("letter", letter)
        print(os.environ["LETTER"], rank)
        assert capsys.readouterr().out == f"{letter} {rank}\\n"
        (tmp_path / str(rank)).touch()
        dist.barrier()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]
        assert (rank, world_size) == (dist.get_rank(), dist.get_world_size())
        assert int(os.environ["LOCAL_RANK"]) == rank
        assert world_size == 2

    @pytest.mark.ranks(2)
    @given(number=st.integers(), letters=st.text())
    @settings(max_examples=20)
    def test_draws(number, letters):
        drawn = [None, None]
        dist.all_gather_object(drawn, (number, letters))
        assert drawn[0] == drawn[1]

    def test_in_pytest_itself():
        assert "LETTER" not in os.environ
        assert not dist.is_initialized()

    class TestClass:
        made = []

        def setup_method(self):
            self.made.append(dist.get_rank())

        @pytest.mark.ranks(2)
        def test_method(self, rank):
            assert self.made == [rank]

    @pytest.mark.ranks(4)
    def test_two_differ(rank):
        print("said by", "odd" if rank % 2 else "even")
        assert rank % 2 == 0, "odd"

    @pytest.fixture
    def broken():
        raise OSError("no such disk")

    @pytest.mark.ranks(2)
    def test_broken_fixture(broken):
        pass

    @pytest.mark.ranks(3)
    def test_one_fails_and_others_wait(rank):
        if rank == 1:
            raise KeyError("the cause")
        dist.barrier()

    @pytest.mark.ranks(3, limit="2s")
    def test_hangs(rank):
        if rank == 2:
            time.sleep(1000)
        dist.barrier()

    @pytest.mark.ranks(3)
    def test_dies(rank):
        if rank == 1:
            os.kill(os.getpid(), signal.SIGSEGV)
        dist.barrier()

    @pytest.mark.ranks(2)
    def test_exits(rank):
        if rank == 1:
            os._exit(5)
        dist.barrier()

    @pytest.mark.ranks(2)
    def test_refused_by_torch(rank):
        dist.init_process_group("gloo")

    @pytest.mark.ranks(3)
    def test_a_connection_fails_first(rank):
        if rank == 1:
            raise RuntimeError("Connection closed by peer")
        time.sleep(1000)

    @pytest.mark.ranks(2, backend="no_such")
    def test_no_such_backend(rank):
        pass

    @pytest.mark.ranks(2)
    def test_leaves_a_child(rank):
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)", "left_by_rank"])

    def test_the_child_is_gone():
        from elastic_harness.cluster import process_table

        commands = [process_table.command_of(pid) for pid in process_table.processes()]
        assert not [command for command in commands if "left_by_rank" in command]

    @pytest.mark.ranks(2)
    def test_skips(rank):
        pytest.skip("not today")

    @pytest.mark.ranks(2)
    @pytest.mark.skipif(True, reason="never")
    def test_is_skipped():
        raise AssertionError

    @pytest.mark.ranks(2)
    @pytest.mark.xfail(raises=ValueError, strict=True)
    def test_xfails(rank):
        raise ValueError

    @pytest.mark.ranks(3)
    @pytest.mark.xfail(strict=True)
    def test_xfails_on_one(rank):
        assert rank != 1

    @pytest.mark.ranks(4)
    @pytest.mark.xfail(raises=ValueError)
    def test_xfails_on_one_and_fails_on_another(rank):
        if rank == 1:
            raise ValueError
        if rank == 2:
            pytest.skip("not here")
        assert rank != 3, "wrong"

    @pytest.mark.ranks(2)
    @pytest.mark.xfail(raises=ValueError)
    def test_xfails_otherwise(rank):
        raise KeyError

    @pytest.mark.ranks(2)
    @pytest.mark.xfail(strict=True)
    def test_xpasses(rank):
        pass

    def test_without_ranks(rank):
        pass

    @pytest.mark.ranks("4")
    def test_no_number(rank):
        pass

    @pytest.mark.ranks(2, limit=3)
    def test_no_unit(rank):
        pass

    @pytest.mark.ranks(2, nodes=3)
    def test_no_such_setting(rank):
        pass
"""
PASSED = {
    *("test_draws", "test_sums", "test_fixtures[a]", "test_fixtures[b]", "test_in_pytest_itself"),
    *("test_method", "test_leaves_a_child", "test_the_child_is_gone"),
}
FAILED = {
    *("test_two_differ", "test_broken_fixture", "test_one_fails_and_others_wait", "test_hangs"),
    *("test_dies", "test_exits", "test_xfails_otherwise", "test_xpasses"),
    "test_xfails_on_one_and_fails_on_another",
    *("test_refused_by_torch", "test_a_connection_fails_first", "test_no_such_backend"),
    *("test_no_number", "test_no_unit", "test_no_such_setting"),
}


@pytest.fixture(scope="module")
def called(tmp_path_factory: pytest.TempPathFactory) -> Called:
    """All of these tests, called once."""
    place = Place(tmp_path_factory.mktemp("ranks"))
    place.add_ini()
    place.add("test_some.py", TESTS)
    return place.pytest("-rA", "--junitxml=junit.xml")


def test_every_test_ends_as_it_should(called: Called) -> None:
    """Passed, failed, skipped and expected to fail, as if there were one rank."""
    expected = dict.fromkeys(PASSED, "PASSED") | dict.fromkeys(FAILED, "FAILED")
    assert called.outcomes == {
        **expected,
        "test_xfails": "XFAIL",
        "test_xfails_on_one": "XFAIL",
        "test_without_ranks": "ERROR",
    }, called.out
    assert re.search(r"SKIPPED \[1\] .*: not today", called.out)
    assert re.search(r"SKIPPED \[1\] .*: never", called.out)


@pytest.mark.parametrize(
    ("test", "sentences"),
    [
        ("test_two_differ", ["ranks 1, 3: AssertionError: odd", "ranks 0, 2 passed"]),
        (
            "test_xfails_on_one_and_fails_on_another",
            ["rank 3: AssertionError: wrong", "rank 0 passed", "rank 1 xfailed", "rank 2 skipped"],
        ),
        ("test_broken_fixture", ["ranks 0, 1: setup: OSError: no such disk"]),
        (
            "test_one_fails_and_others_wait",
            ["rank 1: KeyError: 'the cause'", "ranks 0, 2 failed because of that"],
        ),
        (
            "test_hangs",
            [
                "rank 2 did not come to where ranks 0, 1 waited, in barrier",
                "rank 2: at test_some.py:",
                "the limit of 2 s is over",
            ],
        ),
        ("test_dies", ["rank 1: at test_some.py:", "was killed by SIGSEGV (11)"]),
        ("test_exits", ["rank 1: exited with status 5"]),
        (
            "test_a_connection_fails_first",
            ["rank 1: RuntimeError: Connection closed by peer\nranks 0, 2: at test_some.py:"],
        ),
        ("test_without_ranks", ["@pytest.mark.ranks(4) would run it on four"]),
        ("test_no_number", ["on how many ranks? Write @pytest.mark.ranks(4)"]),
        ("test_no_unit", ["limit: 3 has no unit (did you mean '3s'?)"]),
        ("test_no_such_setting", ["no setting 'nodes': known are limit and backend"]),
    ],
)
def test_a_failure_says_which_ranks_differ(called: Called, test: str, sentences: list[str]) -> None:
    """The cause first, each difference once, and no frame of ours."""
    said = called.about(test)
    for sentence in sentences:
        assert sentence in said
    assert "pytest_elastic/plugin" not in said
    assert "_pytest/runner" not in said


def test_what_pytest_printed_before_the_ranks_is_printed_once(called: Called) -> None:
    """The server and the ranks are forked from pytest: its buffered lines are not theirs."""
    assert called.out.count("test session starts") == 1


def test_what_differs_is_shown_once(called: Called) -> None:
    """One traceback for two ranks; what they printed, by who printed it."""
    said = called.about("test_two_differ")
    assert said.count("E       AssertionError: odd\n") == 1
    assert re.search(r"Captured stdout call \(ranks 1, 3\) -+\nsaid by odd", called.out)
    assert re.search(r"Captured stdout call \(ranks 0, 2\) -+\nsaid by even", called.out)


def test_what_torch_refuses_is_shown_at_the_line_of_the_test(called: Called) -> None:
    """Not with the source of torch's function, whose documentation alone fills two screens."""
    said = called.about("test_refused_by_torch")
    assert '>       dist.init_process_group("gloo")' in said
    assert "E   ValueError: trying to initialize the default process group twice!" in said
    assert len(said.splitlines()) < 30


def test_a_sentence_of_all_ranks_is_said_once(called: Called) -> None:
    """Where none of them is missing from a collective."""
    said = called.about("test_no_such_backend")
    assert said.count("ranks 0, 1: AssertionError: Unknown backend type no_such") == 1


def test_the_first_line_that_a_person_reads_names_who_is_missing(called: Called) -> None:
    """Of a hang, the rank that is not there comes first, then its stack."""
    said = called.about("test_hangs")
    assert said.splitlines()[0].startswith("rank 2 did not come")
    assert said.index("  rank 2 of 3 _") < said.index("  ranks 0, 1 of 3 _")


def test_nothing_is_left_behind(called: Called) -> None:
    """Not what a test's ranks have started either, which goes before the next test begins."""
    assert called.code == pytest.ExitCode.TESTS_FAILED
    commands = [process_table.command_of(pid) for pid in process_table.processes()]
    assert not [command for command in commands if "left_by_rank" in command]


def test_no_rank_may_fail_in_silence(place: Place) -> None:
    """A subtest of one rank, a rank that ends in the middle, a fault of a rank that was done."""
    place.add(
        "test_some.py",
        """
        import os, unittest
        import pytest

        @pytest.mark.ranks(2)
        def test_subtest(rank, subtests):
            with subtests.test("planted"):
                assert rank == 0

        @pytest.mark.ranks(3)
        def test_leaves(rank):
            if rank == 2:
                os._exit(0)

        @pytest.mark.ranks(2)
        def test_all_leave(rank):
            os._exit(0)

        @pytest.mark.ranks(2)
        def test_here(rank, elastic_chaos):
            if rank == 0:
                elastic_chaos.here().kill("rank 1")

        class TestCase(unittest.TestCase):
            @pytest.mark.ranks(2)
            def test_method(self):
                assert True
        """,
    )
    called = place.pytest("-rA", "-v")
    failed = dict.fromkeys(["test_subtest", "test_leaves", "test_all_leave", "test_here"], "FAILED")
    assert called.outcomes == {**failed, "test_method": "PASSED"}, called.out
    assert "SUBFAILED" not in called.out
    assert "rank 1: assert 1 == 0" in called.out
    assert "rank 2: ended before its test had (exit code 0)" in called.out
    assert "rank 1 had ended before" in called.out
    assert called.code == 1


def test_workers_of_xdist_have_servers_of_their_own(place: Place) -> None:
    """Two tests at a time: each has its ports."""
    place.add(
        "test_some.py",
        """
        import pytest

        @pytest.mark.ranks(2)
        @pytest.mark.parametrize("number", range(16))
        def test_some(rank, number):
            import torch.distributed as dist
            told = [None, None]
            dist.all_gather_object(told, number)
            assert told == [number, number]

        @pytest.mark.ranks(2)
        def test_fails(rank):
            assert rank == 0
        """,
    )
    called = place.pytest("-n2", "-rf")
    assert "1 failed, 16 passed" in called.out, called.out
    assert "rank 1: assert 1 == 0" in called.out


def test_pytest_timeout_shows_where_the_ranks_are(place: Place) -> None:
    """Who is missing from the collective comes first; the session goes on, and nothing is left."""
    place.add(
        "test_some.py",
        """
        import subprocess, sys, time
        import pytest

        def hang(rank, name):
            import torch.distributed as dist
            if rank == 2:
                subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)", name])
                time.sleep(1000)
            dist.barrier()

        @pytest.mark.ranks(3)
        @pytest.mark.timeout(4, method="signal")
        def test_signal(rank):
            hang(rank, "late-signal")

        @pytest.mark.ranks(3)
        @pytest.mark.timeout(4, method="thread")
        def test_thread(rank):
            hang(rank, "late-thread")

        @pytest.mark.ranks(2)
        def test_next(rank):
            import torch.distributed as dist
            dist.barrier()
        """,
    )
    called = place.pytest("-rA", "--timeout=60")
    hang = {"test_signal": "FAILED", "test_thread": "FAILED"}
    assert called.outcomes == {**hang, "test_next": "PASSED"}, called.out
    for name in hang:
        said = called.about(name)
        assert said.startswith("rank 2 did not come to where ranks 0, 1 waited, in barrier")
        assert "the 4 s of pytest-timeout are over" in said
        assert said.index("  rank 2 of 3 _") < said.index("  ranks 0, 1 of 3 _")
    commands = [process_table.command_of(pid) for pid in process_table.processes()]
    assert not [command for command in commands if {"late-signal", "late-thread"} & {*command[-1:]}]


def test_starting_is_charged_to_no_test_and_a_slow_fixture_is_warned_of_once(place: Place) -> None:
    """A duration is a test's own; the wait for the server is said once, and torch says nothing.

    The warning comes at the second of three tests; not of a quick fixture, nor of one test's own.
    """
    place.add(
        "test_some.py",
        """
        import time, pytest

        @pytest.fixture(scope="module")
        def slow():
            time.sleep(1.1)

        @pytest.fixture(scope="module")
        def quick():
            pass

        @pytest.mark.ranks(2)
        @pytest.mark.parametrize("number", range(2))
        def test_first(rank, number):
            import torch.distributed as dist
            dist.barrier()

        @pytest.mark.ranks(2)
        @pytest.mark.parametrize("number", range(3))
        def test_some(number, slow, quick):
            pass

        @pytest.mark.ranks(2)
        def test_last(quick):
            pass
        """,
    )
    called = place.pytest("--durations=0", "-vv")
    took = [float(each) for each in re.findall(r"(\d+\.\d+)s call .*test_first", called.out)]
    assert len(took) == 2
    (waited,) = re.findall(r"waited (\d+\.\d+) s for torch's import", called.out)
    assert max(took) < float(waited), called.out
    assert "hostname of the client socket" not in called.out
    assert "6 passed, 1 warning" in called.out, called.out
    assert "the fixture 'slow' (scope module) takes more than 1 s" in called.out
    assert "test_some.py::test_some[1]" in called.out.rpartition("warnings summary")[2]


def test_a_test_may_end_its_process_group_and_make_another(place: Place) -> None:
    """It finds nothing of the first one in the store, and one more by keys of its own neither.

    A rank that read where another one had been before would connect to nobody.
    """
    place.add(
        "test_some.py",
        """
        import os
        import pytest, torch, torch.distributed as dist

        def sum_is_right(world_size):
            tensor = torch.ones(1)
            dist.all_reduce(tensor)
            assert tensor.item() == world_size

        @pytest.mark.ranks(4, limit="20s")
        @pytest.mark.parametrize("number", range(4))
        def test_anew(rank, world_size, number):
            dist.destroy_process_group()
            dist.init_process_group("gloo")
            sum_is_right(world_size)
            dist.destroy_process_group()
            address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
            store = dist.PrefixStore("second", dist.TCPStore(address, port, is_master=False))
            dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
            sum_is_right(world_size)
        """,
    )
    called = place.pytest()
    assert "4 passed" in called.out, called.out


@needs_a_user_namespace
def test_where_there_is_no_loopback_a_test_says_so(place: Place) -> None:
    """In its limit, and in one sentence; the next test is tried as well."""
    place.add(
        "test_some.py",
        """
        import pytest

        @pytest.mark.ranks(2, limit="30s")
        @pytest.mark.parametrize("number", range(2))
        def test_some(rank, number):
            pass
        """,
    )
    alone = ["unshare", "--user", "--map-root-user", "--net"]
    called = place.call([*alone, sys.executable, "-m", "pytest", "-rA", "--tb=long"])
    assert called.outcomes == {"test_some[0]": "FAILED", "test_some[1]": "FAILED"}, called.out
    (said, *more) = called.about("test_some[0]").splitlines()
    assert said == (
        "ranks reach each other by 127.0.0.1, to which no connection can be made here ([Errno 101] "
        "Network is unreachable): is the loopback interface up? `ip link set lo up`"
    )
    assert more == []


def test_an_interrupt_ends_the_ranks(place: Place) -> None:
    """Ctrl-C in the middle of a test: pytest says so, and nothing is left."""
    place.add(
        "test_some.py",
        """
        import os, time, pytest

        @pytest.mark.ranks(2)
        def test_forever(rank):
            os.write(1, b"begun\\n")
            time.sleep(1000)
        """,
    )
    process = place.start("-s")
    assert process.stdout is not None
    try:
        begun = 0
        for line in process.stdout:
            begun += line.count("begun")
            if begun == 2:
                break
        below = [os.pidfd_open(row.pid) for row in process_table.descendants(process.pid)]
        assert len(below) == 4  # the server, its stores, two ranks
        os.killpg(process.pid, signal.SIGINT)
        out, _ = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == pytest.ExitCode.INTERRUPTED, out
    assert "KeyboardInterrupt" in out
    assert all(has_ended(pidfd) for pidfd in below)


def has_ended(pidfd: int) -> bool:
    """Tell whether a process has ended, or does so within the limit."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    ended = bool(poll.poll(LIMIT_S * 1000))
    os.close(pidfd)
    return ended


def test_a_debugger_on_one_rank_stops_the_clock(place: Place) -> None:
    """The prompt stands for longer than the test's limit, and the other rank waits."""
    place.add(
        "test_some.py",
        """
        import pytest

        @pytest.mark.ranks(2, limit="3s")
        def test_looked_at(rank):
            import torch.distributed as dist
            number = 41
            if rank == 1:
                breakpoint()
            dist.barrier()
            assert number == 41 + rank
        """,
    )
    called = place.debug("-s", looks_s=5, types="number = 42\nc\n")
    assert called.code == pytest.ExitCode.OK, called.out
