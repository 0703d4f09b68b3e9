"""Stand-ins for machines: network, pid, mount and uts namespaces of this one, on a bridge.

The bridge lies in a network namespace of its own, where pytest listens; the network of the host is
not touched. When a machine's first process is killed, the kernel removes all of it.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import pytest
from elastic_harness.cluster import process_table
from elastic_harness.cluster.cluster import LiveCluster
from elastic_harness.cluster.facets import Sockets
from elastic_harness.cluster.machines.choose import choose_machines
from elastic_harness.cluster.machines.cluster import MachinesCluster
from elastic_harness.cluster.machines.machine import LEASE_S
from elastic_harness.cluster.machines.placement import CallBack, CommandPlacement
from elastic_harness.cluster.machines.travel import code_roots
from elastic_harness.cluster.process import PIDS_OF_A_MACHINE, ProcessRef
from elastic_harness.future import Future, settled

from tests.cluster_bench import Bench
from tests.plugin.place import as_user

__all__ = [
    "NEEDS_MACHINES",
    "Machine",
    "MachinesBench",
    "NamespacePlacement",
    "Network",
    "wait_for_end",
]

T = TypeVar("T")
NEEDS_MACHINES = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None or shutil.which("nsenter") is None,
    reason="only root can make the namespaces that stand for machines",
)
NETWORK = "10.99.0"
HUB = f"{NETWORK}.254"
CLONE_NEWNET = 0x40000000
# As the first process of a machine: the kernel reaps the children of one that ignores SIGCHLD. It
# ends with its standard input, whose other end pytest holds.
STAY = """
import signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
print("ready", flush=True)
sys.stdin.read()
"""


def without_our_code() -> str:
    """Return a command that hides our packages on a machine, and what makes them known there.

    Its /var/tmp is empty then, but for this checkout, if that lies there.
    """
    names = ("elastic_harness", "pytest_elastic")
    found = [f"{root}/{name}" for root in code_roots() for name in names]
    found += glob.glob(f"{sysconfig.get_path('purelib')}/*pytest_elastic*")
    hide = [
        f"mount -t tmpfs none {path}" if os.path.isdir(path) else f"mount --bind /dev/null {path}"
        for path in dict.fromkeys(found)
        if os.path.exists(path)
    ]
    empty = ["mount -t tmpfs none /var/tmp"]
    ours = Path(__file__).parts
    if ours[:3] == ("/", "var", "tmp"):
        kept = "/".join(("", *ours[1:4]))
        empty = [f"mount --bind {kept} /mnt", *empty, f"mkdir {kept}", f"mount --bind /mnt {kept}"]
    return "; ".join((*empty, *hide))


class Machine:
    """A machine that does nothing yet; `pid` is its first process, in our numbers."""

    def __init__(self, name: str, *, prepare: str = "true", more: Sequence[str] = ()) -> None:
        self.name = name
        stay = f"exec {os.path.realpath(sys.executable)} -ISc '{STAY}'"
        script = f"hostname {name}; ip link set lo up; {prepare}; {stay}"
        namespaces = ("--net", "--uts", "--pid", "--mount", "--mount-proc", *more)
        self._unshare = subprocess.Popen(
            ["unshare", "--fork", "--kill-child", *namespaces, "sh", "-ec", script],
            stdout=subprocess.PIPE,
            stdin=subprocess.PIPE,
        )
        assert self._unshare.stdout is not None
        if self._unshare.stdout.readline() != b"ready\n":
            self._unshare.kill()
            self._unshare.communicate()
            pytest.fail(f"machine {name} could not be made: see what was printed")
        (self.pid,) = process_table.children_of(self._unshare.pid)

    def enter(self, *command: str) -> list[str]:
        """Return a command as it is run on the machine."""
        return ["nsenter", f"--target={self.pid}", "-m", "-u", "-n", "-p", "-T", "--", *command]

    def run(self, *command: str) -> str:
        """Run a command there, and return what it prints."""
        return subprocess.run(
            self.enter(*command), check=True, capture_output=True, text=True, timeout=60
        ).stdout

    def rows(self) -> list[process_table.ProcessRow]:
        """Return what runs there beside its first process, also in pid namespaces of its own."""
        if self._unshare.poll() is not None:
            return []
        found = process_table.processes_in(os.stat(f"/proc/{self.pid}/ns/pid").st_ino)
        below = [row for each in found for row in process_table.descendants(each.pid)]
        rows = {row.pid: row for row in (*found, *below)}
        return [row for row in rows.values() if row.pid != self.pid and row.is_alive]

    def end(self) -> None:
        """End all of it, and wait: a first process has ended when all others of it have."""
        if self._unshare.poll() is None:
            first = os.pidfd_open(self.pid)
            self._unshare.send_signal(signal.SIGKILL)
            select.select([first], [], [], 30.0)
            os.close(first)
        self._unshare.communicate()


class Network:
    """Some machines, 10.99.0.1 and so on, and the place where pytest is, 10.99.0.254."""

    def __init__(self, count: int, *, prepare: str = "true", more: Sequence[str] = ()) -> None:
        with contextlib.ExitStack() as made:
            self._make(count, made, prepare, more)
            self._made = made.pop_all()

    def _make(
        self, count: int, made: contextlib.ExitStack, prepare: str, more: Sequence[str]
    ) -> None:
        # What is cut off is not answered where to find it, by the port that was the bridge's.
        self.hub = Machine("hub", prepare="echo 1 > /proc/sys/net/ipv4/conf/all/arp_ignore")
        made.callback(self.hub.end)
        # With an address of its own: it would take one of a machine's port, which goes when that is
        # cut, and the port would go on to take packets for it.
        own = ("address", "02:00:00:00:00:fe")
        self._in_hub("ip", "link", "add", "br0", *own, "type", "bridge")
        self._in_hub("ip", "address", "add", f"{HUB}/24", "dev", "br0")
        self._in_hub("ip", "link", "set", "br0", "up")
        names = {f"m{number}": f"{NETWORK}.{number}" for number in range(1, count + 1)}
        # Each finds the others, and itself, by name. The file stays for as long as the machines: no
        # node could mount anything over one that is removed.
        fd, path = tempfile.mkstemp(prefix="machines-")
        made.callback(os.unlink, path)
        with open(fd, "w", encoding="ascii") as hosts:
            hosts.write("127.0.0.1 localhost\n")
            hosts.writelines(f"{address} {name}\n" for name, address in names.items())
        all_prepare = f"mount --bind {path} /etc/hosts; {prepare}"
        self.machines: list[Machine] = []
        for number, name in enumerate(names, start=1):
            machine = Machine(name, prepare=all_prepare, more=more)
            made.callback(machine.end)
            self.machines.append(machine)
            port = f"v{number}"
            there = ("peer", "name", "eth0", "netns", str(machine.pid))
            self._in_hub("ip", "link", "add", port, "type", "veth", *there)
            self._in_hub("ip", "link", "set", port, "master", "br0", "up")
            inside = f"--target={machine.pid}"
            address = f"{NETWORK}.{number}/24"
            _run("nsenter", inside, "-n", "ip", "address", "add", address, "dev", "eth0")
            _run("nsenter", inside, "-n", "ip", "link", "set", "eth0", "up")

    def _in_hub(self, *command: str) -> None:
        _run("nsenter", f"--target={self.hub.pid}", "-n", *command)

    def cut(self, number: int) -> None:
        """Cut a machine off, silently."""
        self._in_hub("ip", "link", "set", f"v{number}", "nomaster")

    def heal(self, number: int) -> None:
        """Connect it again."""
        self._in_hub("ip", "link", "set", f"v{number}", "master", "br0")

    def part(self, *, is_parted: bool = True) -> None:
        """Let machines reach the hub, and each other only if they are not parted."""
        for number in range(1, len(self.machines) + 1):
            isolated = ("bridge_slave", "isolated", "on" if is_parted else "off")
            self._in_hub("ip", "link", "set", f"v{number}", "type", *isolated)

    def is_clean(self) -> bool:
        """Tell whether nothing runs on any machine."""
        return not self.rows()

    def rows(self, *, but: str = "") -> list[process_table.ProcessRow]:
        """Return what runs on the machines, but for commands with this word in them."""
        rows = [row for machine in self.machines for row in machine.rows()]
        commands = [(row, " ".join(process_table.command_of(row.pid))) for row in rows]
        return [row for row, command in commands if not but or but not in command]

    def wait_until_clean(self, *, but: str = "", within_s: float = 30.0) -> None:
        """Wait until nothing runs on any machine, but for commands with this word in them."""
        wait_for_end(lambda: self.rows(but=but), within_s=within_s)

    def end(self) -> None:
        """End all machines."""
        self._made.close()

    def placement(self, *, user: int = 0) -> NamespacePlacement:
        """Return a placement on all machines, of the agents of a user."""
        return NamespacePlacement(self, user)


class NamespacePlacement(CommandPlacement):
    """Starts agents by nsenter; pytest listens where the bridge is."""

    def __init__(self, network: Network, user: int = 0) -> None:
        self._network = network
        enter = ["nsenter", "--target=$machine", "-m", "-u", "-n", "-p", "-T", "--wd=/", "--"]
        be_user = as_user(user, []) if user else []
        super().__init__(
            "command",
            [str(machine.pid) for machine in network.machines],
            [*enter, *be_user, "$agent"],
            call_back=CallBack(host=HUB),
            keeps_agents=True,
        )

    def listen(self) -> socket.socket:
        return in_network_of(Path(f"/proc/{self._network.hub.pid}"), super().listen)


class NodeSockets:
    """`Sockets` of nodes whose machines are namespaces of this one."""

    def __init__(self, bench: MachinesBench) -> None:
        self._bench = bench

    @property
    def gateway_address(self) -> str:
        raise AssertionError("a test that looks for the gateway asks the cluster itself")

    def open(self, node: str, *, datagram: bool = False) -> Future[socket.socket]:
        kind = socket.SOCK_DGRAM if datagram else socket.SOCK_STREAM
        init = self._bench.proc(self._bench.cluster.nodes[node].pid)
        return settled(in_network_of(init, lambda: socket.socket(type=kind)))

    def listeners(self, node: str, port: int) -> Future[tuple[ProcessRef, ...]]:
        raise AssertionError("no test looks for who listens on a machine")


class MachinesBench(Bench):
    """A cluster on machines; `nodes` are "namespace" or "process"."""

    def __init__(
        self,
        network: Network,
        folder: Path,
        *,
        lease_s: float = LEASE_S,
        nodes: str = "namespace",
        user: int = 0,
        copy: str = "",
        by_datagrams: bool = False,
    ) -> None:
        self.network_of_machines = network
        self._user, self._copy = user, copy
        self._lease_s, self._by_datagrams = lease_s, by_datagrams
        super().__init__(nodes, folder, preload=())

    @property
    def sockets(self) -> Sockets:
        return NodeSockets(self)

    def make(self, kind: str, *, preload: Sequence[str], as_user: bool) -> LiveCluster:
        placement = self.network_of_machines.placement(user=self._user)
        overlay = "auto" if kind == "namespace" else "off"
        choice = choose_machines(placement, preload=preload, overlay=overlay, copy=self._copy)
        assert choice.capabilities.has("network") == (kind == "namespace"), choice.reason
        return MachinesCluster(
            self.loop,
            placement,
            on_event=self.events.append,
            capabilities=choice.capabilities,
            preload=preload,
            lease_s=self._lease_s,
            copy=choice.copy,
            by_datagrams=self._by_datagrams,
        )

    def proc(self, pid: int) -> Path:
        """Return the folder in /proc of a process of the cluster, as its machine has it."""
        number, local = divmod(pid, PIDS_OF_A_MACHINE)
        return Path(f"/proc/{self.network_of_machines.machines[number - 1].pid}/root/proc/{local}")

    def kill(self, pid: int) -> None:
        number, local = divmod(pid, PIDS_OF_A_MACHINE)
        self.network_of_machines.machines[number - 1].run("kill", "-9", str(local))


def wait_for_end(find: Callable[[], list[process_table.ProcessRow]], within_s: float) -> None:
    """Wait until none of these processes is found any more."""
    deadline = time.monotonic() + within_s
    while rows := find():
        left_s = deadline - time.monotonic()
        assert left_s > 0, [process_table.command_of(row.pid) for row in rows]
        try:
            pidfd = os.pidfd_open(rows[0].pid)
        except ProcessLookupError:
            continue
        select.select([pidfd], [], [], left_s)
        os.close(pidfd)


def in_network_of(proc: Path, make: Callable[[], T]) -> T:
    """Do something in the network of a process, by its folder: a thread of its own enters it."""
    made: list[T] = []

    def enter() -> None:
        with open(proc / "ns" / "net", "rb") as namespace:
            assert ctypes.CDLL(None).setns(namespace.fileno(), CLONE_NEWNET) == 0
        made.append(make())

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    return made[0]


def _run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=60)
