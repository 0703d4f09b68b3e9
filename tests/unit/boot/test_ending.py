"""A program ends as a fresh one does: what it prints, registers, leaves open, its status."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from importlib.metadata import version
from pathlib import Path

import pytest

from pytest_elastic.boot import ending
from tests.unit.boot.held import LIMIT_S, ROLE, hold, without_gloos_own

# What both sides of the fork use, given as C and C++ would: no callback into Python.
_C = """\
import atexit, ctypes, os, sys
libc = ctypes.CDLL(None)
cxx = ctypes.CDLL("libstdc++.so.6")
libc.strdup.restype = ctypes.c_void_p  # Python's own copy is gone by then
def at_exit(text):
    libc["__cxa_atexit"](libc.puts, ctypes.c_void_p(libc.strdup(text)), None)
"""
_PROGRAM = (
    _C
    + """\
at_exit(b"registered by the program")
libc.puts(b"buffered by C")
libc.fopen.restype = ctypes.c_void_p
libc.fputs(b"by C", ctypes.c_void_p(libc.fopen(b"left_open_in_c.txt", b"w")))
cxx["_ZNSt8ios_base15sync_with_stdioEb"](False)
cxx["_ZNSo5writeEPKcl"](ctypes.byref(ctypes.c_char.in_dll(cxx, "_ZSt4cout")), b"C++\\n", 4)
atexit.register(print, "atexit")
class Late:
    def __del__(self):
        print("collected at the end")
late = Late()
file = open("left_open.txt", "w")
file.write("written at the end")
sys.exit(7)
"""
)


def end(tmp_path: Path, *, preload: tuple[str, ...] = ()) -> tuple[int, list[str]]:
    """End the program as one that became it in a host with a handler of its own."""
    tmp_path.joinpath("program.py").write_text(_PROGRAM)
    tmp_path.joinpath("host_side.py").write_text(_C + 'at_exit(b"registered by the host")\n')
    body = "import host_side; return Program(argv=['program.py'], environ=os.environ.copy())"
    done = hold(ROLE.format(body=body), tmp_path, preload=preload, cwd=tmp_path)
    assert done.stderr == ""
    assert tmp_path.joinpath("left_open.txt").read_text() == "written at the end"
    assert tmp_path.joinpath("left_open_in_c.txt").read_text() == "by C"
    return done.returncode, sorted(done.stdout.splitlines())


_SAID = ["C++", "atexit", "buffered by C", "collected at the end", "registered by the program"]


def test_what_a_program_does_at_its_end_is_done_and_what_its_host_left_is_not(
    tmp_path: Path,
) -> None:
    """Python's end, C's and C++'s buffers, its own handlers and its status are as always."""
    assert end(tmp_path) == (7, _SAID)


def test_where_a_preloaded_library_may_have_something_to_say_it_is_asked(tmp_path: Path) -> None:
    """A module that a user had preloaded may close files at its end: nothing is skipped."""
    status, said = end(tmp_path, preload=("host_side",))
    assert status == 7
    assert "registered by the host" in said
    # Only C++ code flushes C++ streams, and the program is none.
    assert sorted({*said, "C++"} - {"registered by the host"}) == _SAID


@pytest.mark.parametrize(
    ("preload", "environ", "expected"),
    [
        (("torch", "torch._dynamo"), {}, True),
        (("torch", "elastic_harness.node"), {"LD_LIBRARY_PATH": "/opt/lib"}, True),
        (("torch", "h5py"), {}, False),
        (("torchvision",), {}, False),
        (("torch",), {"LD_PRELOAD": "libprofiler.so"}, False),
        (("torch",), {"CUDA_INJECTION64_PATH": "libToolsInjection64.so"}, False),
        (("torch",), {"LD_PRELOAD": ""}, True),
    ],
)
def test_only_libraries_known_to_be_silent_are_passed_over(
    preload: tuple[str, ...],
    environ: dict[str, str],
    expected: bool,  # noqa: FBT001 (a column of the table)
) -> None:
    """Tools that report at the end, and modules of the user's choice, end as they like."""
    if any(map(os.path.exists, ("/dev/nvidiactl", "/dev/dri", "/dev/kfd", "/dev/dxg"))):
        expected = False  # a process with a device has more to take down
    assert ending.can_end_early(preload, environ) == expected


class GlooThread(threading.Thread):
    """A thread with the name of gloo's, that waits as long as `release` has not been called."""

    def __init__(self, *, idle: bool) -> None:
        super().__init__(daemon=True)
        self._idle = idle
        self._gate = threading.Lock()
        self._gate.acquire()
        self._named = threading.Event()
        self.start()
        assert self._named.wait(30.0)

    def run(self) -> None:
        """Wait as a thread without work does, or as one that waits for another rank."""
        ctypes.CDLL(None).prctl(15, b"pt_gloo_runloop", 0, 0, 0)
        assert str(threading.get_native_id()) in ending._gloo_threads()
        self._named.set()
        self._gate.acquire(timeout=-1 if self._idle else 60.0)

    def release(self) -> None:
        """Let it end."""
        self._gate.release()
        self.join()


