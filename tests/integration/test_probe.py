"""The probe in real processes: what it sees, and that it is not seen itself."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from elastic_harness.history.events import (
    RankHeld,
    RankReleased,
    ResumeObserved,
    StepCompleted,
    WorkerFinished,
    WorkerGone,
    WorkerHello,
)
from elastic_harness.observe.observer import PROBE_FOLDER

from pytest_elastic.events.model import Record, WorkersHeld
from pytest_elastic.events.sinks import make_sink
from tests.integration.probe_bench import DEADLINE_S, Bench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """Give a bench, and end everything on it."""
    made = Bench(tmp_path)
    yield made
    made.close()


def test_a_worker_says_hello_before_its_first_line_and_goodbye_at_its_end(bench: Bench) -> None:
    """Who it is comes from the environment, its pid and start from the kernel."""
    sizes = {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
    process = bench.start("print('first line')", RANK="3", PYTEST_ELASTIC_ROUND="7", **sizes)
    bench.until_all_ended()
    (hello,) = bench.seen(WorkerHello)
    assert hello.event.pid == process.pid
    assert hello.event.start_time > 0
    assert (hello.event.rank, hello.event.world_size, hello.event.round) == (3, 4, 7)
    assert (hello.event.local_world_size, hello.event.group_world_size) == (2, None)
    assert (hello.event.restart_count, hello.event.max_restarts) == (0, 3)
    assert (hello.node, hello.record.run_id, hello.record.source) == ("n1", "job", "worker")
    assert hello.event.argv[-1].endswith(".py")
    assert bench.told().split() == ["worker_hello", "worker_finished", "worker_gone"]


def test_a_process_that_gets_its_rank_later_says_so_itself(bench: Bench) -> None:
    """As a worker of Ray Train does, which is a process of Ray first; the second call does nothing.

    Without the call nobody knows of it, and without a harness the call does nothing.
    """
    script = """
        import os, sys
        from elastic_harness.observe import report_worker
        path = list(sys.path)
        os.environ["RANK"] = "3"
        if len(sys.argv) > 1:
            report_worker()
            report_worker()
        print(sys.path == path, "elastic_probe" in sys.modules)
    """
    watched = {k: v for k, v in bench.environ().items() if k != "RANK"}
    plain = {k: v for k, v in watched.items() if not k.startswith("ELASTIC_")}
    path = bench.write(script)
    bench.start_command([sys.executable, path, "call"], watched)
    bench.start_command([sys.executable, path], watched)
    bench.start_command([sys.executable, path, "call"], plain)
    told = [text.strip() for text in bench.until_all_ended()]
    assert told == ["True True", "True False", "True False"]
    assert [hello.event.rank for hello in bench.seen(WorkerHello)] == [3]
    assert len(bench.seen(WorkerFinished)) == 1


def test_a_worker_that_is_killed_is_gone_without_goodbye(bench: Bench) -> None:
    """The kernel says so, whatever the worker could not say; `os._exit` is the same."""
    bench.start("import os; os.kill(os.getpid(), 9)")
    bench.start("import os; os._exit(3)", LOCAL_RANK="1", RANK="1")
    bench.until_all_ended()
    assert len(bench.seen(WorkerGone)) == 2
    assert not bench.seen(WorkerFinished)


def test_the_probe_leaves_next_to_nothing_in_a_worker(bench: Bench, tmp_path: Path) -> None:
    """No module but its own and Python's, no folder on the path, no PYTHONPATH for the children."""
    script = """
        import os, sys
        print(*sorted(sys.modules), sep=" ")
        print(*sys.path[1:], sep=" ")
        print(*sorted(os.environ), sep=" ")
        print(os.open("/dev/null", os.O_RDONLY))
    """
    plain = {k: v for k, v in bench.environ().items() if k not in ("RANK", "PYTHONPATH")}
    bench.start(script)
    bench.start_command([sys.executable, bench.write(script)], plain)
    watched, unwatched = bench.until_all_ended()
    modules, path, environ, descriptor = watched.splitlines()
    modules0, path0, environ0, descriptor0 = unwatched.splitlines()
    extra = set(modules.split()) - set(modules0.split())
    own = {
        f"elastic_probe{part}" for part in ("", "_cause", "_steps", "_torch", "_wire", "_worker")
    }
    assert _not_of_python(extra) <= own
    assert extra.isdisjoint({"json", "logging", "socket", "subprocess", "typing"}), "start slowly"
    assert path == path0
    assert descriptor == descriptor0
    assert set(environ.split()) - set(environ0.split()) == {"RANK", "ELASTIC_PROBE_WORKER"}


