"""A warm interpreter from its own side: import what takes long, then play roles.

Everything here runs inside site initialisation, in one thread, before the interpreter has looked at
its command line. `current` tells a role what it is played by; a role that finds None runs in an
ordinary process and cannot fork programs.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import os
import signal
import sys
import traceback
import types
from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from pytest_elastic.boot import descriptors, ending, interpreter, proc_title, sharing, variables
from pytest_elastic.boot.hidden import HiddenModules
from pytest_elastic.boot.order import WarmOrder, restore, take_order
from pytest_elastic.boot.role import Role, play
from pytest_elastic.errors import InternalError, UsageError

__all__ = ["Host", "current", "serve", "serve_unheld"]

# Preloaded unasked, as it takes long, and needed by none that does not import it: where all file
# systems are read-only, or a module of the user's hides one of its own, programs start afresh.
_NOT_NEEDED = frozenset({"torch._dynamo"})
# What their libraries read by getenv is listed in `workers.warm.library_reads`.
_TRACED = ("torch", "numpy", "pytest_elastic", "elastic_harness")
# Go through all variables for those that begin with their own name (`warmth` knows them).
_LOOKS_FOR_ITS_OWN = frozenset({"networkx", "tqdm"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What a program forked from this interpreter would find: the facts that warm starts hang on.

    `environ` is the environment the interpreter's own start saw, with the caller's values for what
    `spawn` replaced; `clean_path` is `sys.path` without any PYTHONPATH, and `added_path` what else
    was on it when modules were imported; `modules` maps each top-level module that a fresh
    interpreter would not have loaded yet to the file it came from ("" when it has none);
    `ignored_signals` were ignored by the parent already; `cannot_become` says why not, or is empty;
    `own` are our own modules. `read` names the variables that what is preloaded has asked Python
    for; `unlisted` says why it may have read others, or is empty, and `unlisted_in` which module
    has. `torch` is the version of torch, if that is loaded.
    """

    environ: Mapping[str, str]
    clean_path: tuple[str, ...]
    added_path: tuple[str, ...]
    modules: Mapping[str, str]
    preload: tuple[str, ...]
    ignored_signals: tuple[int, ...]
    cannot_become: str
    own: interpreter.OwnModules
    read: frozenset[str] = frozenset()
    unlisted: str = ""
    unlisted_in: str = ""
    torch: str = ""


_current: Host | None = None


def current() -> Host | None:
    """Return the warm interpreter this code is played by, or None in an ordinary process."""
    return _current


def serve(clean_path: tuple[str, ...], at_start: frozenset[str]) -> None:
    """Play the ordered role; return only in a process that CPython itself is to go on with.

    `at_start` names the modules that a fresh interpreter would have loaded by now.
    """
    try:
        _serve(clean_path, at_start)
    except SystemExit as error:
        _exit_normally(error)
    except KeyboardInterrupt:
        # A program that was interrupted before its first line; a host ignores this signal.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except UsageError as error:
        sys.stderr.write(f"pytest-elastic: {error}\n")
        _flush()
        os._exit(error.exit_code)
    except BaseException:  # noqa: BLE001 (site would report one line and go on as if nothing was)
        traceback.print_exc()
        _flush()
        os._exit(InternalError.exit_code)


def serve_unheld() -> None:
    """Play the ordered role in an ordinary interpreter, which can become no program."""
    order = take_order(os.environ)
    restore(order, os.environ)
    play(_make_role(order))
    raise InternalError(f"{order.role} wants to become a program in an interpreter not held")


def _let_threads_import_site() -> None:
    """Let threads import `site`, in which the main thread of a held interpreter stays.

    They would wait for that for ever: an import waits until another thread's of the same module has
    ended. All that `site` defines is there.
    """
    for name in ("site", "sitecustomize"):
        spec = getattr(sys.modules.get(name), "__spec__", None)
        if spec is not None:
            spec._initializing = False  # noqa: SLF001 (no other way)


def _serve(clean_path: tuple[str, ...], at_start: frozenset[str]) -> None:
    global _current  # noqa: PLW0603 (one interpreter, one host)
    ignored = interpreter.ignored_signals()
    sharing.keep(at_start)
    order = take_order(os.environ)
    environ = dict(os.environ)
    restore(order, environ)
    cannot_become = interpreter.why_unsupported()
    # The first to be registered is the last to be called.
    atexit.register(ending.settle)
    own = descriptors.open_descriptors()
    # Our own values (one thread in each pool) are in force until everything is imported.
    added_path = _add_to_path(environ.get("PYTHONPATH", ""), clean_path)
    with variables.recorded() as reads, sharing.modules_together():
        foreign, loads, half = _import_all(order, reads)
    ending.drop_cleanups("/triton/_C/libtriton.so")
    cannot_become = cannot_become or half or _opened_since(own) or interpreter.missing_in_modules()
    restore(order, os.environ)
    modules = _loaded_since(at_start)
    torch = str(getattr(sys.modules.get("torch"), "__version__", ""))
    hidden = HiddenModules(reads, is_visible=_is_visible)
    sharing.keep([reads, hidden])
    sharing.freeze()
    package, sentence = _reader_of_all(reads)
    _current = Host(
        environ=environ,
        clean_path=clean_path,
        added_path=added_path,
        modules=modules,
        preload=order.preload,
        ignored_signals=ignored,
        cannot_become=cannot_become,
        own=interpreter.own_modules(),
        read=frozenset().union(*reads.names.values()),
        unlisted=sentence or foreign,
        unlisted_in=package or loads,
        torch=torch,
    )
    proc_title.show([f"pytest-elastic: {order.role}"], os.environ)
    _let_threads_import_site()
    program = play(_make_role(order))
    sharing.keep(_current)
    host, _current = _current, None
    loaded = ChainMap(sys.modules, hidden.modules)
    interpreter.become(
        program,
        clean_path=host.clean_path,
        own=host.own,
        loaded=loaded,
        ignored_signals=host.ignored_signals,
    )
    ending.settle_when_groups_end(loaded)
    if program.late is not None:
        hidden.watch(program.late)
    if ending.can_end_early(host.preload, program.environ):
        ending.end_early()


