"""torch's stores without the rest of torch, each tried in an interpreter of its own."""

from __future__ import annotations

import subprocess
import sys

_USE = """
import sys
from pytest_elastic.workers.store import bare_torch
bare_torch.provide()
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
store.set("k", "v")
print(store.get("k").decode())
"""
_COUNT = """
files = [str(getattr(module, "__file__", "")) for module in sys.modules.values()]
print(len([file for file in files if "/torch/" in file and file.endswith(".py")]))
print("numpy" in sys.modules)
"""
_OF_ANOTHER_RELEASE = """
import re
from pytest_elastic.workers.store import bare_torch
bare_torch._TRIED = re.compile("another")
"""


def _printed_by(code: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_a_store_takes_torchs_library_and_next_to_none_of_its_modules() -> None:
    """A process that keeps stores has no numpy, and of torch what the library itself imports."""
    said, again, torch, numpy = _printed_by(f"{_USE}{_USE}{_COUNT}")
    assert said == again == "v"
    assert int(torch) < 5  # and not 1,000
    assert numpy == "False"


def test_where_torch_is_imported_it_is_used_as_it_is() -> None:
    """A service that was forked from an interpreter with torch needs nothing else."""
    whole = "import torch\nbefore = torch\n"
    same = "import torch\nprint(torch is before, torch.ones(2).sum().item())\n"
    assert _printed_by(f"{whole}{_USE}{same}") == ["v", "True 2.0"]


def test_of_a_release_on_which_this_was_not_tried_all_is_imported() -> None:
    """Nothing of torch is loaded before that is known."""
    whole = "import torch\nprint(torch.ones(2).sum().item(), 'numpy' in sys.modules)\n"
    assert _printed_by(f"{_OF_ANOTHER_RELEASE}{_USE}{whole}") == ["v", "2.0 True"]
