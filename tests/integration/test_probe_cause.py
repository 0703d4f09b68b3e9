"""Why a worker fails, and where it stands still, seen from inside; and that nobody notices."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from elastic_harness.cluster.client import ProcessCluster
from elastic_harness.cluster.cluster import Capabilities
from elastic_harness.cluster.process_table import row_of
from elastic_harness.future import run, wait_for
from elastic_harness.history.events import StackSeen, WorkerRaised
from elastic_harness.observe.stacks import ask_for_stacks

from tests.integration.probe_bench import DEADLINE_S, Bench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """Give a bench, and end everything on it."""
    made = Bench(tmp_path)
    yield made
    made.close()


def both(bench: Bench, script: str) -> tuple[list[WorkerRaised], int]:
    """Run a script as a worker and without the probe: output and exit code must be the same."""
    path = bench.write(script)
    watched = bench.environ()
    plain = {k: v for k, v in watched.items() if k != "ELASTIC_PROBE_SOCKET"}
    processes = [
        bench.start_command([sys.executable, path], environ) for environ in (watched, plain)
    ]
    with_probe, without = bench.until_all_ended()
    assert with_probe == without
    assert processes[0].returncode == processes[1].returncode
    return [entry.event for entry in bench.seen(WorkerRaised)], processes[0].returncode


def test_what_ends_a_worker_is_reported_and_printed_as_ever(bench: Bench) -> None:
    """The class with its module, the message, and where it came by, innermost first."""
    script = """
        import os, sys
        def load():
            os.close(9999)
        def main():
            load()
        assert sys.excepthook is sys.__excepthook__
        main()
    """
    (raised,), code = both(bench, script)
    assert code == 1
    assert (raised.error, raised.message) == ("OSError", "[Errno 9] Bad file descriptor")
    assert [frame.rpartition(" in ")[2] for frame in raised.frames] == ["load", "main", "<module>"]
    assert raised.frames[0].partition(" in ")[0].endswith(".py:4")
    assert raised.thread == ""
    assert bench.told().split().index("worker_raised") < bench.told().split().index("worker_gone")


@pytest.mark.parametrize(
    ("hook", "count"),
    [
        ("sys.excepthook = lambda *told: print('mine', told[0].__name__)", 1),
        ("sys.excepthook = lambda *told: (print('mine'), sys.__excepthook__(*told))", 1),
        ("before = sys.excepthook; sys.excepthook = lambda *told: before(*told)", 1),
        # Nobody is told of this one but by what it prints.
        ("import os; sys.excepthook = lambda *told: os._exit(3)", 0),
    ],
)
def test_a_hook_of_the_scripts_own_is_respected(bench: Bench, hook: str, count: int) -> None:
    """It prints what it prints, and the exception is reported once all the same."""
    raised, _ = both(bench, f"import sys\n{hook}\n{{}}['missing']")
    assert [each.error for each in raised] == ["KeyError"] * count


@pytest.mark.parametrize("early", ["import threading", ""])
@pytest.mark.parametrize(
    "hook",
    ["", "import sys, threading; threading.excepthook = lambda args: sys.excepthook(*args[:3])"],
)
def test_a_thread_that_fails_is_named(bench: Bench, early: str, hook: str) -> None:
    """Its process lives on, and may be waited for for ever."""
    script = f"""
        {early}
        {hook}
        import threading
        if not {hook!r}:
            assert threading.excepthook is threading.__excepthook__
        def save():
            raise OSError("disk")
        thread = threading.Thread(target=save, name="saver")
        thread.start()
        thread.join()
        raise SystemExit(4)
    """
    (raised,), code = both(bench, script)
    assert code == 4
    assert (raised.error, raised.message) == ("OSError", "disk")
    assert raised.thread == ("a thread" if hook else "saver")


@pytest.mark.parametrize("end", ["sys.exit(2)", "sys.exit('no')", "pass", "os._exit(1)"])
def test_an_end_without_an_exception_is_none(bench: Bench, end: str) -> None:
    """`sys.exit` is an exception to Python only."""
    assert both(bench, f"import os, sys\n{end}")[0] == []


# --- stacks ------------------------------------------------------------------------------------

DEAF = "import signal; signal.signal(signal.SIGRTMIN + 13, signal.SIG_DFL)"
READY = "print('ready', flush=True)"
BLOCKED = {
    # Waits in C, and has given Python's lock away.
    "reads": f"import os\ndef wait():\n    {READY}\n    os.read(0, 1)\nwait()",
    # Waits in C, and keeps it: no thread of Python runs.
    "holds": f"import ctypes\ndef wait():\n    {READY}\n    libc.read(0, bytes(1), 1)\n"
    "libc = ctypes.PyDLL(None)\nwait()",
    "locks": f"import _thread\ndef wait():\n    {READY}\n    lock.acquire()\n"
    "lock = _thread.allocate_lock()\nlock.acquire()\nwait()",
    "runs": f"def wait():\n    {READY}\n    while True:\n        pass\nwait()",
}


def stacks_of(bench: Bench) -> list[StackSeen]:
    """Ask all workers, as a run does at its end."""
    began = bench.loop.now()
    # Signals and states of processes are known without a cluster that was started.
    cluster = ProcessCluster(bench.loop, on_event=lambda _: None, capabilities=Capabilities(()))
    asked = run(bench.loop, ask_for_stacks(cluster, bench.observer.stack_sources))
    seen = [stack for _, stack in wait_for(bench.loop, asked)]
    assert bench.loop.now() - began < DEADLINE_S / 10
    return seen


def wait_until_ready(bench: Bench) -> None:
    """Wait until every worker has said so."""
    bench.until(lambda: len(bench.observer.stack_sources) == len(bench.processes))
    for process in bench.processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    bench.until(lambda: all(source.offer for source in bench.observer.stack_sources))


def test_a_worker_says_where_it_stands_whatever_it_waits_for(bench: Bench) -> None:
    """In C with Python's lock or without it, or in a loop of its own."""
    environ = bench.environ()
    for rank, script in enumerate(BLOCKED.values()):
        own = {**environ, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        bench.start_command([sys.executable, bench.write(script)], own)
    wait_until_ready(bench)
    stacks = stacks_of(bench)
    assert [stack.rank for stack in stacks] == list(range(len(BLOCKED)))
    for stack, process in zip(stacks, bench.processes, strict=True):
        assert stack.pid == process.pid
        assert [frame.rpartition(" in ")[2] for frame in stack.frames] == ["wait", "<module>"], (
            stack
        )
        assert stack.source in {line.strip() for line in "\n".join(BLOCKED.values()).split("\n")}
        assert stack.reason == ""


def test_who_is_asked_goes_on_as_if_nothing_had_been(bench: Bench) -> None:
    """A read that is interrupted is restarted, other threads are shown, and the exit code is 0.

    The script's own use of faulthandler is its own.
    """
    script = f"""
        import faulthandler, os, signal, sys, threading
        log = open("own.txt", "w")
        faulthandler.register(signal.SIGUSR1, log)
        def other():
            os.read(pipe, 1)
        pipe, end = os.pipe()
        thread = threading.Thread(target=other)
        thread.start()
        {READY}
        assert os.read(0, 2) == b"ab"
        os.write(end, b"x")
        thread.join()
        os.kill(os.getpid(), signal.SIGUSR1)
        print(os.path.getsize("own.txt") > 0)
    """
    process = bench.start(script)
    wait_until_ready(bench)
    bench.until(lambda: sizes_of_reads(process.pid) == {1, 2})
    (stack,) = stacks_of(bench)
    assert stack.source == 'assert os.read(0, 2) == b"ab"'
    assert [frames[0].rpartition(" in ")[2] for frames in stack.others] == ["other"]
    assert process.stdin is not None
    process.stdin.write("ab")
    process.stdin.flush()
    assert bench.until_all_ended() == ["True\n"]
    assert process.returncode == 0


def test_who_cannot_answer_is_named_with_the_reason(bench: Bench) -> None:
    """Stopped, without the probe's file, another program by now, or deaf to the signal.

    The last two would be ended by it.
    """
    environ = bench.environ()
    scripts = (
        f"import os\n{READY}\nos.read(0, 1)",
        f"import os\n{READY}\nos.closerange(3, 1024)\nos.read(0, 1)",
        f"import os\n{READY}\nos.execlp('sleep', 'sleep', '600')",
        f"import os\n{DEAF}\n{READY}\nos.read(0, 1)",
    )
    for rank, script in enumerate(scripts):
        own = {**environ, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        bench.start_command([sys.executable, bench.write(script)], own)
    wait_until_ready(bench)
    stopped, _, became, deaf = bench.processes
    stopped.send_signal(signal.SIGSTOP)
    bench.until(lambda: state_of(stopped.pid) == "T")
    bench.until(lambda: name_of(became.pid) == "sleep")
    bench.until(lambda: len(bench.observer.stack_sources) == len(scripts))
    bench.until(lambda: not has_memory_file(bench.processes[1].pid))
    reasons = [stack.reason for stack in stacks_of(bench)]
    assert reasons == ["stopped (state T)", *["its probe offers no stacks"] * 3]
    assert [became.poll(), deaf.poll()] == [None, None]


def sizes_of_reads(pid: int) -> set[int]:
    """Return how many bytes each thread of a process waits for, by the kernel's third argument."""
    sizes = set()
    for thread in os.listdir(f"/proc/{pid}/task"):
        fields = Path(f"/proc/{pid}/task/{thread}/syscall").read_text().split()
        sizes.add(int(fields[3], 16) if len(fields) > 3 else -1)
    return sizes


def state_of(pid: int) -> str:
    """Return the letter of a process's state."""
    found = row_of(pid)
    return found.state if found is not None else ""


def name_of(pid: int) -> str:
    """Return the name of a process's program."""
    return Path(f"/proc/{pid}/comm").read_text().strip()


def has_memory_file(pid: int) -> bool:
    """Tell whether a process has a file in memory open."""
    folder = f"/proc/{pid}/fd"
    return any("memfd:" in os.readlink(f"{folder}/{name}") for name in os.listdir(folder))
