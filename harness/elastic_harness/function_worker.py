"""Runs a pickled function as a worker: `python -m elastic_harness.function_worker FOLDER`.

The function of a test, and its arguments, travel by value (cloudpickle), so that it may be local to
the test. Each rank leaves what it returned; the last round's results count.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pytest_elastic.errors import UsageError
from pytest_elastic.whole_file import replace_file

__all__ = ["pack", "read_results"]

_CALL = "call.pickle"


def pack(folder: str, function: Callable[..., Any], args: Sequence[object]) -> None:
    """Put a function and its arguments where workers find them; raises UsageError if it cannot."""
    import cloudpickle

    os.makedirs(folder, exist_ok=True)
    module = sys.modules.get(getattr(function, "__module__", ""))
    try:
        # By value: a test module is not importable by name in a worker.
        if module is not None and module.__name__ != "__main__":
            cloudpickle.register_pickle_by_value(module)
        data = cloudpickle.dumps((function, tuple(args)))
    except (TypeError, pickle.PicklingError, ValueError) as error:
        raise UsageError(
            f"cannot send {function!r} to workers: {error}",
            hint="It and its arguments must be picklable: no open files, locks or fixtures.",
        ) from error
    finally:
        if module is not None and module.__name__ != "__main__":
            cloudpickle.unregister_pickle_by_value(module)
    with open(os.path.join(folder, _CALL), "wb") as file:
        file.write(data)


def read_results(folder: str, restart_key: str) -> Mapping[int, Any]:
    """Return what each rank of a round returned, by rank."""
    results: dict[int, Any] = {}
    prefix = f"result-{restart_key}-"
    for name in sorted(os.listdir(folder)):
        if name.startswith(prefix):
            with open(os.path.join(folder, name), "rb") as file:
                rank = int(name.removeprefix(prefix).removesuffix(".pickle"))
                results[rank] = pickle.load(file)  # noqa: S301 (a worker of ours has written it)
    return dict(sorted(results.items()))


def round_key(environ: Mapping[str, str]) -> str:
    """Return what tells a round's results from another's: the launcher's number, or the store."""
    number = environ.get("PYTEST_ELASTIC_ROUND")
    return (
        number or f"{environ.get('MASTER_PORT', '0')}.{environ.get('TORCHELASTIC_RESTART_COUNT')}"
    )


def main(folder: str) -> None:
    """Call the function and leave its result."""
    with open(os.path.join(folder, _CALL), "rb") as file:
        function, args = pickle.load(file)  # noqa: S301 (the test that started us has written it)
    result = function(*args)
    import cloudpickle

    rank = int(os.environ.get("RANK", "0"))
    path = os.path.join(folder, f"result-{round_key(os.environ)}-{rank}.pickle")
    replace_file(path, cloudpickle.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1])
