"""Whether a cluster that several runs share is as it was when it was new, seen from outside of it.

A server's own answer to `reset` says that its nodes, devices and links are gone. This asks the
kernel and the file system instead, so that a server that is wrong about itself is found out as
well.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from elastic_harness.cluster import process_table
from elastic_harness.cluster.client import ClusterClient
from elastic_harness.cluster.limits import cgroups
from elastic_harness.cluster.server.leftovers import temporary_folder

__all__ = ["what_is_left"]


def what_is_left(cluster: ClusterClient) -> list[str]:
    """Say what a cluster without a run has and should not have; empty when it is clean.

    Processes beside those that serve it, nodes, control groups of nodes with their limits, folders
    of runs, and files on nodes' disks where those lie in the host's file system.
    """
    return [*_nodes(cluster), *_processes(cluster), *_groups(cluster), *_folders(cluster)]


def _nodes(cluster: ClusterClient) -> Iterator[str]:
    for name in cluster.nodes:
        yield f"node {name} runs"


def _processes(cluster: ClusterClient) -> Iterator[str]:
    own = cluster.own_pids
    for pid in sorted(own):
        if process_table.row_of(pid) is None:
            yield f"process {pid}, which serves it, is gone"
    below = {row.pid: row for pid in own for row in process_table.descendants(pid)}
    for pid, row in sorted(below.items()):
        if pid not in own:
            command = " ".join(process_table.command_of(pid))
            yield f"process {pid} (state {row.state}) is left: {command:.100}"


def _groups(cluster: ClusterClient) -> Iterator[str]:
    for hierarchy in set(cgroups.find_hierarchies().values()):
        with contextlib.suppress(OSError):
            for name in os.listdir(hierarchy.folder):
                if cgroups.owner_of(name) not in cluster.own_pids:
                    continue
                for group in os.listdir(f"{hierarchy.folder}/{name}"):
                    if os.path.isdir(f"{hierarchy.folder}/{name}/{group}"):
                        yield f"control group {name}/{group} is left"


def _folders(cluster: ClusterClient) -> Iterator[str]:
    folders = {cluster.scratch: "run-", f"{cluster.scratch}/disks": ""}
    for folder, prefix in (*folders.items(), (temporary_folder(cluster.scratch), "")):
        with contextlib.suppress(FileNotFoundError):
            for name in sorted(os.listdir(folder)):
                if name.startswith(prefix):
                    yield f"{folder}/{name} is left"
