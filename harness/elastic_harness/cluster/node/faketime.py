"""libfaketime, where it is installed and works: what shows a process another time of day.

Debian's build of 0.9.10 makes `time.sleep` of Python 3.11 and later fail, and others let threads
that wait for the interpreter's lock take all of a processor. So being there is not enough: each
candidate is tried, once in a process.
"""

from __future__ import annotations

import functools
import glob
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping

__all__ = ["VARIABLE", "faketime_environ", "find_libfaketime"]

# Names the library where it is in none of the usual places.
VARIABLE = "PYTEST_ELASTIC_LIBFAKETIME"
_PLACES = (
    "/usr/lib/*/faketime/libfaketimeMT.so.1",  # Debian and its family
    "/usr/lib*/faketime/libfaketimeMT.so.1",  # Fedora and its family, Arch
    "/usr/local/lib/faketime/libfaketimeMT.so.1",
)
_HELD_S = 0.1  # while one thread has the interpreter's lock, and another waits for it
_TRIAL = f"""
import ctypes, resource, threading, time
def used():
    found = resource.getrusage(resource.RUSAGE_SELF)
    return found.ru_utime + found.ru_stime
is_over = []
def wait():
    while not is_over:
        time.sleep(0.001)
real = time.clock_gettime(time.CLOCK_BOOTTIME)
threading.Thread(target=wait).start()
before = used()
ctypes.PyDLL(None).usleep({int(_HELD_S * 1e6)})
spent = used() - before
is_over.append(True)
print(time.time(), time.clock_gettime(time.CLOCK_BOOTTIME) - real, spent)
"""
_TRIAL_LIMIT_S = 20.0


def faketime_environ(library: str, clock_file: str) -> Mapping[str, str]:
    """Return what a process needs to take the time of day from a file, read once a second."""
    return {
        "LD_PRELOAD": library,
        "FAKETIME_TIMESTAMP_FILE": clock_file,
        "FAKETIME_CACHE_DURATION": "1",
        "DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        # Else a wait of a thread with a limit ends at once: those for the interpreter's lock are of
        # that kind, and with threads a process took all of a processor.
        "FAKETIME_FORCE_MONOTONIC_FIX": "0",
        "NO_FAKE_STAT": "1",
    }


@functools.cache
def find_libfaketime() -> tuple[str | None, str]:
    """Return the path of a library that works (None: there is none), and a sentence about that."""
    problems = []
    for path in _candidates():
        problem = _try(path)
        if problem is None:
            return path, f"by {path}"
        problems.append(f"{path}: {problem}")
    if problems:
        return None, f"{'; '.join(problems)} (pip install libfaketime has one that works)"
    return None, "there is no libfaketime (pip install libfaketime)"


def _candidates() -> Iterator[str]:
    named = os.environ.get(VARIABLE)
    if named:
        yield named
        return
    spec = importlib.util.find_spec("libfaketime")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        yield from sorted(glob.glob(f"{folder}/**/libfaketime*.so.1", recursive=True))
    for place in _PLACES:
        yield from sorted(glob.glob(place))


def _try(path: str) -> str | None:
    """Run a small program with another time of day; returns what is wrong with that."""
    if not os.path.isfile(path):
        return "there is no such file"
    environ = {**os.environ, **faketime_environ(path, os.devnull), "FAKETIME": "+3600"}
    del environ["FAKETIME_TIMESTAMP_FILE"]
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _TRIAL],
            env=environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=_TRIAL_LIMIT_S,
        )
        shown, passed, spent = (float(word) for word in done.stdout.split())
    except subprocess.TimeoutExpired:
        return "a program hangs with it"
    except (OSError, ValueError):
        return "a program that sleeps fails with it"
    if abs(shown - time.time() - 3600) > 60 or not 0 < passed < 60:
        return "it does not change the time of day, or it changes other clocks"
    if spent > _HELD_S / 5:  # without, a fiftieth
        return "threads that wait take all of a processor with it"
    return None
