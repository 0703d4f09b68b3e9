"""Tests on ranks among pytest's usual plugins, from an installed wheel: `tox -e plugins`.

The project has packages `harness` and `tests` of its own, names that a checkout of ours has too.
"""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

PLUGINS = (
    *("pytest_rerunfailures", "pytest_timeout", "pytest_randomly", "pytest_html", "pytest_cov"),
    "pytest_asyncio",
)
TESTS = """
import asyncio
import os
import random

import pytest
import pytest_elastic
import torch.distributed as dist

from harness.mine import double
from tests.of_mine import MARK


def same_on_all(value):
    told = [None] * dist.get_world_size()
    dist.all_gather_object(told, value)
    return len(set(told)) == 1


def test_ours_is_the_installed_one():
    assert "site-packages" in pytest_elastic.__file__


@pytest.mark.ranks(2)
def test_chance_is_the_same_on_all_ranks(rank):
    assert same_on_all(random.random())


@pytest.mark.ranks(2)
@pytest.mark.asyncio
async def test_asynchronous(rank):
    await asyncio.sleep(0)
    assert same_on_all(double(2))


@pytest.mark.ranks(2)
@pytest.mark.flaky(reruns=2)
def test_better_the_second_time(rank):
    tried = os.path.join(os.environ["TRIED"], str(rank))
    is_first = not os.path.exists(tried)
    open(tried, "w").close()
    assert not is_first, MARK


@pytest.mark.ranks(2)
@pytest.mark.timeout(4)
def test_hangs(rank):
    if rank == 0:
        dist.barrier()
    else:
        while True:
            pass
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with such packages."""
    for package, module, text in (
        ("harness", "mine", "def double(number):\n    return 2 * number\n"),
        ("tests", "of_mine", "MARK = 'of mine'\n"),
    ):
        folder = tmp_path / package
        folder.mkdir()
        (folder / "__init__.py").touch()
        (folder / f"{module}.py").write_text(text)
    (tmp_path / "tests" / "test_some.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    return tmp_path


@pytest.mark.parametrize("more", [(), ("-n2",)], ids=["alone", "xdist"])
def test_the_usual_plugins_side_by_side(project: Path, more: tuple[str, ...]) -> None:
    """Each does its part for tests on ranks, and none is in another's way."""
    assert not [name for name in PLUGINS if find_spec(name) is None]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-rA", "--cov=harness", "--html=page.html"),
            *("--cov-report=term", *more),
        ],
        cwd=project,
        env={"PATH": "/usr/bin:/bin", "HOME": str(project), "TRIED": str(project)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200,
        check=False,
    )
    assert "1 failed, 4 passed" in done.stdout, done.stdout
    assert "rerun" in done.stdout
    assert "FAILED tests/test_some.py::test_hangs" in done.stdout
    assert "rank 1 did not come to where rank 0 waited, in barrier" in done.stdout
    assert done.stdout.index("  rank 1 of 2 _") < done.stdout.index("  rank 0 of 2 _")
    assert re.search(r"harness/mine.py +2 +0 +100%", done.stdout), done.stdout
    assert "test_hangs" in (project / "page.html").read_text()
