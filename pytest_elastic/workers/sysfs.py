"""What the kernel says of this machine's processors, and torch of its GPUs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from pytest_elastic.errors import UsageError
from pytest_elastic.workers.affinity import Topology

__all__ = ["find_gpus", "read_topology"]

# Importing torch takes a second, on a busy machine some more; a driver that wakes up, ten.
_ASK_TIMEOUT_S = 120
_ASK = """
import torch
for index in range(torch.cuda.device_count()):
    gpu = torch.cuda.get_device_properties(index)
    print(f"{gpu.pci_domain_id:04x}:{gpu.pci_bus_id:02x}:{gpu.pci_device_id:02x}.0")
"""


def find_gpus() -> tuple[str, ...]:
    """Return the PCI address of each GPU, in torch's order; blocks while torch is asked.

    A process of its own is asked: this one shall neither import torch nor touch a device. Raises
    UsageError if torch does not answer.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-c", _ASK],
            capture_output=True,
            text=True,
            timeout=_ASK_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError(
            f"--numa-binding: torch could not be asked for its GPUs: {error}"
        ) from error
    return tuple(done.stdout.split())


def read_topology(gpus: Sequence[str], *, sys_path: str = "/sys") -> Topology:
    """Return the topology that `sys_path` describes; `gpus` are PCI addresses.

    Raises UsageError where the kernel does not say (a container may hide it).
    """
    try:
        return _read(gpus, sys_path)
    except (OSError, ValueError) as error:
        raise UsageError(f"--numa-binding: the kernel does not tell enough: {error}") from error


def _read(gpus: Sequence[str], root: str) -> Topology:
    nodes = {
        node: frozenset(_numbers(f"{root}/devices/system/node/node{node}/cpulist"))
        for node in _numbers(f"{root}/devices/system/node/online")
    }
    allowed = frozenset(os.sched_getaffinity(0))
    cpus = sorted(frozenset().union(*nodes.values()))
    cpu_path = f"{root}/devices/system/cpu/cpu"
    return Topology(
        nodes=nodes,
        cores={
            cpu: min(_numbers(f"{cpu_path}{cpu}/topology/thread_siblings_list")) for cpu in cpus
        },
        caches={cpu: min(_largest_cache(f"{cpu_path}{cpu}/cache")) for cpu in cpus},
        sockets={cpu: int(_text(f"{cpu_path}{cpu}/topology/physical_package_id")) for cpu in cpus},
        allowed=allowed,
        # A machine with one node says -1.
        gpu_nodes=tuple(
            max(int(_text(f"{root}/bus/pci/devices/{gpu}/numa_node")), 0) for gpu in gpus
        ),
    )


def _largest_cache(folder: str) -> Sequence[int]:
    """Return the processors that share the cache of the highest level."""
    best, sharing = -1, ""
    for entry in sorted(os.listdir(folder)):
        cache = os.path.join(folder, entry)
        if not entry.removeprefix("index").isdecimal():
            continue
        if _text(f"{cache}/type") in ("Unified", "Data"):
            level = int(_text(f"{cache}/level"))
            if level > best:
                best, sharing = level, f"{cache}/shared_cpu_list"
    if not sharing:
        raise ValueError(f"{folder} names no cache")
    return _numbers(sharing)


def _numbers(path: str) -> list[int]:
    """Return the numbers of a file such as "0-2,4"."""
    numbers: list[int] = []
    for part in filter(None, _text(path).split(",")):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers


def _text(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.read().strip()
