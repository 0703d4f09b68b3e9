"""How a warm program ends: as a fresh one would, minus what has no visible effect.

A fresh interpreter ends in three parts: Python finalises (threads joined, `atexit`, every module
taken down); then the C library calls what was registered with it, last come, first called; then
the kernel takes the memory. Two things go wrong or cost time there, and are mended here.

**Gloo's threads.** A collective's tensors are let go by a thread of the process group, which needs
Python's lock for that (torch 2.13). If it asks while Python finalises, it is made to exit, through
C++ code that does not allow it: the process aborts. If the group's end, which waits for that thread
with the lock held, comes first: it hangs. So the very last `atexit` callback waits until those
threads have nothing to do. torch would wait for the same work a moment later, with less luck. The
same hang befalls a program that destroys its groups while a replica (DDP) holds one of them, and
then lets the replica go; warm workers more than fresh ones. So destroying waits for them, too.

**The destructors of torch's libraries.** They take apart, entry by entry, tables of operators that
the kernel frees in one go a moment later: two thirds of the time that a program with torch takes
to end. They were registered when the warm interpreter imported torch. What a program itself or its
own libraries register comes later and is called before: so behind all that, in front of torch's,
we put "flush what C and C++ have buffered" and `_exit` with the status that `exit` was given.

That is right only while nothing preloaded has anything to say at its end: see `can_end_early`.

**triton's report of leaks.** From 3.9 on, triton reports each of its types that Python has not let
go as it finalised. A warm program lets nothing go that it shares (`sharing`), so each worker would
print thirty lines. The function that reports is taken back (`drop_cleanups`): all it does besides
is to free memory.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["can_end_early", "drop_cleanups", "end_early", "settle", "settle_when_groups_end"]

# As the kernel shows it: `c10::setThreadName("pt_gloo_runloop")`; torch 2.7 and 2.10 name none.
_GLOO_THREAD = "pt_gloo_runloop"
# A futex is what they wait by; gloo's own thread, which has no name either, waits for sockets.
_FUTEX = {"x86_64": "202", "aarch64": "98"}.get(os.uname().machine, "")
# Work that takes longer waits for other ranks; torch itself will go on waiting for that.
_SETTLE_S = 5.0
# A group may also be destroyed because a rank is gone: what waits for that is not waited for long.
_SETTLE_GROUPS_S = 1.0
# A thread without a name may be another library's, which is never done.
_SETTLE_NAMELESS_S = 0.2
_FIRST_NAP_S = 0.0005
_LONGEST_NAP_S = 0.02

# Their libraries have nothing to write at their end. Others may: HDF5 closes its files there.
_SILENT = frozenset({"torch", "numpy", "pytest_elastic", "elastic_harness"})
# Tools that come along with the linker or with CUDA, and report when the process ends.
_TOOLS = ("LD_PRELOAD", "LD_AUDIT", "LD_DEBUG", "LD_PROFILE", "CUDA_INJECTION64_PATH")
# A process with a device has more to take down than memory, and warns of tensors still shared.
_DEVICES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dri", "/dev/dxg")
_CXX_LIBRARY = "libstdc++.so.6"
# std::cout and its like, each with its `flush`: a program may have unlinked them from C's streams.
_CXX_FLUSH, _CXX_WIDE_FLUSH = "_ZNSo5flushEv", "_ZNSt13basic_ostreamIwSt11char_traitsIwEE5flushEv"
_CXX_STREAMS = {
    **dict.fromkeys(("_ZSt4cout", "_ZSt4clog"), _CXX_FLUSH),
    **dict.fromkeys(("_ZSt5wcout", "_ZSt5wclog"), _CXX_WIDE_FLUSH),
}

_POINTER = ctypes.sizeof(ctypes.c_void_p)
# CPython's own state is smaller (3.10 to 3.14), and has places for so many functions.
_RUNTIME_BYTES = 4 << 20
_MOST_CLEANUPS = 32


def settle() -> None:
    """Wait until the threads of gloo's process groups have nothing to do, for a few seconds."""
    c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
    _settle(_SETTLE_S, has_groups=c10d is not None and c10d.is_initialized())


def _settle(limit_s: float, *, has_groups: bool) -> None:
    threads, is_busy = _gloo_threads(), _is_busy
    if has_groups and not threads:
        threads, is_busy, limit_s = _nameless_threads(), _is_busy_by_futex, _SETTLE_NAMELESS_S
    deadline = time.monotonic() + limit_s
    nap_s = _FIRST_NAP_S
    while any(map(is_busy, threads)) and time.monotonic() < deadline:
        # Python's lock is free meanwhile: another thread may take it.
        time.sleep(nap_s)
        nap_s = min(2 * nap_s, _LONGEST_NAP_S)


