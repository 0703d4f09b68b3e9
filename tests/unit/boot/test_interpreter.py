"""A held interpreter plays its role, becomes a program, or says why it cannot."""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path

import pytest

import pytest_elastic
from pytest_elastic.boot import interpreter, pools, proc_title
from pytest_elastic.boot.spawn import SITE_FOLDER, command_and_environ
from tests.unit.boot.held import LIMIT_S, ROLE, hold


def test_this_python_can_become_a_program() -> None:
    """The self-test of the interpreter that the tests run on."""
    assert interpreter.why_unsupported() == ""


def test_the_first_process_itself_can_become_a_program(tmp_path: Path) -> None:
    """No fork is needed: the role returns what to be, and CPython goes on with that."""
    body = "return Program(argv=['-c', 'import sys; sys.exit(5)'], environ=os.environ.copy())"
    done = hold(ROLE.format(body=body), tmp_path)
    assert (done.returncode, done.stderr) == (5, "")


def test_a_role_that_exits_ends_as_a_script_would(tmp_path: Path) -> None:
    """SystemExit runs what atexit has, flushes, and gives its status."""
    body = "import atexit; atexit.register(print, 'late'); print('x', end=' '); sys.exit('why')"
    done = hold(ROLE.format(body=body), tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (1, "x late\n", "why\n")


def test_a_role_that_fails_is_not_passed_over(tmp_path: Path) -> None:
    """Site would print one line and go on: here it is a traceback, and the end."""
    done = hold(ROLE.format(body="1/0"), tmp_path)
    assert done.returncode == 70
    assert "ZeroDivisionError" in done.stderr
    assert "Traceback" in done.stderr


def test_a_role_that_is_not_there_is_named(tmp_path: Path) -> None:
    """The order was wrong, which is our mistake."""
    done = hold("class Other: pass", tmp_path)
    assert done.returncode == 70
    assert "there is no role 'roles:Role'" in done.stderr


def test_a_role_sees_its_callers_environment(tmp_path: Path) -> None:
    """PYTHONPATH and thread numbers are the caller's; modules on its path are found."""
    body = "print(os.environ.get('PYTHONPATH'), os.environ.get('OMP_NUM_THREADS')); os._exit(0)"
    body = body.replace("os._exit", "sys.stdout.flush(); os._exit")
    done = hold(ROLE.format(body=body), tmp_path, environ={"OMP_NUM_THREADS": "7"})
    assert done.stdout == f"{tmp_path} 7\n"


def test_what_a_fresh_interpreter_would_not_have_on_its_path_is_known(tmp_path: Path) -> None:
    """PYTHONPATH, and the folder of our package, which is added so that it can be imported."""
    lib = tmp_path / "lib"
    lib.mkdir()
    (lib / "pytest_elastic").symlink_to(os.path.dirname(pytest_elastic.__file__))
    body = "from pytest_elastic.boot import host; sys.exit(':'.join(host.current().added_path))"
    (tmp_path / "roles.py").write_text(ROLE.format(body=body))
    base = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command, environ = command_and_environ("roles:Role", {}, preload=(), base_environ=base)
    found = []
    for site in (SITE_FOLDER, str(lib / "pytest_elastic" / "boot" / "site")):
        done = subprocess.run(
            command,
            env={**environ, "PYTHONPATH": site},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        found.append(done.stderr.strip())
    assert found == [str(tmp_path), f"{tmp_path}:{lib}"]


def test_our_own_modules_are_in_no_programs_way(tmp_path: Path) -> None:
    """They are gone when a program begins: from where they were loaded is no reason against it."""
    body = (
        "from pytest_elastic.boot import host; loaded = host.current().modules; "
        "print({'elastic_harness', 'pytest_elastic', 'roles'} & set(loaded)); sys.exit()"
    )
    done = hold("import elastic_harness.leaks\n" + ROLE.format(body=body), tmp_path)
    assert (done.stdout, done.stderr) == ("{'roles'}\n", "")


def test_signals_that_the_parent_ignored_stay_ignored(tmp_path: Path) -> None:
    """As under `nohup`: a program inherits what its launcher was told to ignore."""
    code = "import signal; print(*map(int, map(signal.getsignal, (signal.SIGHUP, signal.SIGTERM))))"
    body = (
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        f"return Program(argv=['-c', {code!r}], environ=os.environ.copy())"
    )
    (tmp_path / "roles.py").write_text(ROLE.format(body=body))
    base = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command, environ = command_and_environ("roles:Role", {}, preload=(), base_environ=base)
    # A shell, for a Python would be held by what is in the environment.
    done = subprocess.run(
        ["/bin/sh", "-c", 'trap "" HUP; exec "$@"', "sh", *command],
        env=environ,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.stdout == "1 0\n", done.stderr


def test_threads_are_counted_as_the_libraries_count_them() -> None:
    """OPENBLAS_NUM_THREADS goes before OMP_NUM_THREADS; without either: one per processor."""
    assert pools.wanted_threads({}) == (None, None)
    assert pools.wanted_threads({"OMP_NUM_THREADS": "3"}) == (3, 3)
    assert pools.wanted_threads({"OMP_NUM_THREADS": "3", "OPENBLAS_NUM_THREADS": "1"}) == (3, 1)
    assert pools.wanted_threads({"OMP_NUM_THREADS": "4,2"}) == (4, 4)
    assert pools.wanted_threads({"OMP_NUM_THREADS": "many"}) == (None, None)


IMPORTS_SITE = """
import os, sys, threading
class Role:
    def __init__(self, argument): pass
    def run(self):
        def work(): import site; print("imported", site.getsitepackages() != [])
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(20)
        print("waits" if thread.is_alive() else "done", flush=True)
        os._exit(0)
"""


def test_a_thread_of_a_held_interpreter_can_import_site(tmp_path: Path) -> None:
    """Its main thread is still in the import of it; torch 2.15 imports it, on a store's thread."""
    assert hold(IMPORTS_SITE, tmp_path).stdout.split() == ["imported", "True", "done"]


def test_a_process_shows_the_command_line_it_was_given() -> None:
    """What `ps` and /proc/PID/environ show can be longer than what exec put there.

    The arguments lie in front of C's first variable, which is where setproctitle looks for them.
    """
    argv = ["a command", "with", "x" * 10_000]
    environ = {"NAME": "ünï", "LONG": "y" * 10_000}
    arguments = "".join(f"{each}\0" for each in argv).encode()
    child = os.fork()
    if child == 0:
        ok = proc_title.show(argv, environ)
        with open("/proc/self/cmdline") as shown, open("/proc/self/environ") as variables:
            ok = ok and shown.read().encode() == arguments
            ok = ok and variables.read().split("\0") == [f"{k}={v}" for k, v in environ.items()] + [
                ""
            ]
        libc = ctypes.CDLL(None)
        pointers = ctypes.cast(
            ctypes.c_void_p.in_dll(libc, "environ"), ctypes.POINTER(ctypes.c_size_t)
        )
        first = pointers[0] - len(arguments)
        ok = ok and ctypes.string_at(first, len(arguments)) == arguments
        libc.getenv.restype = ctypes.c_char_p
        os.environ["LATER"] = "z"
        ok = ok and [libc.getenv(name) for name in (b"NAME", b"LONG", b"LATER", b"HOME")] == [
            *(each.encode() for each in (*environ.values(), "z")),
            None,
        ]
        os._exit(0 if ok else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_module_that_keeps_a_file_open_is_not_shared_with_programs(tmp_path: Path) -> None:
    """Its program would find the descriptor closed, or somebody else's file under its number."""
    (tmp_path / "writes_a_log.py").write_text("FILE = open('log', 'w')\n")
    body = "from pytest_elastic.boot import host; print(host.current().cannot_become); sys.exit(0)"
    role = ROLE.format(body=body)
    for preload, said in (
        (["writes_a_log"], f"something preloaded has opened {tmp_path / 'log'}, and may"),
        (["json"], "\n"),
    ):
        ended = hold(role, tmp_path, preload=preload, cwd=tmp_path)
        assert (ended.returncode, ended.stderr) == (0, "")
        assert ended.stdout.startswith(said)


@pytest.mark.parametrize("name", ["_startTime", "Thread._set_native_id", "_run_exitfuncs"])
def test_a_python_without_what_programs_need_says_so(tmp_path: Path, name: str) -> None:
    """Private names of the standard library may go with any release: then workers start fresh."""
    module = {"_startTime": "logging", "_run_exitfuncs": "atexit"}.get(name, "threading")
    (tmp_path / "takes_away.py").write_text(f"import {module}\ndel {module}.{name}\n")
    body = (
        "from pytest_elastic.boot import host; "
        "print(host.current().cannot_become, flush=True); os._exit(0)"
    )
    ended = hold(ROLE.format(body=body), tmp_path, preload=["takes_away"])
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == f"there is no {module}.{name} here, which a warm start needs\n"


def test_the_clock_of_logging_starts_with_the_program(tmp_path: Path) -> None:
    """%(relativeCreated)d are milliseconds since logging was imported, in every Python."""
    code = (
        "import logging; print(logging.LogRecord('x', 20, 'p', 1, 'm', (), None).relativeCreated)"
    )
    body = f"return Program(argv=['-c', {code!r}], environ=os.environ.copy())"
    ended = hold(ROLE.format(body=body), tmp_path, preload=["logging"])
    assert 0 <= float(ended.stdout) < LIMIT_S * 1000


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("import is_not_there", "No module named 'is_not_there'"),
        ("this is no python", "SyntaxError: invalid syntax"),
    ],
)
def test_a_module_that_cannot_be_preloaded_is_the_users(
    tmp_path: Path, text: str, said: str
) -> None:
    """Its own lines are shown, none of ours, and the code is that of a wrong command."""
    (tmp_path / "broken.py").write_text(f"{text}\n")
    ended = hold(ROLE.format(body="sys.exit(0)"), tmp_path, preload=["broken"])
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-1].startswith(
        f"pytest-elastic: cannot preload 'broken': {said}"
    )
    assert 'broken.py", line 1' in ended.stderr
    assert "pytest_elastic/" not in ended.stderr


def test_a_program_that_is_interrupted_before_its_first_line_dies_of_it(tmp_path: Path) -> None:
    """As it would a moment later, and without a word about us."""
    body = (
        "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT]); "
        "os.kill(os.getpid(), signal.SIGINT); "
        "return Program(argv=['-c', 'print(1)'], environ=dict(os.environ))"
    )
    ended = hold(ROLE.format(body=body), tmp_path)
    assert (ended.returncode, ended.stdout, ended.stderr) == (-2, "", "")