def test_in_a_process_that_is_no_worker_only_the_variable_stays(bench: Bench) -> None:
    """A launcher keeps PYTHONPATH for its workers, and shows no other sign."""
    script = """
        import os, sys
        print(*sorted(sys.modules))
        print(*sys.path[1:])
        print(os.environ.get("PYTHONPATH"))
    """
    watched = {k: v for k, v in bench.environ().items() if k != "RANK"}
    plain = {k: v for k, v in watched.items() if k != "PYTHONPATH"}
    path = bench.write(script)
    bench.start_command([sys.executable, path], watched)
    bench.start_command([sys.executable, path], plain)
    with_probe, without = (text.splitlines() for text in bench.until_all_ended())
    modules, modules0 = (set(lines[0].split()) for lines in (with_probe, without))
    assert _not_of_python(modules) == _not_of_python(modules0)
    assert with_probe[1] == without[1]
    assert with_probe[2] == PROBE_FOLDER
    assert not bench.seen(WorkerHello)


def _not_of_python(modules: Iterable[str]) -> set[str]:
    """Leave the standard library out: how much of it is loaded at start differs between builds."""
    return {name for name in modules if name.partition(".")[0] not in sys.stdlib_module_names}


@pytest.mark.parametrize("rank", ["0", None])
def test_the_sitecustomize_that_would_have_run_runs(bench: Bench, rank: str | None) -> None:
    """The user's own is found behind ours, in workers and elsewhere."""
    own = bench.folder / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import builtins; builtins.mine = __file__")
    environ = bench.environ()
    environ["PYTHONPATH"] += os.pathsep + str(own)
    if rank is None:
        del environ["RANK"]
    script = bench.write("import os, sys; print(mine, sys.modules['sitecustomize'].__file__)")
    bench.start_command([sys.executable, script], environ)
    (text,) = bench.until_all_ended()
    assert text.split() == [str(own / "sitecustomize.py")] * 2
    assert len(bench.seen(WorkerHello)) == (rank is not None)


def test_children_of_a_worker_are_no_workers(bench: Bench) -> None:
    """Forks, spawned children and programs carry the same RANK and say nothing."""
    bench.start(
        """
        import multiprocessing, os, subprocess, sys

        def work(queue):
            queue.put(1)

        if __name__ == "__main__":
            for method in ("fork", "spawn", "forkserver"):
                context = multiprocessing.get_context(method)
                queue = context.Queue()
                child = context.Process(target=work, args=(queue,))
                child.start()
                assert queue.get(timeout=30) == 1
                child.join(30)
            subprocess.run([sys.executable, "-c", "pass"], check=True)
            probed = {**os.environ, "PYTHONPATH": os.environ["PROBE"]}
            subprocess.run([sys.executable, "-c", "pass"], env=probed, check=True)
            del probed["ELASTIC_PROBE_WORKER"]
            subprocess.run([sys.executable, "-c", "pass"], env=probed, check=True)
            print("done")
    """,
        PROBE=PROBE_FOLDER,
    )
    (text,) = bench.until_all_ended()
    assert text.strip() == "done"
    assert len(bench.seen(WorkerHello)) == 1
    assert len(bench.seen(WorkerFinished)) == 1


def test_a_program_below_a_shell_is_the_worker(bench: Bench) -> None:
    """The first Python that says hello is it, whatever started it."""
    bench.observe()
    script = bench.write("pass")
    bench.start_command(["sh", "-c", f"{sys.executable} {script}; true"], bench.environ())
    bench.until_all_ended()
    assert len(bench.seen(WorkerHello)) == 1


LOOP_SCRIPT = """
    import os, signal, sys, time
    from elastic_harness.observe import report_step

    class Stop(Exception):
        pass

    def stop(*_):
        raise Stop

    signal.signal(signal.SIGTERM, stop)
    try:
        for step in range(int(os.environ.get("FIRST", "1")), 9):
            report_step(step)
    except Stop:
        print("stopped at", step)
"""