def settle_when_groups_end(loaded: Mapping[str, Any]) -> None:
    """Have `destroy_process_group` wait for gloo's threads before it lets all groups go.

    There is no hook for that: the last function it calls is wrapped (torch 2.7 to 2.13 have it).
    """
    c10d: Any = loaded.get("torch.distributed.distributed_c10d")
    unregister = getattr(c10d, "_unregister_all_process_groups", None)
    if unregister is None:
        return

    @functools.wraps(unregister)
    def settle_and_unregister() -> None:
        _settle(_SETTLE_GROUPS_S, has_groups=True)
        unregister()

    c10d._unregister_all_process_groups = settle_and_unregister  # noqa: SLF001


def can_end_early(preload: Iterable[str], environ: Mapping[str, str]) -> bool:
    """Tell whether nothing that is loaded by now has anything to say when the process ends."""
    return (
        all(name.partition(".")[0] in _SILENT for name in preload)
        and not any(environ.get(name) for name in _TOOLS)
        and not any(map(os.path.exists, ("/etc/ld.so.preload", *_DEVICES)))
    )


def end_early() -> None:
    """Have this process skip, at its end, what was registered with the C library before now.

    Python's own finalisation is not concerned, nor is what will be registered from now on.
    """
    libc = ctypes.CDLL(None)
    if not (hasattr(libc, "on_exit") and hasattr(libc, "__cxa_atexit")):
        return  # not the GNU C library
    # Called in reverse. `on_exit` hands the status on, as the first argument.
    libc.on_exit(libc._exit, None)
    libc["__cxa_atexit"](libc.fflush, None, None)
    try:
        cxx = ctypes.CDLL(_CXX_LIBRARY, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return  # nothing of C++ is loaded
    for stream, flush in _CXX_STREAMS.items():
        libc["__cxa_atexit"](cxx[flush], ctypes.byref(ctypes.c_char.in_dll(cxx, stream)), None)


def drop_cleanups(library: str) -> None:
    """Have Python not call what a library, by the end of its path, has given to `Py_AtExit`.

    There is no way back for that but to find CPython's table of these functions, by one of ours
    that is put behind the others. Where it is not found, nothing happens.
    """
    code = _code_of(library)
    if not code:
        return
    libc = ctypes.CDLL(None)
    harmless = ctypes.cast(libc.getpid, ctypes.c_void_p).value
    if harmless is None or ctypes.pythonapi.Py_AtExit(libc.getpid) != 0:
        return
    start = ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_PyRuntime"))
    with open("/proc/self/mem", "rb", buffering=0) as memory:
        runtime = os.pread(memory.fileno(), _RUNTIME_BYTES, start)
    ours = harmless.to_bytes(_POINTER, sys.byteorder)
    found = -1
    # Other tables of CPython may have that function, too, and no library's in front of it.
    while (found := runtime.find(ours, found + 1)) >= 0:
        for place in range(found, max(0, found - _MOST_CLEANUPS * _POINTER), -_POINTER):
            function = int.from_bytes(runtime[place : place + _POINTER], sys.byteorder)
            if any(function in addresses for addresses in code):
                ctypes.c_void_p.from_address(start + place).value = harmless


def _code_of(library: str) -> list[range]:
    """Return the addresses of a library's code; empty where it is not loaded."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        lines = [line.split(maxsplit=5) for line in maps]
    found = [
        line[0].split("-")
        for line in lines
        if "x" in line[1] and line[-1].rstrip().endswith(library)
    ]
    return [range(int(first, 16), int(last, 16)) for first, last in found]


def _gloo_threads() -> list[str]:
    return [thread for thread, name in _thread_names().items() if name == _GLOO_THREAD]


def _nameless_threads() -> list[str]:
    """Return the threads that have this process's name and that Python has not started."""
    names = _thread_names()
    own = names.get(str(os.getpid()))
    pythons = {str(thread.native_id) for thread in threading.enumerate()}
    return [thread for thread, name in names.items() if name == own and thread not in pythons]


def _thread_names() -> dict[str, str]:
    """Return the names of this process's threads: of none, where no file can be opened."""
    names: dict[str, str] = {}
    try:
        threads = os.listdir("/proc/self/task")
    except OSError:
        return names
    for thread in threads:
        try:
            with open(f"/proc/self/task/{thread}/comm", encoding="utf-8", errors="replace") as comm:
                names[thread] = comm.read().rstrip("\n")
        except OSError:
            pass  # it has ended
    return names


def _is_busy(thread: str) -> bool:
    """Tell whether a thread does anything but wait, without a time limit, for something to do.

    Waits for other ranks, and for Python's lock, have a limit; so has no wait for work.
    """
    call = _call_of(thread)
    # The call's number and six arguments: a futex's fourth is its time limit.
    return len(call) > 0 and (len(call) < 5 or int(call[4], 16) != 0)


def _is_busy_by_futex(thread: str) -> bool:
    """Tell the same, but for a thread that waits by another call."""
    return _is_busy(thread) and _call_of(thread)[:1] in ([_FUTEX], ["running"])


def _call_of(thread: str) -> list[str]:
    """Return the system call that a thread is in, or "running"; empty if it has ended."""
    try:
        with open(f"/proc/self/task/{thread}/syscall", encoding="ascii") as file:
            return file.read().split()
    except OSError:
        return []  # or this kernel does not tell