def test_a_program_with_gloo_threads_that_have_nothing_to_do_ends_at_once() -> None:
    """A wait for work has no time limit: by that it is known."""
    thread = GlooThread(idle=True)
    try:
        began = time.monotonic()
        ending.settle()
        assert time.monotonic() - began < ending._SETTLE_S
        assert thread.is_alive()
    finally:
        thread.release()


def test_a_program_with_a_gloo_thread_at_work_waits_for_it() -> None:
    """A wait for another rank has a limit: the program's end comes when it is over."""
    thread = GlooThread(idle=False)
    order: list[str] = []

    def let_go() -> None:
        order.append("work done")
        thread.release()

    timer = threading.Timer(0.1, let_go)
    timer.start()
    ending.settle()
    order.append("settled")
    timer.join()
    assert order == ["work done", "settled"]


def test_a_program_does_not_wait_for_gloo_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work that another rank never joins is left to torch, as in a fresh interpreter."""
    thread = GlooThread(idle=False)
    try:
        monkeypatch.setattr(ending, "_SETTLE_S", 0.05)
        ending.settle()
        assert thread.is_alive()
    finally:
        thread.release()


def test_a_program_without_a_free_descriptor_ends_as_ever() -> None:
    """What cannot be looked at is not waited for; an error of ours would be the program's."""
    script = (
        "import resource\n"
        "from pytest_elastic.boot import ending\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))\n"
        "ending.settle()\n"
        "ending._settle(60.0, has_groups=True)\n"
        "print('settled')\n"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert (done.stdout, done.stderr) == ("settled\n", "")


_DESTROYS = """\
import ctypes, _thread, threading, torch, torch.distributed as dist
from pytest_elastic.boot import ending
dist.init_process_group("gloo", init_method="file://{folder}/store", rank=0, world_size=1)
name = {name}
if name is None:  # as with torch 2.10
    name = open("/proc/self/comm").read().strip()
    names_them = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)
    while len(named := ending._gloo_threads()) < 2 and names_them:
        pass  # they name themselves
    for thread in named:
        open(f"/proc/self/task/{{thread}}/comm", "w").write(name)
named, gate = threading.Event(), threading.Lock()
gate.acquire()
def work():
    ctypes.CDLL(None).prctl(15, name.encode(), 0, 0, 0)
    named.set()
    gate.acquire(timeout=0.1)
    print("its threads are done")
_thread.start_new_thread(work, ())
named.wait()
dist.destroy_process_group()
print("destroyed", dist.is_initialized())
"""


@pytest.mark.parametrize("name", ["pt_gloo_runloop", None])
def test_a_program_that_destroys_its_groups_waits_for_their_threads(
    tmp_path: Path, name: str | None
) -> None:
    """What holds a group beyond that, a replica, would wait for them with Python's lock held."""
    (tmp_path / "script.py").write_text(_DESTROYS.format(folder=tmp_path, name=repr(name)))
    body = (
        "from pytest_elastic.boot import ending; ending._SETTLE_NAMELESS_S = 60.0; "
        "return Program(argv=['script.py'], environ=os.environ.copy())"
    )
    done = hold(ROLE.format(body=body), tmp_path, preload=("torch",), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert without_gloos_own(done.stdout) == ["its threads are done", "destroyed False"]


_HAS_A_GROUP = """\
import torch.distributed as dist
from pytest_elastic.boot import ending
dist.init_process_group("gloo", init_method="file://{folder}/store", rank=0, world_size=1)
dist.barrier()
print(len(ending._gloo_threads()) > 0)
dist.destroy_process_group()
"""


@pytest.mark.skipif(
    tuple(map(int, version("torch").split(".")[:2])) < (2, 13),
    reason="torch 2.10 gives gloo's threads no name (docs/versions.md)",
)
def test_torch_names_its_threads_as_they_are_looked_for(tmp_path: Path) -> None:
    """Another name in a release of torch, and nothing would be waited for."""
    done = subprocess.run(
        [sys.executable, "-c", _HAS_A_GROUP.format(folder=tmp_path)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert without_gloos_own(done.stdout) == ["True"], done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_process_without_gloo_has_none_of_its_threads() -> None:
    """Nothing to wait for."""
    assert ending._gloo_threads() == []


@pytest.mark.parametrize(
    ("library", "status"), [("/libc.so.6", 0), ("/libm.so.6", -6), ("/nowhere.so", -6)]
)
def test_what_a_library_has_registered_with_python_is_dropped(library: str, status: int) -> None:
    """And not what others have: here the C library's `abort`, as triton registers a report."""
    code = (
        "import ctypes, math, sys\n"
        "from pytest_elastic.boot import ending\n"
        "libc, libm = ctypes.CDLL(None), ctypes.CDLL('libm.so.6')\n"
        "assert ctypes.pythonapi.Py_AtExit(libc.abort) == 0\n"
        f"ending.drop_cleanups({library!r})\n"
        "print('ended')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert (done.returncode, done.stdout) == (status, "ended\n")
