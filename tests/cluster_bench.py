"""A cluster for tests: the operations of its interface, each waited for with a deadline."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from elastic_harness import leaks
from elastic_harness.cluster import process_table
from elastic_harness.cluster.choose import choose_cluster
from elastic_harness.cluster.cluster import (
    ClusterEvent,
    LiveCluster,
    NodeSpec,
    ServerLost,
    having,
)
from elastic_harness.cluster.facets import Disks, Limits, Names, Network, NetworkCounters, Sockets
from elastic_harness.cluster.process import ProcessHandle, ProcessInfo, ProcessSpec
from elastic_harness.future import gather, wait_for
from elastic_harness.network.link_model import LinkPolicy, Pair

from pytest_elastic.errors import UsageError
from pytest_elastic.loop import Loop

LIMIT_S = 60.0
ROOT = Path(__file__).resolve().parent.parent


# Those that are open in this process, for several tests: what they use may change in any of these.
OPEN: list[Bench] = []


class Bench:
    """A started cluster and the events it has reported."""

    def __init__(
        self,
        kind: str,
        folder: Path,
        *,
        preload: Sequence[str] = ("torch",),
        as_user: bool = False,
    ) -> None:
        self.loop = Loop()
        self.folder = folder
        self.events: list[ClusterEvent] = []
        self.cluster = self.make(kind, preload=preload, as_user=as_user)
        wait_for(self.loop, self.cluster.start(), within_s=120)
        OPEN.append(self)

    def make(self, kind: str, *, preload: Sequence[str], as_user: bool) -> LiveCluster:
        """Return the cluster, not started."""
        choice = choose_cluster(kind)
        choice = replace(choice, uses_user_namespace=True) if as_user else choice
        return choice.make(self.loop, on_event=self.events.append, preload=preload)

    def proc(self, pid: int) -> Path:
        """Return the folder in /proc of a process of the cluster."""
        return Path(f"/proc/{pid}")

    def kill(self, pid: int) -> None:
        """Kill a process of the cluster from outside."""
        os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        """End the server and all of its processes."""
        wait_for(self.loop, self.cluster.close(), within_s=LIMIT_S)
        self.loop.close()
        OPEN.remove(self)

    def reset(self, folder: Path) -> None:
        """Begin anew: no nodes, healthy links, no events, another folder."""
        wait_for(self.loop, self.cluster.reset(), within_s=LIMIT_S)
        self.events.clear()
        self.folder = folder

    def borrow(self, folder: Path) -> Iterator[Bench]:
        """Lend the cluster to one test, without nodes, and look afterwards for what it left."""
        self.reset(folder)
        before = leaks.snapshot(spared=self.spared)
        yield self
        self.reset(folder)
        assert leaks.leaks_since(before, within_s=20.0, spared=self.spared) == []

    @property
    def spared(self) -> leaks.Spared:
        """What the cluster uses now. Machines may have called again since the last look."""
        return leaks.Spared(pids=self.cluster.own_pids, fds=self.cluster.own_fds)

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Serve the loop until something holds, for at most `LIMIT_S`."""
        deadline = self.loop.now() + LIMIT_S
        while not condition():
            assert self.loop.now() < deadline, f"waited {LIMIT_S:g} s for {what}"
            self.loop.run_once(0.01)

    def start(self, *names: str, spec: Callable[[str, int], NodeSpec] | None = None) -> None:
        """Start nodes at once; "n3" gets index 3."""
        make = spec or self.spec
        starts = [self.cluster.start_node(make(name, int(name.lstrip("n")))) for name in names]
        wait_for(self.loop, gather(starts), within_s=LIMIT_S)

    def spec(self, name: str, index: int) -> NodeSpec:
        """Return a plain node that shares the test's folder."""
        return NodeSpec(name=name, index=index, shared=[str(self.folder)])

    def end(self, how: str, name: str) -> None:
        """Stop, crash or cut the power of a node."""
        operations = {
            "stop": self.cluster.stop_node,
            "crash": self.cluster.crash_node,
            "cut": self.cluster.power_cut,
        }
        wait_for(self.loop, operations[how](name), within_s=LIMIT_S)

    @property
    def network(self) -> Network:
        """The links of a cluster that has any."""
        return having(self.cluster.network, self.cluster.capabilities["network"])

    @property
    def names(self) -> Names:
        """The names of a cluster that has any."""
        return having(self.cluster.names, self.cluster.capabilities["names"])

    @property
    def disks(self) -> Disks:
        """The disks of a cluster that has any."""
        return having(self.cluster.disks, self.cluster.capabilities["disk_faults"])

    @property
    def limits(self) -> Limits:
        """What nodes may use."""
        assert self.cluster.limits is not None, "every cluster that runs programs has limits"
        return self.cluster.limits

    @property
    def sockets(self) -> Sockets:
        """Sockets in the networks of nodes that are on this machine."""
        assert self.cluster.sockets is not None, "the nodes are on this machine"
        return self.cluster.sockets

    def processes(self, node: str) -> tuple[ProcessInfo, ...]:
        """List what runs on a node."""
        return wait_for(self.loop, self.cluster.processes(node), within_s=LIMIT_S)

    def run(
        self, node: str, *argv: str, environ: Mapping[str, str] | None = None, **spec: str
    ) -> ProcessHandle:
        """Start a process on a node; its output goes to the test's folder."""
        process: ProcessHandle = wait_for(
            self.loop,
            self.cluster.spawn(node, self.process(*argv, environ=environ or {}, **spec)),
            within_s=LIMIT_S,
        )
        return process

    def process(self, *argv: str, environ: Mapping[str, str], **spec: str) -> ProcessSpec:
        """Return what to run: in the test's folder, with a path to this repository."""
        path = os.pathsep.join((str(ROOT), str(ROOT / "harness")))
        output = str(self.folder / "output")
        return ProcessSpec(
            argv=argv,
            environ={"PATH": os.environ["PATH"], "PYTHONPATH": path, **environ},
            stdout=output,
            stderr=output,
            **{"cwd": str(self.folder), **spec},
        )

    def python(self, node: str, code: str, *argv: str) -> ProcessHandle:
        """Start a few lines of Python on a node."""
        return self.run(node, sys.executable, "-S", "-c", code, *argv)

    def finish(self, process: ProcessHandle) -> int:
        """Wait for the end of a process."""
        self.until(lambda: process.exit_code is not None, f"process {process.pid} to end")
        assert process.exit_code is not None
        return process.exit_code

    def output(self, process: ProcessHandle) -> str:
        """Return all that was printed in the test's folder, once a process has ended well."""
        assert self.finish(process) == 0, self.printed()
        return self.printed()

    def printed(self) -> str:
        """Return what processes have printed so far."""
        path = self.folder / "output"
        return path.read_text() if path.exists() else ""

    def wait_for_file(self, name: str) -> None:
        """Wait until a process has made a file in the test's folder."""
        self.until((self.folder / name).exists, f"the file {name}")

    def open_socket(self, node: str) -> socket.socket:
        """Open a socket inside a node's network."""
        made: socket.socket = wait_for(self.loop, self.sockets.open(node), within_s=LIMIT_S)
        made.settimeout(LIMIT_S)
        return made

    def connection(self, client: str, server: str) -> tuple[socket.socket, socket.socket]:
        """Return both ends of a TCP connection between two nodes."""
        address = self.cluster.nodes[server].address
        with self.open_socket(server) as listener:
            listener.bind((address, 0))
            listener.listen()
            ours = self.open_socket(client)
            ours.connect(listener.getsockname())
            theirs, _ = listener.accept()
        theirs.settimeout(LIMIT_S)
        for end in (ours, theirs):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return ours, theirs

    def set_policy(self, pairs: Sequence[Pair], policy: LinkPolicy) -> None:
        """Put a policy in force."""
        wait_for(
            self.loop,
            self.network.lay(pairs, (("", policy),)),
            within_s=LIMIT_S,
        )

    def counters(self) -> NetworkCounters:
        """Read what the network has done."""
        return wait_for(self.loop, self.network.counters(), within_s=LIMIT_S)

    @property
    def switch_pid(self) -> int:
        """The process that is the switch: the server's child, which is the supervisor's."""
        own = self.cluster.own_pids
        parents = {pid: row.ppid for pid in own if (row := process_table.row_of(pid))}
        (found,) = (pid for pid, ppid in parents.items() if parents.get(ppid) in own)
        return found

    @property
    def is_lost(self) -> bool:
        """Tell whether the server has ended by itself."""
        return any(isinstance(event, ServerLost) for event in self.events)


def namespace_bench(folder: Path, *, preload: Sequence[str] = ()) -> Iterator[Bench]:
    """Yield a bench of nodes in namespaces, for a fixture; skip where there can be none."""
    try:
        choose_cluster("namespace")
    except UsageError as error:
        pytest.skip(error.message)
    made = Bench("namespace", folder, preload=preload)
    yield made
    made.close()
