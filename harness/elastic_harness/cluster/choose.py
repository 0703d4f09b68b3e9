"""Which kind of cluster this machine can have, found out by trying, once in a session."""

from __future__ import annotations

import functools
import glob
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from elastic_harness.cluster.client import ClusterClient, NamespaceCluster, ProcessCluster
from elastic_harness.cluster.cluster import (
    Capabilities,
    ClusterEvent,
    LiveCluster,
)
from elastic_harness.cluster.node.faketime import find_libfaketime
from pytest_elastic.config import DEFAULT_PRELOAD
from pytest_elastic.errors import UsageError
from pytest_elastic.loop import Loop
from pytest_elastic.own_proc import check_own_proc

__all__ = ["Choice", "ClusterChoice", "choose_cluster", "find_cuda_devices"]

# It takes 0.1 s; what is left is for a machine that is overloaded many times over.
_DRY_RUN_LIMIT_S = 30.0
_WITH_NAMESPACES = (
    "network",
    "names",
    "private_disk",
    "private_pids",
)
_ON_ONE_MACHINE = (
    "gateway",
    "listeners",
    "node_sockets",
    "common_clock",
    "shared_files",
    "same_kernel",
)


class ClusterChoice(Protocol):
    """A cluster that can be had: what it can do, and a sentence on why it was chosen.

    If something waits for `make`, a method `dismiss` ends it where no cluster is made.
    """

    @property
    def kind(self) -> str:
        """What `--elastic-cluster` calls this kind."""

    @property
    def capabilities(self) -> Capabilities:
        """What it can do here, and why not more."""

    @property
    def reason(self) -> str:
        """Why it was chosen."""

    def make(
        self,
        loop: Loop,
        *,
        on_event: Callable[[ClusterEvent], None],
        preload: Sequence[str] = ...,
    ) -> LiveCluster:
        """Return a cluster of this kind; nothing is started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A kind of cluster, what it can do here, and a sentence on why it was chosen."""

    cluster: type[ClusterClient]
    capabilities: Capabilities
    reason: str
    uses_user_namespace: bool = False

    @property
    def kind(self) -> str:
        """What `--elastic-cluster` calls this kind."""
        return self.cluster.kind

    def make(
        self,
        loop: Loop,
        *,
        on_event: Callable[[ClusterEvent], None],
        preload: Sequence[str] = DEFAULT_PRELOAD,
        mtu: int | None = None,
    ) -> ClusterClient:
        """Return a cluster of this kind; nothing is started.

        With `mtu` its nodes send no more bytes at a time, and no packets that others cut up.
        """
        return self.cluster(
            loop,
            on_event=on_event,
            capabilities=self.capabilities,
            uses_user_namespace=self.uses_user_namespace,
            preload=preload,
            mtu=mtu,
        )


def choose_cluster(requested: str = "auto") -> Choice:
    """Return the best cluster of the requested kind: "auto", "namespace" or "process".

    Raises UsageError for another word, for "namespace" where it cannot be had, and where /proc is
    not that of this process.
    """
    if requested not in {"auto", "namespace", "process"}:
        raise UsageError(
            f"cannot make a cluster of kind {requested!r}",
            hint="auto, namespace and process are known",
        )
    check_own_proc()
    failures = _dry_run()
    refusal = failures.get("namespaces")
    as_user = failures.get("user_namespaces")
    if requested == "process":
        return _plain_processes(failures, "it was asked for", "plain processes share the host's")
    if refusal is None or as_user is None:
        reason = "nodes are made by root"
        if refusal is not None:
            reason = f"nodes are made in a user namespace, because {refusal}"
        return Choice(
            cluster=NamespaceCluster,
            capabilities=_capabilities(failures, ""),
            reason=reason,
            uses_user_namespace=refusal is not None,
        )
    lacking = refusal if refusal == as_user else f"{refusal}; in a user namespace: {as_user}"
    if requested == "namespace":
        raise UsageError(
            f"cannot make nodes with namespaces of their own: {lacking}",
            hint="run as root, or use the process cluster, which cannot break links",
        )
    return _plain_processes(
        failures, f"namespaces cannot be had ({lacking})", f"no namespaces: {lacking}"
    )


def _plain_processes(failures: Mapping[str, str], why: str, lacking: str) -> Choice:
    return Choice(
        cluster=ProcessCluster,
        capabilities=_capabilities(failures, lacking),
        reason=f"nodes are plain processes, because {why}",
    )


def _capabilities(failures: Mapping[str, str], lacking: str) -> Capabilities:
    """Return what was found; `lacking` says why nothing that needs namespaces can be done."""
    library, why = find_libfaketime()
    no_disk = lacking or failures.get("disk_faults")
    freezer = "a control group" if "freeze" not in failures else "signals to every process"
    limits = {part: failures.get(part) for part in ("cpu", "memory", "process")}
    return Capabilities.of(
        {
            **dict.fromkeys(_ON_ONE_MACHINE, (True, "all nodes are on this machine")),
            **dict.fromkeys(
                _WITH_NAMESPACES, (not lacking, lacking or "a dry run made such a node")
            ),
            "placement": (False, "only machines of a Ray have resources and labels"),
            "disk_faults": (not no_disk, no_disk or "a dry run made such a disk"),
            "clock_skew": (library is not None, why),
            "cuda": find_cuda_devices(),
            "pause": (True, f"by {freezer}"),
            **{
                f"{part}_limit": (failure is None, failure or "by a control group")
                for part, failure in limits.items()
            },
        }
    )


@functools.cache
def _dry_run() -> Mapping[str, str]:
    """Try everything in a child, and return why each part failed."""
    here = os.path.dirname(os.path.abspath(__file__))
    roots = [os.path.dirname(os.path.dirname(here)), *filter(None, sys.path)]
    program = (
        f"import sys; sys.path += {roots!r}\n"
        "from elastic_harness.cluster.dry_run import main; main()"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", program],
            capture_output=True,
            text=True,
            check=False,
            timeout=_DRY_RUN_LIMIT_S,
        )
        failures: dict[str, str] = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        why = f"the dry run failed: {error}"
        parts = ("namespaces", "user_namespaces", "freeze", "cpu", "memory", "process")
        return dict.fromkeys((*parts, "disk_faults"), why)
    return failures


def find_cuda_devices(folder: str = "/dev") -> tuple[bool, str]:
    """Tell whether there is a device that CUDA may use, and a sentence about that.

    By what the driver has put into `folder`, which nodes share. Whether the torch of a job was
    built for CUDA is known to its workers only.
    """
    found = sorted(glob.glob(f"{folder}/nvidia[0-9]*"))
    if found:
        return True, f"by {', '.join(found)}; the job's torch must have been built for CUDA"
    return False, f"there is no NVIDIA device ({folder}/nvidia0)"
