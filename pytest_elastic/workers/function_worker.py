"""Runs a function as a worker: `python -m pytest_elastic.workers.function_worker FOLDER`.

Function and arguments come by `call.pickle`, results go into `result.<round>.<rank>.pickle`. As
with torch's function entry points an exception is recorded in the error file; a program that ends
itself (`sys.exit`) ends with that status.
"""

from __future__ import annotations

import functools
import os
import pickle
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from importlib.machinery import PathFinder
from types import ModuleType
from typing import Any

from pytest_elastic.errors import UsageError, WorkerFailed
from pytest_elastic.whole_file import replace_file
from pytest_elastic.workers.error_file import WorkerError, write_error_file

__all__ = ["pack_call", "read_result"]

_CALL = "call.pickle"


def pack_call(folder: str, function: Callable[..., Any], args: Sequence[object]) -> None:
    """Put a function and its arguments where workers find them; raises UsageError if it cannot.

    What a worker can import travels by its name, and everything else (a function of `__main__`, of
    a notebook, of another function, of a test) by value, with what it refers to.
    """
    import cloudpickle

    module = _module_of(function)
    travels_by_value = module is not None and not _is_importable(module)
    try:
        if module is not None and travels_by_value:
            cloudpickle.register_pickle_by_value(module)
        call = cloudpickle.dumps((function, tuple(args)))
    except Exception as error:
        # Anything at all: pickling runs the code of whatever is pickled.
        raise UsageError(
            f"cannot send {_name_of(function)} to workers: {type(error).__name__}: {error}",
            hint="It, its arguments and the globals it uses must be picklable: no open files, "
            "locks, processes or generators.",
        ) from error
    finally:
        if module is not None and travels_by_value:
            cloudpickle.unregister_pickle_by_value(module)
    with open(os.path.join(folder, _CALL), "wb") as file:
        pickle.dump({"path": sys.path, "argv": sys.argv, "call": call}, file)


def read_result(folder: str, round: int, rank: int) -> object:
    """Return what a worker returned; None if it ended itself, with status 0, before it could."""
    try:
        with open(_result_path(folder, str(round), str(rank)), "rb") as file:
            return pickle.load(file)  # noqa: S301 (a worker of ours has written it)
    except FileNotFoundError:
        return None


def _result_path(folder: str, round: str, rank: str) -> str:
    return os.path.join(folder, f"result.{round}.{rank}.pickle")


def _module_of(function: Callable[..., Any]) -> ModuleType | None:
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__module__", None) or type(function).__module__
    return None if name == "__main__" else sys.modules.get(name)


def _name_of(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", None) or repr(function)


def _is_importable(module: ModuleType) -> bool:
    """Tell whether a fresh interpreter with our path would find this very module by its name."""
    file = getattr(module, "__file__", None)
    if file is None:
        return module.__name__ in sys.builtin_module_names
    path: Sequence[str] | None = None
    origin: str | None = None
    parts = module.__name__.split(".")
    for count in range(1, len(parts) + 1):
        spec = PathFinder.find_spec(".".join(parts[:count]), path)
        if spec is None:
            return False
        path, origin = spec.submodule_search_locations, spec.origin
    return origin is not None and os.path.realpath(origin) == os.path.realpath(file)


def _main(folder: str) -> None:
    import cloudpickle

    with open(os.path.join(folder, _CALL), "rb") as file:
        packed = pickle.load(file)  # noqa: S301 (our own parent has written it)
    # As in a spawned process of multiprocessing: what it could import, we can.
    sys.path[:] = [*packed["path"], *(entry for entry in sys.path if entry not in packed["path"])]
    sys.argv[:] = packed["argv"]
    try:
        function, args = pickle.loads(packed["call"])  # noqa: S301 (the same)
        result = cloudpickle.dumps(function(*args))
    except Exception as error:  # noqa: BLE001 (whatever it is, it is the function's, and is told)
        _record(error)
        sys.exit(1)
    path = _result_path(folder, os.environ["PYTEST_ELASTIC_ROUND"], os.environ["RANK"])
    replace_file(path, result)


def _record(error: Exception) -> None:
    """Show an exception without our frame, and leave it where the agent looks for it."""
    shown = error.__traceback__.tb_next if error.__traceback__ is not None else None
    lines = "".join(traceback.format_exception(type(error), error, shown))
    sys.stderr.write(lines)
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    # A job below this one has left its own root cause there, which says more than that it failed.
    is_known = isinstance(error, WorkerFailed) or type(error).__name__ == "ChildFailedError"
    if not path or (is_known and os.path.exists(path)):
        return
    said = WorkerError(
        message=f"{type(error).__name__}: {error}", traceback=lines, timestamp=int(time.time())
    )
    try:
        write_error_file(path, said)
    except OSError as problem:
        sys.stderr.write(f"cannot write {path}: {problem.strerror}\n")


if __name__ == "__main__":
    _main(sys.argv[1])
