"""How many threads the number crunchers take, in a process that imported them with one.

torch and OpenBLAS read their variables when they are imported; a warm interpreter imports them with
one thread, so that it can be forked. Here a program gets the number it would have got, when it
imports them: OpenBLAS starts its threads at once.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["LIBRARIES", "resize", "wanted_threads"]

LIBRARIES = ("torch", "numpy")

_OPENMP = ("libgomp", "libiomp5", "libomp")
_OPENMP_SETTERS = ("omp_set_num_threads",)
_OPENBLAS_SETTERS = (
    "scipy_openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads",
    "openblas_set_num_threads64_",
    "openblas_set_num_threads",
)


def wanted_threads(environ: Mapping[str, str]) -> tuple[int | None, int | None]:
    """Return the threads that torch and OpenBLAS would take; None: one per processor."""
    omp = _number(environ.get("OMP_NUM_THREADS"))
    return omp, _number(environ.get("OPENBLAS_NUM_THREADS")) or omp


def resize(environ: Mapping[str, str], loaded: Mapping[str, Any]) -> int:
    """Give torch and OpenBLAS, where loaded, the numbers of threads that `environ` asks for.

    Returns how many threads that has started.
    """
    before = _threads()
    torch_threads, blas_threads = wanted_threads(environ)
    if torch_threads != 1 and "torch" in loaded:
        number = torch_threads or _cores()
        if loaded["torch"].backends.mkl.is_available():
            number = min(number, _cores())  # what MKL makes of more, when it is imported
        # torch asks OpenMP at its first operation; telling OpenMP starts no thread before that.
        if not _call(number, libraries=_OPENMP, names=_OPENMP_SETTERS):
            loaded["torch"].set_num_threads(number)
    if blas_threads != 1 and "numpy" in loaded:
        number = blas_threads or len(os.sched_getaffinity(0))
        _call(number, libraries=("openblas",), names=_OPENBLAS_SETTERS)
    return _threads() - before


def _threads() -> int:
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return 0  # the program has gone where there is no /proc


def _number(text: str | None) -> int | None:
    # OMP_NUM_THREADS may be a list, one number per nesting level: the first is ours.
    first = (text or "").partition(",")[0].strip()
    return int(first) if first.isdecimal() and int(first) > 0 else None


def _cores() -> int:
    """Return the cores of the processors this process may use: torch counts no hyperthreads."""
    cores = set()
    for cpu in os.sched_getaffinity(0):
        try:
            with open(
                f"/sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list", encoding="ascii"
            ) as siblings:
                cores.add(siblings.read())
        except OSError:
            cores.add(str(cpu))
    return len(cores)


def _call(number: int, *, libraries: Sequence[str], names: Sequence[str]) -> bool:
    """Call the first function of `names` in each loaded library of that kind; tell if any."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            loaded = {line.split()[-1] for line in maps}
    except OSError:
        return False
    was_called = False
    for path in sorted(loaded):
        if any(kind in os.path.basename(path) for kind in libraries):
            library = ctypes.CDLL(path)
            setter = next((getattr(library, n) for n in names if hasattr(library, n)), None)
            if setter is not None:
                setter(number)
                was_called = True
    return was_called
