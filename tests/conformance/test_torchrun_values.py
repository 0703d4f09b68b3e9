"""Values of options that torchrun accepts, given to both launchers as a user would."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.conformance.launchers import OURS, TORCHRUN, run, write

# A package that gives torch a backend, as those for Ascend or Gaudi do: torch imports it by its
# entry point, and it renames privateuse1 and registers the module that counts devices.
BACKEND = """
import sys
import torch
device_count = lambda: {count}
is_available = lambda: {count} > 0
def load():
    torch.utils.rename_privateuse1_backend("toy")
    torch._register_device_module("toy", sys.modules[__name__])
"""
launchers = pytest.mark.parametrize("launcher", [OURS, TORCHRUN], ids=["ours", "torchrun"])


def install_backend(folder: Path, *, count: int) -> dict[str, str]:
    """Put the package into a folder; return the variables with which Python finds it."""
    info = folder / "toy_backend-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-backend\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[torch.backends]\ntoy = toy_backend:load\n")
    (folder / "toy_backend.py").write_text(BACKEND.format(count=count))
    return {"PYTHONPATH": str(folder)}


@launchers
@pytest.mark.parametrize("name", ["toy", "auto"])
def test_a_backend_that_a_package_brings_says_how_many_workers(
    tmp_path: Path, launcher: Sequence[str], name: str
) -> None:
    """By its own name, or as the accelerator that torch has."""
    environ = install_backend(tmp_path / "site", count=3)
    script = write(
        tmp_path / "size.py", "import os; os.write(1, b'of %s\\n' % os.environb[b'WORLD_SIZE'])"
    )
    done = run(tmp_path, *launcher, "--standalone", f"--nproc-per-node={name}", script,
               environ=environ)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["of 3"] * 3


@launchers
@pytest.mark.parametrize(
    ("name", "count", "said"),
    [
        ("toy", 0, ("--nproc-per-node=toy: torch finds no such device", "toy is not available")),
        (
            "toi",
            3,
            (
                "auto, cpu, gpu, xpu, or toy, the name of torch's backend",
                "Unsupported nproc_per_node value: toi",
            ),
        ),
    ],
)
def test_a_backend_that_is_not_there_is_refused(
    tmp_path: Path, launcher: Sequence[str], name: str, count: int, said: tuple[str, str]
) -> None:
    """One without devices, and a misspelt one."""
    environ = install_backend(tmp_path / "site", count=count)
    script = write(tmp_path / "pass.py", "pass")
    done = run(tmp_path, *launcher, "--standalone", f"--nproc-per-node={name}", script,
               environ=environ)  # fmt: skip
    assert done.returncode == (2 if launcher is OURS else 1)
    assert said[launcher is TORCHRUN] in done.stderr


def test_a_name_without_any_such_backend_is_refused(tmp_path: Path) -> None:
    """What torch calls it when no package has renamed it is no name to offer."""
    script = write(tmp_path / "pass.py", "pass")
    done = run(tmp_path, *OURS, script, environ={"PET_NPROC_PER_NODE": "two"})
    assert done.returncode == 2
    assert "PET_NPROC_PER_NODE=two: expected a number of workers, or auto, cpu, gpu" in done.stderr
    assert "the name of" not in done.stderr


@launchers
def test_an_ipv6_endpoint_needs_no_brackets(tmp_path: Path, launcher: Sequence[str]) -> None:
    """The last colon is where the port begins."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6) as taken:
            port = taken.getsockname()[1]
    except OSError:
        pytest.skip("this machine has no IPv6")
    script = write(tmp_path / "ran.py", "print('ran')")
    words = (*launcher, "--rdzv-backend=c10d", f"--rdzv-endpoint=::1:{port}", script)
    done = run(tmp_path, *words)
    assert (done.returncode, done.stdout) == (0, "ran\n"), done.stderr
    warning = f"--rdzv-endpoint='::1:{port}' is read as host ::1 and port {port}"
    assert (warning in done.stderr) == (launcher is OURS)
