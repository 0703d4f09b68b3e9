"""Everything below a process is found and ended, however it tries to get away.

The sweeper ends *all* descendants of its process, so it runs in a process of its own here.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from pytest_elastic.workers import process_tree

LIMIT_S = 180.0

# Makes a tree, sweeps it, and says how many processes were killed and how many are left.
SWEEP = """\
import os, signal, sys, time
from pytest_elastic.loop import Loop
from pytest_elastic.workers import process_tree
process_tree.become_subreaper()
{tree}
def reap():
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return
        except ChildProcessError:
            return
loop = Loop()
sweeper = process_tree.Sweeper(loop, reap=reap, on_swept=loop.stop, spare=lambda pid: pid in spared)
began = loop.now()
sweeper.sweep()
loop.run()
left = [pid for pid in process_tree.descendants(os.getpid()) if pid not in spared]
print(len(sweeper.killed), left, loop.now() - began)
for pid in spared:
    os.kill(pid, signal.SIGKILL)
"""

# Sweeps a program that is told from others by its arguments, as early as its parent knows of it:
# again and again, as on a busy machine the arguments are there by then nearly every time.
EARLY = """\
import os, signal, sys
from multiprocessing import util
from pytest_elastic.loop import Loop
from pytest_elastic.workers import process_tree
process_tree.become_subreaper()
early, ended, killed = 0, [], []
def reap():
    pid = os.waitpid(-1, os.WNOHANG)[0]
    ended.extend([pid] if pid else [])
def spare(pid):
    global early
    early += process_tree.is_being_executed(pid)
    return "sleep(1000)" in process_tree.command_of(pid)
while not (early or ended):
    words = [sys.executable, "-c", "import time; time.sleep(1000)"]
    pid = util.spawnv_passfds(os.fsencode(sys.executable), words, [])
    loop = Loop()
    sweeper = process_tree.Sweeper(loop, reap=reap, on_swept=loop.stop, spare=spare)
    sweeper.sweep()
    loop.run()
    killed += sweeper.killed
    if not ended:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
print(ended, killed)
"""

MANY = """\
spared = []
reading, writing = os.pipe()
for _ in range(20):
    if os.fork() == 0:
        os.setsid()
        for _ in range(2):
            if os.fork() == 0:
                os.setsid()
                os.write(writing, b"x")
                time.sleep(1000)
        os.write(writing, b"x")
        time.sleep(1000)
count = 0
while count < 60:
    count += len(os.read(reading, 60))
"""

FORKER = """\
spared = []
reading, writing = os.pipe()
if os.fork() == 0:
    # Each generation forks the next and goes: there is always one, and never the same.
    while True:
        os.write(writing, b"x") if os.getpid() % 50 == 0 else None
        if os.fork():
            os._exit(0)
        os.setsid()
os.read(reading, 1)
"""

SPARED = """\
spared = []
for n in range(2):
    pid = os.fork()
    if pid == 0:
        time.sleep(1000)
    if n == 0:
        spared.append(pid)
"""


def sweep(tree: str) -> tuple[int, str, float]:
    """Run the sweep over a tree; return how many were killed, what is left, and the seconds."""
    done = subprocess.run(
        [sys.executable, "-c", SWEEP.format(tree=tree)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    killed, left, seconds = done.stdout.replace(", ", ",").split()
    return int(killed), left, float(seconds)


def test_sixty_processes_in_sessions_of_their_own_are_swept() -> None:
    """None is left, and it takes a small part of a second (26 ms measured for 88)."""
    killed, left, seconds = sweep(MANY)
    assert (killed, left) == (60, "[]")
    assert seconds < 20.0


def test_a_process_that_forks_without_end_is_swept() -> None:
    """It is stopped between two forks, sooner or later."""
    killed, left, _ = sweep(FORKER)
    assert killed >= 1
    assert left == "[]"


def test_spared_processes_live() -> None:
    """What is spared is neither killed nor waited for."""
    assert sweep(SPARED)[:2] == (1, "[]")


def test_a_program_is_spared_also_before_its_arguments_can_be_read() -> None:
    """With vfork a parent goes on that early: what the child is to be is seen a moment later."""
    command = [sys.executable, "-c", EARLY]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert done.stdout == "[] []\n"


def test_a_program_that_never_shows_arguments_is_swept_all_the_same() -> None:
    """As where a kernel does not tell where they are, and the program hides its own."""
    blind = (
        "process_tree.command_of = lambda pid: ''\nprocess_tree._stat = BLIND(process_tree._stat)"
    )
    wrap = """\
def BLIND(stat):
    def blind(pid):
        fields = stat(pid)
        return None if fields is None else [*fields[:46], b"0", *fields[47:]]
    return blind
"""
    killed, left, _ = sweep(f"{MANY}{wrap}{blind}")
    assert (killed, left) == (60, "[]")


def test_the_children_of_every_thread_are_found() -> None:
    """A child belongs to the thread that forked it, and is found all the same."""
    script = (
        "import os, threading, time\n"
        "from pytest_elastic.workers.process_tree import children_of\n"
        "pids = []\n"
        "done = threading.Event()\n"
        "def fork():\n"
        "    pids.append(os.posix_spawn('/bin/sleep', ['sleep', '1000'], {}))\n"
        "    done.wait()\n"
        "threads = [threading.Thread(target=fork) for _ in range(3)]\n"
        "[thread.start() for thread in threads]\n"
        "while len(pids) < 3: time.sleep(0.001)\n"
        "print(sorted(children_of(os.getpid())) == sorted(pids))\n"
        "done.set()\n"
        "[os.kill(pid, 9) for pid in pids]\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=LIMIT_S, check=True
    )
    assert done.stdout == "True\n"


def test_without_the_kernels_list_every_process_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slow way finds the same children."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        fast = process_tree.children_of(os.getpid())
        monkeypatch.setattr(process_tree, "_has_children_file", lambda: False)
        assert child.pid in process_tree.children_of(os.getpid())
        assert set(fast) <= set(process_tree.children_of(os.getpid()))
    finally:
        child.communicate(b"\n")


def test_a_process_is_known_by_pid_and_start_time() -> None:
    """A process has one start time for life, a zombie is told apart, what is gone has none."""
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    started = process_tree.start_time(child.pid)
    assert started is not None
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert process_tree.is_zombie(child.pid)
    assert process_tree.start_time(child.pid) == started
    child.wait()
    assert process_tree.start_time(child.pid) is None
    assert process_tree.process_group(child.pid) is None
    assert process_tree.process_group(os.getpid()) == os.getpgrp()


def test_the_processor_time_of_a_process_and_what_is_below_it_grows_with_their_work() -> None:
    """A child's own, and that of one that was reaped."""
    busy = "import time\nwhile time.process_time() < 0.1: pass\n"
    goes_on = f"{busy}print(1, flush=True); time.sleep(600)"
    below = (
        "import subprocess, sys\n"
        f"subprocess.run([sys.executable, '-c', {busy!r}])\n"
        f"child = subprocess.Popen([sys.executable, '-c', {goes_on!r}],"
        " stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\nprint(1, flush=True)\nsys.stdin.read()\nchild.kill()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", below], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"1\n"
        # Each of the two is rounded down, in two parts.
        assert process_tree.processor_ticks(process.pid) >= 0.2 * os.sysconf("SC_CLK_TCK") - 4
        process.communicate()
    assert process_tree.processor_ticks(process.pid) == 0
