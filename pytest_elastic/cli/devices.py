"""How many workers `--nproc-per-node` means on this machine, where it is no number.

That is `auto`, `cpu`, `gpu`, `xpu`, or the name of the backend that a package gives torch, such as
`npu`: torch has one place for such a backend, privateuse1, and knows its name once it is imported.
"""

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
_QUESTION = """
import sys, torch
kind, module = sys.argv[1:]
theirs = "" if module else torch._C._get_privateuse1_backend_name()
if module or kind == theirs:
    devices = getattr(torch, module or theirs)
    print(devices.device_count() if devices.is_available() else 0)
else:
    print("theirs:" + theirs)
"""
# What torch calls its place for another's backend while no package has given it one.
_NO_BACKEND = "privateuseone"


def count_devices(kind: str, *, dev: str = "/dev", limit_s: float = _LIMIT_S) -> int:
    """Return how many workers a word means; `dev` is where the kernel shows devices.

    Raises UsageError where there is no such device or backend, and Unavailable if torch does not
    answer within `limit_s` seconds.
    """
    if kind == "cpu":
        return len(os.sched_getaffinity(0))
    # Of another name only torch can say whether it is a backend's.
    may_have_any = kind not in _MODULES or _may_have_any(dev)
    count = _ask_torch(kind, limit_s) if may_have_any else 0
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
    try:
        done = subprocess.run(
            [sys.executable, "-c", _QUESTION, kind, _MODULES.get(kind, "")],
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
    if kind not in _MODULES and answer.startswith("theirs:"):
        raise _no_such_backend(kind, answer.removeprefix("theirs:"))
    if not answer.isdecimal():
        raise _no_answer(kind, f"a number was expected, and it printed {answer!r:.80}")
    return int(answer)


def _no_such_backend(kind: str, theirs: str) -> UsageError:
    other = f", or {theirs}, the name of torch's backend" if theirs != _NO_BACKEND else ""
    return UsageError(
        f"--nproc-per-node={kind}: expected a number of workers, or auto, cpu, gpu, xpu{other}"
    )


def _no_answer(kind: str, why: str) -> UsageError:
    return UsageError(
        f"--nproc-per-node={kind}: torch could not be asked for its devices: {why}",
        hint="Give a number, or mend what `python -c 'import torch'` says.",
    )