def _add_to_path(python_path: str, clean_path: tuple[str, ...]) -> tuple[str, ...]:
    """Put the caller's PYTHONPATH first on `sys.path`; return what else is not clean."""
    entries = [os.path.abspath(entry) for entry in python_path.split(os.pathsep) if entry]
    # The folder of our own package, if no fresh interpreter would have it.
    ours = [entry for entry in sys.path if entry not in clean_path]
    sys.path[:0] = entries
    return (*entries, *ours)


def _import_all(order: WarmOrder, reads: variables.Reads) -> tuple[str, str, str]:
    """Import what is to be warm, as a script with the caller's PYTHONPATH would find it.

    Return which module has loaded libraries of which nothing is known, in a sentence, and its name,
    and why a program is not to go on with what is imported; or nothing.
    """
    foreign = loads = half = ""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C on the terminal is the launcher's
    # Nothing that is imported becomes garbage: looking for it takes a sixth of torch's import.
    gc.disable()
    # Our own first: what a node or a keeper consists of is to lie together, and not among torch's.
    importlib.import_module(order.role.partition(":")[0])
    sys.meta_path.insert(0, reads)
    for name in sorted(order.preload, key=interpreter.is_ours, reverse=True):
        libraries = _libraries()
        try:
            importlib.import_module(name)
        except Exception as error:
            said = str(error).strip().partition("\n")[0]
            kind = "" if isinstance(error, ImportError) else f"{type(error).__name__}: "
            if name in _NOT_NEEDED:
                half = f"{name} cannot be preloaded: {kind}{said}"
                continue
            missing = error.name if isinstance(error, ModuleNotFoundError) else None
            if missing is None or not f"{name}.".startswith(f"{missing}."):
                # Something that the module itself does or needs: its own frames say where.
                traceback.print_exception(error.with_traceback(_frames_below_import(error)))
            raise UsageError(f"cannot preload {name!r}: {kind}{said}") from error
        new = sorted(_libraries() - libraries)
        if new and not name.startswith(_TRACED):
            loads = name
            foreign = f"{name} loads {os.path.basename(new[0])}, which may read variables by getenv"
    sys.meta_path.remove(reads)
    sharing.keep_caches()
    sharing.freeze()
    gc.enable()
    return foreign, loads, half


def _reader_of_all(reads: variables.Reads) -> tuple[str, str]:
    names = sorted(reads.by_all - _LOOKS_FOR_ITS_OWN)
    if not names:
        return "", ""
    return names[0], f"{names[0]}, which is preloaded, goes through all variables"


def _is_visible(module: str) -> bool:
    """Tell whether a program finds a module loaded: Python's own, and ours until they are gone."""
    return interpreter.is_ours(module) or module.partition(".")[0] in sys.stdlib_module_names


def _libraries() -> set[str]:
    """Return the libraries in this process, but for those of Python itself."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        files = {line.rstrip("\n").partition("/")[2] for line in maps}
    return {f"/{file}" for file in files if ".so" in file and "/lib-dynload/" not in file}


def _frames_below_import(error: BaseException) -> types.TracebackType | None:
    """Leave our frames and those of the import system out, as CPython does."""
    frame = error.__traceback__
    while frame is not None and (
        frame.tb_frame.f_code.co_filename.startswith("<frozen importlib")
        or frame.tb_frame.f_globals.get("__name__") in {__name__, "importlib"}
    ):
        frame = frame.tb_next
    return frame


def _opened_since(before: Mapping[int, str]) -> str:
    """Say what was opened, or nothing: it is closed when a program begins, behind its owner."""
    for fd, file in descriptors.open_descriptors().items():
        if fd not in before:
            return f"something preloaded has opened {file}, and may go on using it"
    return ""


def _loaded_since(before: frozenset[str]) -> dict[str, str]:
    modules = {}
    # Ours are taken out of the table before a program begins: they cannot collide with its own.
    for name in sorted(set(sys.modules) - before - set(sys.builtin_module_names)):
        if "." not in name and not interpreter.is_ours(name):
            modules[name] = getattr(sys.modules[name], "__file__", None) or ""
    return modules


def _exit_normally(exit_request: SystemExit) -> None:
    """End as `sys.exit` would: site initialisation knows no way to."""
    code = exit_request.code
    if code is not None and not isinstance(code, int):
        sys.stderr.write(f"{code}\n")
        code = 1
    atexit._run_exitfuncs()  # noqa: SLF001 (what finalisation would call)
    _flush()
    os._exit((code or 0) & 0xFF)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()


def _make_role(order: WarmOrder) -> Role:
    module_name, _, attribute = order.role.partition(":")
    make: Any = getattr(importlib.import_module(module_name), attribute, None)
    if make is None:
        raise InternalError(f"there is no role {order.role!r}")
    return cast("Role", make(order.argument))