def test_a_script_can_report_its_own_steps(bench: Bench) -> None:
    """Global steps, and where it resumed, come from its one line."""
    bench.start(LOOP_SCRIPT, FIRST="5")
    bench.until_all_ended()
    assert [entry.event.step for entry in bench.seen(StepCompleted)] == [5, 6, 7, 8]
    assert [entry.event.count for entry in bench.seen(StepCompleted)] == [1, 2, 3, 4]
    assert [entry.event.step for entry in bench.seen(ResumeObserved)] == [4]
    steps = bench.seen(StepCompleted)
    assert all(a.at <= b.event.began_at <= b.at for a, b in pairwise(steps))


def test_report_step_is_harmless_without_a_harness() -> None:
    """The line can stay in the script for good."""
    from elastic_harness.observe import report_resume, report_samples, report_step

    report_resume(1)
    report_step(1)
    report_samples([1, 2])


def test_a_rank_is_held_at_its_step_until_it_is_released(bench: Bench) -> None:
    """Nothing of step 4 happens before the fault pinned to step 3 has fired."""
    bench.observer.arm(3, 0)
    bench.observer.arm(6, 1)  # somebody else's
    process = bench.start(LOOP_SCRIPT)
    bench.until(lambda: bench.seen(RankHeld))
    assert bench.observer.held == (process.pid,)
    assert [entry.event.step for entry in bench.seen(StepCompleted)] == [1, 2, 3]
    bench.observer.disarm(3, 0)
    bench.observer.release(process.pid)
    bench.until_all_ended()
    assert len(bench.seen(StepCompleted)) == 8
    assert [entry.event.step for entry in bench.seen(RankHeld)] == [3]
    assert [entry.event.step for entry in bench.seen(RankReleased)] == [3]


def test_an_order_to_hold_reaches_a_worker_at_its_next_step(bench: Bench) -> None:
    """New holds come over the socket; one that is late holds at once."""
    bench.observer.arm(2, None)
    process = bench.start(LOOP_SCRIPT)
    bench.until(lambda: len(bench.seen(RankHeld)) == 1)
    bench.observer.arm(1, 0)
    bench.observer.arm(5, 0)
    bench.observer.arm(7, 0)
    bench.observer.disarm(7, 0)
    bench.observer.release(process.pid)
    bench.until(lambda: len(bench.seen(RankHeld)) == 2)
    bench.observer.release(process.pid)
    bench.until(lambda: len(bench.seen(RankHeld)) == 3)
    bench.observer.release(process.pid)
    bench.until_all_ended()
    assert [entry.event.step for entry in bench.seen(RankHeld)] == [2, 3, 5]


def test_a_hold_ends_by_itself(bench: Bench) -> None:
    """A harness that forgets a rank does not stop the training for ever."""
    bench.observe(hold_s=0.2).arm(3, 0)
    bench.start(LOOP_SCRIPT)
    bench.until_all_ended()
    assert len(bench.seen(StepCompleted)) == 8
    held, released = bench.seen(RankHeld)[0], bench.seen(RankReleased)[0]
    assert 0.1 < released.at - held.at < 20.0


def test_a_held_rank_still_obeys_signals(bench: Bench) -> None:
    """SIGTERM runs the script's own handler, and what that raises goes its way."""
    bench.observer.arm(3, 0)
    process = bench.start(LOOP_SCRIPT)
    bench.until(lambda: bench.seen(RankHeld))
    process.send_signal(signal.SIGTERM)
    (text,) = bench.until_all_ended()
    assert text.strip() == "stopped at 3"


def test_a_held_rank_goes_on_when_the_harness_is_gone(bench: Bench) -> None:
    """The socket's end releases it."""
    bench.observer.arm(3, 0)
    process = bench.start(LOOP_SCRIPT)
    bench.until(lambda: bench.seen(RankHeld))
    bench.observer.close()
    text, _ = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, text) == (0, "")


def test_without_a_harness_a_worker_just_runs(bench: Bench) -> None:
    """A socket that is not there, or that nobody answers, costs nothing or a bounded wait."""
    environ = bench.environ(ELASTIC_PROBE_SOCKET=str(bench.folder / "nobody"))
    bench.start_command([sys.executable, bench.write(LOOP_SCRIPT)], environ)
    assert bench.until_all_ended() == [""]


