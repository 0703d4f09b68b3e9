"""How many threads the number crunchers take, in a process that imported them with one.

torch and OpenBLAS read their variables when they are imported; a warm interpreter imports them with
one thread, so that it can be forked. Here a program gets the number it would have got.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping
from typing import Any

__all__ = ["resize", "wanted_threads"]

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


def resize(environ: Mapping[str, str]) -> None:
    """Give torch and OpenBLAS, where loaded, the numbers of threads that `environ` asks for."""
    torch_threads, blas_threads = wanted_threads(environ)
    loaded: Mapping[str, Any] = sys.modules
    if torch_threads != 1 and "torch" in loaded:
        loaded["torch"].set_num_threads(torch_threads or _cores())
    if blas_threads != 1 and "numpy" in loaded:
        _resize_openblas(blas_threads or len(os.sched_getaffinity(0)))


def _number(text: str | None) -> int | None:
    # OMP_NUM_THREADS may be a list, one number per nesting level: the first is ours.
    first = (text or "").partition(",")[0].strip()
    return int(first) if first.isdecimal() and int(first) > 0 else None


def _cores() -> int:
    """Return the cores of the processors this process may use: torch counts no hyperthreads."""
    cores = set()
    for cpu in os.sched_getaffinity(0):
        try:
            with open(f"/sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list") as siblings:
                cores.add(siblings.read())
        except OSError:
            cores.add(str(cpu))
    return len(cores)


def _resize_openblas(threads: int) -> None:
    with open("/proc/self/maps") as maps:
        libraries = {line.split()[-1] for line in maps if "openblas" in line}
    for library in sorted(libraries):
        handle = ctypes.CDLL(library)
        for name in _OPENBLAS_SETTERS:
            setter = getattr(handle, name, None)
            if setter is not None:
                setter(threads)
                break
