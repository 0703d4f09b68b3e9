"""How many workers `--nproc-per-node=auto`, `cpu`, `gpu` and `xpu` mean on this machine."""

from __future__ import annotations

import glob
import os
import subprocess
import sys

from pytest_elastic.errors import Unavailable, UsageError

__all__ = ["count_devices"]

# What a kernel shows where there is an accelerator; asking torch takes seconds. NVIDIA (also
# Tegra), AMD, Intel, Windows' own, Ascend, Gaudi and TPU, Cambricon, Moore Threads.
_FILES = (
    *("nvidia*", "nvhost-*", "nvmap", "kfd", "dri", "dxg", "davinci*", "accel*", "cambricon*"),
    "mtgpu*",
)
# Packages that bring a backend of their own to torch, which it loads when it is imported.
_BACKENDS = "torch.backends"
_MODULES = {"gpu": "cuda", "xpu": "xpu", "auto": "accelerator"}
_LIMIT_S = 120.0


def count_devices(kind: str, *, dev: str = "/dev", limit_s: float = _LIMIT_S) -> int:
    """Return how many workers "auto", "cpu", "gpu" or "xpu" mean; `dev` is where devices are.

    Raises UsageError where there is no such device, and Unavailable if torch does not answer
    within `limit_s` seconds.
    """
    if kind == "cpu":
        return len(os.sched_getaffinity(0))
    count = _ask_torch(kind, limit_s) if _may_have_any(dev) else 0
    if count:
        return count
    if kind == "auto":
        return len(os.sched_getaffinity(0))
    raise UsageError(f"--nproc-per-node={kind}: torch finds no such device on this machine")


def _may_have_any(dev: str) -> bool:
    if any(glob.glob(os.path.join(glob.escape(dev), pattern)) for pattern in _FILES):
        return True
    from importlib import metadata  # it reads every package's files: not for `--help`

    return bool(metadata.entry_points(group=_BACKENDS))


def _ask_torch(kind: str, limit_s: float) -> int:
    """Ask in a process of its own: this one shall neither import torch nor touch a device.

    Backends are chatty: the answer is the last line.
    """
    module = f"torch.{_MODULES[kind]}"
    code = f"import torch; print({module}.device_count() if {module}.is_available() else 0)"
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=True,
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(
            f"--nproc-per-node={kind}: torch did not say within {limit_s:g} s how many devices "
            "there are: a driver does not answer",
            hint="`nvidia-smi`, or what your devices have in its place, may say more.",
        ) from error
    except subprocess.SubprocessError as error:
        said = getattr(error, "stderr", "") or str(error)
        raise _no_answer(kind, said.strip().splitlines()[-1]) from error
    answer = "".join(done.stdout.split()[-1:])
    if not answer.isdecimal():
        raise _no_answer(kind, f"a number was expected, and it printed {answer!r:.80}")
    return int(answer)


def _no_answer(kind: str, why: str) -> UsageError:
    return UsageError(
        f"--nproc-per-node={kind}: torch could not be asked for its devices: {why}",
        hint="Give a number, or mend what `python -c 'import torch'` says.",
    )
