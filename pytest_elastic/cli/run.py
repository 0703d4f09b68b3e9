"""`pytest-elastic run`: read the command line, launch, and say in a few lines how it went."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

from pytest_elastic.cli.options import parse_run_command
from pytest_elastic.config import LaunchConfig
from pytest_elastic.errors import UsageError

__all__ = ["main", "read_config"]

# What a kernel shows when an accelerator is there at all; asking torch takes seconds.
_ACCELERATOR_FILES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dri", "/dev/dxg")


def main(argv: Sequence[str]) -> int:
    """Run a job's share on this node; return the exit code."""
    config = read_config(argv, os.environ)
    from pytest_elastic.launch import launch

    return launch(config)


def read_config(argv: Sequence[str], environ: Mapping[str, str]) -> LaunchConfig:
    """Return the settings that a command line asks for; raises UsageError."""
    return parse_run_command(argv, environ, count_devices=_count_devices)


def _count_devices(kind: str) -> int:
    if kind == "cpu":
        return len(os.sched_getaffinity(0))
    count = _count_accelerators(kind) if any(map(os.path.exists, _ACCELERATOR_FILES)) else 0
    if count:
        return count
    if kind == "auto":
        return len(os.sched_getaffinity(0))
    raise UsageError(f"--nproc-per-node={kind}: torch finds no such device on this machine")


def _count_accelerators(kind: str) -> int:
    """Ask torch, in a process of its own: this one shall neither import it nor touch a device."""
    module = {"gpu": "cuda", "xpu": "xpu"}.get(kind, "accelerator")
    code = f"import torch; print(torch.{module}.device_count() if torch.{module}.is_available() else 0)"
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
        )
        return int(done.stdout)
    except (subprocess.SubprocessError, ValueError) as error:
        raise UsageError(
            f"--nproc-per-node={kind}: torch could not be asked for its devices: {error}"
        ) from error
