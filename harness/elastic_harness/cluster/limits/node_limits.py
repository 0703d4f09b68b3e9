"""Whole nodes held still or kept short: by control groups, or by signals where there are none.

Processes are brought into a group when it is first needed, and not when they start: moving one
costs the kernel a grace period, and most nodes of most tests never need it.
"""

from __future__ import annotations

import os
import signal
from dataclasses import asdict

from elastic_harness.cluster import process_table
from elastic_harness.cluster.cluster import ClusterError
from elastic_harness.cluster.server.node_table import STEP_LIMIT_S, Node, NodeTable
from elastic_harness.conversation import Answer
from elastic_harness.future import Steps, Until
from pytest_elastic.loop import Loop

__all__ = ["NodeLimits"]


class NodeLimits:
    """Pause, resume and limit the nodes of a table."""

    def __init__(self, loop: Loop, nodes: NodeTable, *, is_isolated: bool) -> None:
        self._loop = loop
        self._nodes = nodes
        self._is_isolated = is_isolated

    def pause(self, name: str) -> Steps[Answer]:
        """Stop all processes of a node; answers when none of them runs any more."""
        node = self._nodes.find(name)
        if "freeze" not in self._nodes.hierarchies:
            return (yield from node.call("signal_all", {"signum": signal.SIGSTOP}))
        node.group.make("freeze")
        self._join(node)
        node.group.freeze(frozen=True)

        def is_still() -> bool:
            # There is nothing to wait on in version 1.
            if not node.group.is_frozen() and not node.is_dying:
                self._join(node)
            return node.is_dying or node.group.is_frozen()

        refusal = f"cannot pause node '{name}': its processes do not stand still"
        yield Until(is_still, STEP_LIMIT_S, refusal)
        if node.is_dying:
            raise ClusterError(refusal)
        return Answer()

    def resume(self, name: str) -> Steps[Answer]:
        """Let a node go on."""
        node = self._nodes.find(name)
        if "freeze" not in self._nodes.hierarchies:
            return (yield from node.call("signal_all", {"signum": signal.SIGCONT}))
        node.group.freeze(frozen=False)
        return Answer()

    def limit(self, name: str, of: str, most: float | None) -> Answer:
        """Limit what a node runs now and will run (None: no limit).

        Memory that processes have already stays charged where it was: the limit is on what they
        take from now on.
        """
        node = self._nodes.find(name)
        node.group.limit(of, most)
        self._join(node)
        return Answer()

    def read(self, name: str) -> Answer:
        """Say what the kernel has counted in a node's groups; zeros where it has none."""
        return Answer(fields=asdict(self._nodes.find(name).group.read()))

    def _join(self, node: Node) -> None:
        """Bring all processes of a node into its groups, and have later ones start there."""
        new_folders = [folder for folder in node.group.folders if folder not in node.joined]
        if new_folders:
            flags = os.O_WRONLY | os.O_CLOEXEC
            fds = [os.open(f"{folder}/cgroup.procs", flags) for folder in new_folders]
            # Orders to a node keep their sequence, so nothing is started outside after this.
            node.call("join_cgroups", {}, fds=fds)
            for fd in fds:
                os.close(fd)
            node.joined.update(new_folders)
        moved: set[int] = set()
        while new := [pid for pid in self._members(node) if pid not in moved]:
            for pid in new:
                node.group.move(pid)
                moved.add(pid)

    def _members(self, node: Node) -> list[int]:
        """List the processes of a node, its init excluded, as this process numbers them."""
        if self._is_isolated:
            rows = process_table.processes_in(node.pid_namespace)
        else:
            rows = process_table.descendants(node.pid)
        return [row.pid for row in rows if row.pid != node.pid and row.state != "Z"]
