"""What a test on four ranks costs on a running server, beside torch's own way and a spawn.

The three kinds take turns, round by round, so that whatever else the machine does falls on all of
them. torch's way is the base class of its own tests, `MultiProcessTestCase`; it needs the package
`expecttest`. All three make a gloo process group on four processes and reduce one tensor.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from xml.etree import ElementTree as ET

__all__ = ["ranks"]

_OURS, _TORCHS, _SPAWN = "marked ranks(4)", "MultiProcessTestCase", "spawn per test"
_BODY = """
    tensor = torch.ones(3) * dist.get_rank()
    dist.all_reduce(tensor)
    assert tensor.tolist() == [6, 6, 6]
"""
_GROUP = """
    store = dist.FileStore(path, 4)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=4)
"""
_TESTS: Mapping[str, str] = {
    _OURS: f"""
import pytest, torch, torch.distributed as dist

@pytest.mark.ranks(4)
@pytest.mark.parametrize("number", range({{times}}))
def test_reduces(number):
{_BODY}
""",
    _TORCHS: f"""
import torch, torch.distributed as dist
from torch.testing._internal.common_distributed import MultiProcessTestCase

def reduces(rank, path):
{_GROUP}{_BODY}
    dist.destroy_process_group()

class TestReduces(MultiProcessTestCase):
    world_size = 4

    def setUp(self):
        super().setUp()
        self._spawn_processes()

for number in range({{times}}):
    name = f"test_reduces_{{{{number}}}}"
    setattr(TestReduces, name, lambda self: reduces(self.rank, self.file_name))
""",
    _SPAWN: f"""
import pytest, torch, torch.distributed as dist, torch.multiprocessing as mp

def reduces(rank, path):
{_GROUP}{_BODY}
    dist.destroy_process_group()

@pytest.mark.parametrize("number", range({{times}}))
def test_reduces(tmp_path, number):
    mp.spawn(reduces, (str(tmp_path / "store"),), nprocs=4)
""",
}
_ROUNDS = 2
_TIMES = {_OURS: 21, _TORCHS: 2, _SPAWN: 2}
_MAX_S = 0.15
_MAX_RATIO = 1 / 20
_LIMIT_S = 600.0


def ranks(*, quick: bool) -> dict[str, object]:
    """Time single tests of each kind, as pytest reports them; the first one starts our server."""
    sys.stdout.write(
        f"\na test on 4 ranks, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n"
    )
    tests = dict(_TESTS)
    if importlib.util.find_spec("expecttest") is None:
        del tests[_TORCHS]
        sys.stdout.write(f"  {_TORCHS} is left out: pip install expecttest\n")
    seconds: dict[str, list[float]] = {name: [] for name in tests}
    for _ in range(1 if quick else _ROUNDS):
        for name, text in tests.items():
            seconds[name] += _durations(text, _TIMES[name])[name == _OURS :]
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    missed = medians[_OURS] > _MAX_S
    for name, median in medians.items():
        least, most = min(seconds[name]), max(seconds[name])
        line = (
            f"  {name:<22} median {median:.3f} s of {len(seconds[name])}, {least:.3f} to {most:.3f}"
        )
        if name != _OURS:
            ratio = medians[_OURS] / median
            missed |= ratio > _MAX_RATIO
            line += f"; ours takes 1/{1 / ratio:.0f} of it"
        sys.stdout.write(line + "\n")
    sys.stdout.write(f"  to be reached: {_MAX_S:g} s, and 1/{1 / _MAX_RATIO:.0f}\n")
    return {"seconds": medians, "missed": missed}


def _durations(text: str, times: int) -> list[float]:
    """Run a file of tests by a pytest of its own; return how long each took."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        with open(os.path.join(folder, "test_cost.py"), "w", encoding="utf-8") as file:
            file.write(text.format(times=times))
        called = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "--rootdir=.", "--junitxml=report.xml"],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
        if called.returncode != 0:
            raise RuntimeError(f"the tests have failed:\n{called.stdout}{called.stderr}")
        report = ET.parse(os.path.join(folder, "report.xml"))  # noqa: S314 (pytest's own)
        return [float(case.attrib["time"]) for case in report.iter("testcase")]
