"""Turn a process held in site initialisation into a program that CPython starts by itself.

The interpreter has not looked at its command line yet. We replace the environment, hand CPython the
program's command line to parse (`_testinternalcapi.set_config`: private, so `why_unsupported` tries
it in a child first), and mend what a fork shares but two fresh processes would not: streams, random
states, thread ids. Then site initialisation returns, and CPython runs the file, `-m` or `-c`
natively: frames, tracebacks, exit codes, signals and flags are its own.

CUDA must not be initialised and no parallel operation of torch may have run before (see
`workers.warm.warmth`): what a library did with threads or devices cannot be mended here.
"""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import io
import itertools
import os
import signal
import sys
import time
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import BuiltinImporter, PathFinder
from operator import attrgetter
from typing import Any, TextIO

from pytest_elastic.boot import pools, proc_title, sharing
from pytest_elastic.boot.descriptors import close_all_but
from pytest_elastic.boot.role import Program

__all__ = [
    "OwnModules",
    "become",
    "ignored_signals",
    "is_ours",
    "missing_in_modules",
    "own_modules",
    "why_unsupported",
]

# Python itself ignores these two at its start, whatever the parent did with them.
_PYTHON_IGNORES = frozenset({signal.SIGPIPE, signal.SIGXFSZ})
_OURS = ("pytest_elastic", "elastic_harness")

# What a command line or the environment may change; the rest of the configuration is the host's.
_UNPARSED: Mapping[str, Any] = {
    "parse_argv": 1,
    "xoptions": [],
    "warnoptions": [],
    "optimization_level": 0,
    "buffered_stdio": 1,
    "safe_path": 0,
    "write_bytecode": 1,
    "inspect": 0,
    "interactive": 0,
    "quiet": 0,
    "verbose": 0,
    "skip_source_first_line": 0,
    "run_command": None,
    "run_module": None,
    "run_filename": None,
    "pythonpath_env": None,
}