def test_a_harness_that_reads_nothing_does_not_slow_the_training(bench: Bench) -> None:
    """Steps that nobody takes wait in a bounded buffer and are then dropped."""
    bench.start("""
        import sys, time
        from elastic_harness.observe import report_step
        report_step(0)
        print("go", flush=True)
        sys.stdin.readline()
        for step in range(1, 50_000):
            report_step(step)  # waits for nobody, or the test waits in vain
        print("done", flush=True)
        sys.stdin.readline()
    """)
    process = bench.processes[0]
    assert process.stdin is not None
    assert process.stdout is not None
    bench.until(lambda: bench.seen(ResumeObserved))
    # From here on the observer does not look.
    assert process.stdout.readline() == "go\n"
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "done\n"
    process.stdin.close()
    process.stdin = None
    bench.until(lambda: process.poll() is not None)
    bench.until(lambda: bench.seen(WorkerGone))
    counts = [entry.event.count for entry in bench.seen(StepCompleted)]
    assert counts == list(range(1, len(counts) + 1))
    assert 1000 < len(counts) < 50_000


def test_a_worker_of_an_older_round_that_lives_is_named_by_the_newer_hello(bench: Bench) -> None:
    """The hello waits until the harness has looked, so this is a fact and not a race."""
    wait = "import sys; sys.stdin.readline()"
    old = bench.start(wait, TORCHELASTIC_RESTART_COUNT="0")
    dead = bench.start(wait, TORCHELASTIC_RESTART_COUNT="0", LOCAL_RANK="1", RANK="1")
    bench.until(lambda: len(bench.seen(WorkerHello)) == 2)
    dead.kill()
    dead.wait(DEADLINE_S)  # and the loop has not heard of it
    bench.start("pass", TORCHELASTIC_RESTART_COUNT="1")
    bench.until(lambda: len(bench.seen(WorkerHello)) == 3)
    assert bench.seen(WorkerHello)[2].event.alive_before == (old.pid,)
    (gone,) = bench.seen(WorkerGone)[:1]
    assert gone.event.pid == dead.pid
    assert gone.seq < bench.seen(WorkerHello)[2].seq
    assert old.stdin is not None
    old.stdin.close()
    old.stdin = None


def test_the_same_local_rank_again_is_a_new_round_though_nothing_else_changed(bench: Bench) -> None:
    """Torchrun's membership changes alter no variable."""
    wait = "import sys; sys.stdin.readline()"
    old = bench.start(wait)
    bench.until(lambda: bench.seen(WorkerHello))
    bench.start("pass")
    bench.until(lambda: len(bench.seen(WorkerHello)) == 2)
    assert bench.seen(WorkerHello)[1].event.alive_before == (old.pid,)
    assert old.stdin is not None
    old.stdin.close()
    old.stdin = None


def test_agents_and_probes_share_one_socket(bench: Bench) -> None:
    """Records of agents arrive as they are, beside what workers say."""
    bench.observe()
    sink = make_sink(f"unix:{bench.path}", bench.loop)
    event = WorkersHeld(round=1, reason="contact lost")
    told = Record(at=1.0, source="agent", node="n9", run_id="job", event=event)
    sink.send(told)
    bench.start("pass")
    bench.until_all_ended()
    bench.until(lambda: bench.seen(WorkersHeld))
    assert told in bench.history.records
    sink.close()


def test_foreign_bytes_on_the_socket_end_nothing(bench: Bench) -> None:
    """A process that connects by mistake is ignored."""
    import socket

    bench.observe()
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(bench.path)
        stranger.sendall(b'\x00\xff\n{"say":"step"}\n{"say":"hello"}\n[1]\nGET / HTTP/1.1\r\n\r\n')
        bench.start("pass")
        bench.until_all_ended()
    assert len(bench.seen(WorkerHello)) == 1


def test_a_faked_clock_in_the_worker_does_not_move_its_steps(bench: Bench) -> None:
    """Times are put back on the harness's clock, by the difference at the hello."""
    before = bench.loop.now()
    # What libfaketime does below Python, done above it: the worker's clock is a day ahead.
    bench.start_command(
        [
            sys.executable,
            "-c",
            textwrap.dedent(f"""
                import os, sys, time
                real = time.clock_gettime
                time.clock_gettime = lambda clock: real(clock) + 86400
                sys.path.insert(0, {PROBE_FOLDER!r})
                import elastic_probe
                elastic_probe.start({PROBE_FOLDER!r})
                elastic_probe.report_step(1)
            """),
        ],
        {key: value for key, value in bench.environ().items() if key != "PYTHONPATH"},
    )
    bench.until_all_ended()
    (step,) = bench.seen(StepCompleted)
    assert before - 1.0 < step.event.began_at <= step.at < bench.loop.now() + 1.0
