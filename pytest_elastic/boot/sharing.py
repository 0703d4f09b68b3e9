"""Keeping what a forked child shares with its warm interpreter shared.

The kernel gives a child its parent's pages until one of them writes. CPython writes in
unexpected places: a reference counted up and down, an object freed, a new one put into the gap that
garbage has left. Each such page is 4 kB of the child's own. So what the host has made is never
freed in a child (`keep`), and the gaps are closed before the first fork (`freeze`). A program that
does nothing but join a gloo group: 18 MB of its own without all that, 8 MB with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

__all__ = ["freeze", "keep", "keep_caches", "modules_together"]

# Taken at once; those that are left over are freed.
_MODULES = 256

# Objects larger than that are not CPython's to place, but the C library's.
_LARGEST = 512
# How many bytes an object of type `bytes` is larger than what it holds.
_BYTES_HEAD = sys.getsizeof(b"")
# For what is too small for that. A float takes 24 bytes, which is rounded up.
_FILLERS: Mapping[int, Callable[[int], object]] = {16: lambda _: object(), 32: float}

# Each fills what the ones before it did not fit into.
_C_SIZES = (65536, 16384, 4096, 2048, 1024, *range(512, 16, -16))


def keep(thing: object) -> None:
    """Never free a thing, not even when the interpreter ends."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


@contextlib.contextmanager
def modules_together() -> Iterator[None]:
    """Have the modules that are imported lie together, but for those that C code makes.

    A child that puts many of them into `sys.modules` (`boot.hidden`) writes into each: 500 pages.
    """
    bootstrap: Any = sys.modules["_frozen_importlib"]
    make = getattr(bootstrap, "_new_module", None)  # 3.10 to 3.13 have it
    ready: list[Any] = []

    def take(name: str) -> ModuleType:
        if not ready:
            ready.extend(ModuleType("") for _ in range(_MODULES))
        module: ModuleType = ready.pop()
        type(module).__init__(module, name)
        return module

    if make is not None:
        bootstrap._new_module = take  # noqa: SLF001 (no other way)
    try:
        yield
    finally:
        if make is not None:
            bootstrap._new_module = make  # noqa: SLF001


def keep_caches() -> None:
    """Keep what programs are known to throw away: 2 800 functions' rules, as groups are made."""
    rules: Any = sys.modules.get("torch._dynamo.trace_rules")
    cached: Any = getattr(rules, "get_torch_obj_rule_map", None)
    if hasattr(cached, "cache_info") and cached.cache_info().currsize:
        keep(cached())


def freeze() -> None:
    """Take what is here for what stays for good; to be called before the first of many forks.

    The children's collectors and ends need not look at it. A process that was forked itself
    gains nothing from this for a few children: to fill its gaps it has to write into what it
    shares.
    """
    gc.collect()
    _empty_type_cache()
    _close_gaps()
    _close_gaps_of_c()
    gc.freeze()


def _empty_type_cache() -> None:
    """Let go of the names of attributes that CPython looked up last, 4 096 of them.

    A child's first look at an attribute puts its name in the place of one of these, and counts
    that down: a page of its own for a word of torch's that it never uses.
    """
    getattr(sys, "_clear_type_cache", lambda: None)()


def _close_gaps() -> None:
    """Fill the free places in CPython's pools of small objects, so that new objects lie together.

    Where CPython does not tell how many there are (another allocator is in use), nothing happens.
    """
    places = _free_places()
    fillers: list[object] = [None] * sum(places.values())
    number = 0
    for size, count in places.items():
        make = _FILLERS.get(size, bytes)
        for _ in range(count):
            fillers[number] = make(size - _BYTES_HEAD)
            number += 1
    keep(fillers)


def _close_gaps_of_c() -> None:
    """Fill the free places of the C library's heap, too: what children ask for comes from its end.

    Only glibc tells where that is. Another allocator's memory is not in that heap at all.
    """
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2"):
        return
    libc.mallinfo2.restype = _MallocInfo
    libc.sbrk.restype = libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    for size in _C_SIZES:
        end = libc.sbrk(0) - libc.mallinfo2().keepcost
        place = libc.malloc(size)
        while place is not None and place < end:
            place = libc.malloc(size)
        libc.free(place)


class _MallocInfo(ctypes.Structure):
    """struct mallinfo2 of glibc; `keepcost` is what is free at the end of the heap."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks"),
            *("uordblks", "fordblks", "keepcost"),
        )
    ]


def _free_places() -> dict[int, int]:
    """Return how many free places there are for objects of each size, as CPython's own table says.

    It is written to the C library's stderr: that is a file for as long.
    """
    table = os.memfd_create("pools", os.MFD_CLOEXEC)
    stderr = os.dup(2)
    os.dup2(table, 2)
    try:
        getattr(sys, "_debugmallocstats", lambda: None)()
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
    text = os.pread(table, 1 << 20, 0).decode("ascii", "replace")
    os.close(table)
    # The class, its size, how many pools, blocks in use, blocks that are free.
    rows = [line.split() for line in text.splitlines()]
    sizes = [[int(word) for word in row] for row in rows if len(row) == 5 and _is_numbers(row)]
    return {size: free for _, size, _, _, free in sizes if size <= _LARGEST}


def _is_numbers(words: list[str]) -> bool:
    return all(word.isdigit() for word in words)