# What a program that is warm needs of modules, as far as they are loaded, and is private there.
_PRIVATE = (
    ("atexit", "_run_exitfuncs"),
    ("logging", "_startTime"),
    ("threading", "Thread._set_native_id"),
    ("torch.distributed.distributed_c10d", "_unregister_all_process_groups"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnModules:
    """The names of our own loaded modules, and of the newest module of all."""

    names: tuple[str, ...]
    newest: str


def why_unsupported() -> str:
    """Say why this interpreter cannot become a program, "" if it can; tries it in a child."""
    if sys.implementation.name != "cpython" or sys.platform != "linux":
        return f"{sys.implementation.name} on {sys.platform} cannot be warm-started"
    try:
        config = importlib.import_module("_testinternalcapi").get_config()
    except (ImportError, AttributeError) as error:
        return f"this Python has no interface to its configuration: {error}"
    missing = sorted(set(_UNPARSED) - {"safe_path"} - set(config))
    if missing:
        return f"this Python's configuration has no {', '.join(missing)}"
    child = os.fork()
    if child == 0:
        status = 1
        try:
            _configure(["-u", "-c", "pass", "x"])
            status = (
                0 if sys.argv == ["-c", "x"] and sys.orig_argv[2:] == ["-c", "pass", "x"] else 2
            )
        except BaseException:  # noqa: BLE001 (a child's last resort: it must not return)
            os._exit(3)
        os._exit(status)
    _, wait_status = os.waitpid(child, 0)
    status = os.waitstatus_to_exitcode(wait_status)
    return f"this Python does not take a new command line (self-test: {status})" if status else ""


def missing_in_modules() -> str:
    """Say what a program needs of a loaded module and is not there, or nothing."""
    for module, name in _PRIVATE:
        if module in sys.modules:
            try:
                attrgetter(name)(sys.modules[module])
            except AttributeError:
                return f"there is no {module}.{name} here, which a warm start needs"
    return ""


def ignored_signals() -> tuple[int, ...]:
    """Return the signals that this process's parent had it ignore (as `nohup` does)."""
    return tuple(
        number
        for number in sorted(signal.valid_signals() - _PYTHON_IGNORES)
        if signal.getsignal(number) is signal.SIG_IGN
    )


def become(
    program: Program,
    *,
    clean_path: Sequence[str],
    own: OwnModules,
    loaded: Mapping[str, Any],
    ignored_signals: Sequence[int] = (),
) -> None:
    """Make this process what a fresh interpreter would be at the same point; then return to site.

    `clean_path` is `sys.path` as the interpreter computes it without PYTHONPATH; `own` are
    our modules as the host knew them, so that only those that came later have to be looked for.
    `loaded` are all modules of this process, those that the program does not see yet included.
    """
    _replace_environ(program.environ)
    if program.cwd is not None:
        os.chdir(program.cwd)
    _reset_signals(ignored_signals)
    close_all_but()
    config = _configure(program.argv)
    sys.path[:] = _python_path(program.environ.get("PYTHONPATH", ""), clean_path)
    _replace_streams(config)
    _make_main()
    _mend_libraries(program.environ, loaded)
    pools.resize(program.environ, sys.modules)  # what is hidden yet is told when it comes back
    proc_title.show([sys.executable, *program.argv], program.environ)
    _forget_ourselves(own)


def is_ours(module: str) -> bool:
    """Tell whether a module is part of us."""
    return module.partition(".")[0] in _OURS


def own_modules() -> OwnModules:
    """Return our own modules as far as they are loaded."""
    names = tuple(sys.modules)
    return OwnModules(names=tuple(filter(is_ours, names)), newest=names[-1])


def _forget_ourselves(known: OwnModules) -> None:
    """Leave nothing of ours in the tables of modules, without taking anything apart.

    To look at every name of two thousand modules, or to free what the host has made, would write
    into pages that the program shares with the host otherwise: 8 MB of its own, of 18 in all.
    """
    later = itertools.takewhile(lambda name: name != known.newest, reversed(sys.modules))
    names = [*filter(is_ours, later), *known.names]
    sharing.keep([names, [sys.modules.pop(name, None) for name in names], sys.path_importer_cache])
    # Folders may have changed since the host looked into them; a fresh interpreter has not yet.
    sys.path_importer_cache = {}
    for finder in sys.meta_path:
        if finder is not PathFinder and hasattr(finder, "invalidate_caches"):
            finder.invalidate_caches()


def _replace_environ(environ: Mapping[str, str]) -> None:
    os.environ.clear()
    ctypes.CDLL(None).clearenv()  # what C code had set behind Python's back
    os.environ.update(environ)
    time.tzset()


def _reset_signals(ignored: Sequence[int]) -> None:
    """Give every signal the disposition that a fresh interpreter starts with; block none."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if number in ignored or number in _PYTHON_IGNORES:
            handler: Any = signal.SIG_IGN
        elif number == signal.SIGINT:
            handler = signal.default_int_handler
        else:
            handler = signal.SIG_DFL
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)
    signal.set_wakeup_fd(-1)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _configure(argv: Sequence[str]) -> dict[str, Any]:
    """Have CPython parse the command line; returns the configuration it made of it."""
    internals = importlib.import_module("_testinternalcapi")
    config: dict[str, Any] = internals.get_config()
    command = [sys.executable, *argv]
    config.update({key: value for key, value in _UNPARSED.items() if key in config})
    config.update(argv=command, orig_argv=command)
    # set_config computes these anew, without what site has made of them in a virtual environment.
    prefixes = {name: getattr(sys, name) for name in ("prefix", "exec_prefix")}
    path = list(sys.path)
    internals.set_config(config)
    for name, value in prefixes.items():
        setattr(sys, name, value)
    sys.path[:] = path
    parsed: dict[str, Any] = internals.get_config()
    return parsed


def _python_path(python_path: str, clean_path: Sequence[str]) -> list[str]:
    """Return `sys.path` as site would leave it: absolute, each entry once, PYTHONPATH first."""
    entries = python_path.split(os.pathsep) if python_path else []
    # An empty entry of PYTHONPATH means the current directory, as in `site.abs_paths`.
    return list(dict.fromkeys([*(os.path.abspath(entry) for entry in entries), *clean_path]))


def _replace_streams(config: Mapping[str, Any]) -> None:
    """Make stdin, stdout and stderr anew, as `init_sys_streams` in CPython does."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        errors = "backslashreplace" if name == "stderr" else config["stdio_errors"]
        stream = _make_stream(
            fd, name, config["stdio_encoding"], errors, buffered=bool(config["buffered_stdio"])
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _make_stream(
    fd: int, name: str, encoding: str, errors: str, *, buffered: bool
) -> TextIO | None:
    try:
        os.fstat(fd)
    except OSError:
        return None
    is_unbuffered = not buffered and fd != 0
    mode = "rb" if fd == 0 else "wb"
    # The descriptor outlives the stream, as it does for CPython's own.
    binary: Any = open(fd, mode, buffering=0 if is_unbuffered else -1, closefd=False)  # noqa: SIM115
    raw = binary if is_unbuffered else binary.raw
    raw.name = f"<{name}>"
    stream = io.TextIOWrapper(
        binary,
        encoding=encoding,
        errors=errors,
        newline="\n",
        line_buffering=buffered and (fd == 2 or raw.isatty()),
        write_through=not buffered,
    )
    stream.mode = mode[0]  # type: ignore[misc]  # as CPython sets it
    return stream


def _make_main() -> None:
    """Give the program a new `__main__`, as `add_main_module` in CPython makes it.

    The one there was made before the host froze what the collector has to look at: what a program
    keeps in it would never be collected, not even at the end.
    """
    main = types.ModuleType("__main__")
    main.__dict__.update(
        __annotations__={}, __builtins__=sys.modules["builtins"], __loader__=BuiltinImporter
    )
    for name in ("__main__", "__mp_main__"):
        if name in sys.modules:
            sys.modules[name] = main


def _mend_libraries(environ: Mapping[str, str], loaded: Mapping[str, Any]) -> None:
    """Give this process its own random states, authentication key, thread id and start time."""
    if "torch" in loaded:
        loaded["torch"].default_generator.seed()
    if "numpy.random" in loaded:
        loaded["numpy.random"].seed()
    if "sympy.core.random" in loaded:
        loaded["sympy.core.random"].rng.seed()
    if "threading" in loaded:
        loaded["threading"].main_thread()._set_native_id()  # noqa: SLF001 (no public way)
    if "multiprocessing.process" in loaded:
        process = loaded["multiprocessing.process"]
        process.current_process().authkey = os.urandom(32)
    if "tempfile" in loaded:
        loaded["tempfile"].tempdir = None  # looked for at first use, in this environment
    if "logging" in loaded:
        logging = loaded["logging"]  # %(relativeCreated)s counts from this; ns since Python 3.13
        is_in_ns = isinstance(logging._startTime, int)  # noqa: SLF001 (no public way)
        logging._startTime = time.time_ns() if is_in_ns else time.time()  # noqa: SLF001
    if faulthandler.is_enabled():
        faulthandler.disable()  # all signals have their defaults: enabled, it would set no handler
    if environ.get("PYTHONFAULTHANDLER"):
        faulthandler.enable()
