"""torch's library without its thousand Python modules, for a process that only keeps stores.

`import torch` takes a second of a processor, and most of that are modules. `TCPStore` is a class of
the library, which alone is loaded in a sixth of that, with 90 MB less. What stands in for `torch`
here holds `torch.distributed.TCPStore` and nothing else; a process that has it can never import the
rest. This does what torch itself does first when it is imported.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import re
import sys
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from types import ModuleType

__all__ = ["provide"]

# What torch loads first, and in another way where this one fails.
_GLOBAL_LIBRARY = ("lib", "libtorch_global_deps.so")
# Builds on which all tests were run. One for GPUs loads more libraries, in an order of its own.
_TRIED = re.compile(r"""^__version__ = ['"]2\.13\.\d+\+cpu['"]""", re.MULTILINE)
_STAND_INS = ("torch", "torch.distributed")
_one_at_a_time = threading.Lock()


def provide() -> None:
    """Have `torch.distributed.TCPStore` in this process, which will need no more of torch.

    Where torch is imported already, or is a build on which this was not tried, nothing is done:
    what asks for the store imports all of it, or is told why that cannot be. Raises ImportError for
    a torch without stores; a library is loaded once, so that then there is no second way.
    """
    with _one_at_a_time:
        if "torch" in sys.modules:
            return
        spec = find_spec("torch")
        if spec is None or not spec.submodule_search_locations:
            return
        (folder, *_) = spec.submodule_search_locations
        if not _TRIED.search(_version_file_in(folder)):
            return
        try:
            ctypes.CDLL(os.path.join(folder, *_GLOBAL_LIBRARY), mode=ctypes.RTLD_GLOBAL)
        except OSError:
            return
        _load(folder)


def _version_file_in(folder: str) -> str:
    try:
        with open(os.path.join(folder, "version.py"), encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""


def _load(folder: str) -> None:
    torch, distributed = (ModuleType(name) for name in _STAND_INS)
    torch.__path__ = [folder]
    vars(torch)["distributed"] = distributed
    # The library looks for both, and puts its own names for the stores below the first.
    sys.modules.update(dict(zip(_STAND_INS, (torch, distributed), strict=True)))
    with _without_numpy():
        library = importlib.import_module("torch._C")
    if not (hasattr(library, "_c10d_init") and library._c10d_init()):  # noqa: SLF001 (as torch does)
        raise ImportError("this torch was built without torch.distributed")
    vars(distributed)["TCPStore"] = library._distributed_c10d.TCPStore  # noqa: SLF001 (as torch does)


@contextlib.contextmanager
def _without_numpy() -> Iterator[None]:
    """Let torch's library find no numpy, which is a third of the time that it takes to load."""
    if "numpy" in sys.modules:
        yield
        return
    sys.modules["numpy"] = None  # type: ignore[assignment]  # how Python says that there is none
    try:
        yield
    finally:
        del sys.modules["numpy"]
