"""What a machine is and can do, as its agent says before anything is started there."""

from __future__ import annotations

import json
import os
import platform
import socket
from dataclasses import dataclass
from importlib import metadata
from typing import Final

from elastic_harness.cluster.choose import choose_cluster

__all__ = ["FOUND_OUT_THERE", "OF_NAMESPACES", "MachineFacts", "facts_of_this_machine"]

# What a machine itself has to be able to do; the rest follows from where nodes are.
OF_NAMESPACES: Final = ("network", "names", "private_disk", "private_pids", "disk_faults")
FOUND_OUT_THERE: Final = (
    *OF_NAMESPACES,
    "pause",
    "cpu_limit",
    "memory_limit",
    "process_limit",
    "clock_skew",
    "cuda",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """`capabilities` are (available, reason) by name; `has_sign`: it sees a certain file of ours.

    `clock` names the kernel and the time namespace: two with the same one have a common clock.
    A version is "" where there is no such package.
    """

    hostname: str
    boot_id: str
    clock: str
    python: str
    pytest_elastic: str
    torch: str
    has_sign: bool
    capabilities: dict[str, tuple[bool, str]]

    @classmethod
    def decode(cls, line: str) -> MachineFacts:
        """Return what an agent has printed; raises ValueError or TypeError for anything else."""
        return cls(**json.loads(line))


def facts_of_this_machine(sign: str) -> MachineFacts:
    """Find out, by trying; `sign` is a file that is there if the machine shares pytest's files."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot_id = file.read().strip()
    try:
        time_namespace = os.readlink("/proc/self/ns/time")
    except OSError:
        time_namespace = ""
    can = choose_cluster().capabilities
    return MachineFacts(
        hostname=socket.gethostname(),
        boot_id=boot_id,
        clock=f"{boot_id} {time_namespace}",
        python=platform.python_version(),
        pytest_elastic=_version("pytest-elastic"),
        torch=_version("torch"),
        has_sign=bool(sign) and os.path.exists(sign),
        capabilities={name: (can[name].available, can[name].reason) for name in FOUND_OUT_THERE},
    )


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
