"""torch's library without its thousand Python modules, for a process that only keeps stores.

`import torch` takes up to two seconds of a processor, and most of that are modules. `TCPStore` is
a class of the library, which alone is loaded in a quarter of that, with 90 MB less. What stands in
for `torch` here holds `torch.distributed.TCPStore` and nothing else; a process that has it can
never import the rest. This does what torch itself does first when it is imported.

torch promises none of that, and a library is loaded once: there would be no second way. So it is
done with releases on which it was tried; docs/versions.md says which builds of them.
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

from pytest_elastic.boot import host

__all__ = ["provide"]

# What torch loads first, and in another way where this one fails.
_GLOBAL_LIBRARY = ("lib", "libtorch_global_deps.so")
_STAND_INS = ("torch", "torch.distributed")
_TRIED = re.compile(r"""^__version__ = ['"]2\.(7|10|13)\.""", re.MULTILINE)
_one_at_a_time = threading.Lock()


def provide() -> None:
    """Have `torch.distributed.TCPStore` in this process, which will need no more of torch.

    Where torch is imported already, or is a release on which this was not tried, nothing is done:
    what asks for the store imports all of it, or is told why that cannot be. Raises OSError or
    ImportError for a torch that is broken or has no stores.
    """
    with _one_at_a_time:
        interpreter = host.current()
        if "torch" in sys.modules or (interpreter is not None and interpreter.torch):
            return
        spec = find_spec("torch")
        if spec is None or not spec.submodule_search_locations:
            return
        (folder, *_) = spec.submodule_search_locations
        if _is_tried(folder):
            _load(folder)


def _is_tried(folder: str) -> bool:
    try:
        with open(os.path.join(folder, "version.py"), encoding="utf-8") as file:
            return _TRIED.search(file.read()) is not None
    except OSError:
        return False


def _load(folder: str) -> None:
    """Load the library of the torch in a folder, and nothing else of it."""
    ctypes.CDLL(os.path.join(folder, *_GLOBAL_LIBRARY), mode=ctypes.RTLD_GLOBAL)
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
