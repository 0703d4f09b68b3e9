"""Nodes on machines: what an agent does when its link is cut, files are its own, clocks differ."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from elastic_harness.cluster import process_table
from elastic_harness.cluster.cluster import ClusterError, LiveCluster, ServerLost, having
from elastic_harness.cluster.facets import Connection, Visits
from elastic_harness.cluster.machines.choose import choose_machines
from elastic_harness.cluster.node.faketime import faketime_environ, find_libfaketime
from elastic_harness.cluster.process import ProcessHandle, ProcessRef
from elastic_harness.future import wait_for
from elastic_harness.network.link_model import DropReason, LinkPolicy

from tests.cluster_bench import LIMIT_S
from tests.integration.test_links import read_pcapng
from tests.machines import (
    NEEDS_MACHINES,
    NETWORK,
    MachinesBench,
    Network,
    wait_for_end,
)
from tests.plugin.test_ordinary_user import NOBODY, kind_for

pytestmark = NEEDS_MACHINES

# Most systems have this device open to all users; some have not.
TUN_FOR_ALL = "mount -t tmpfs none /dev/net; chmod 755 /dev/net; mknod -m 666 /dev/net/tun c 10 200"

# Says what time it is there, after it was asked to, as a probe would.
REPORTER = """
import json, os, socket, time
sock = socket.socket(socket.AF_UNIX)
sock.connect(os.environ["WHERE"])
while sock.recv(100):
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    sock.sendall(json.dumps({"at": now}).encode() + b"\\n")
"""

# Waits at a port, offers its stacks as a probe does, and ends when somebody connects.
SERVES = """
import faulthandler, os, signal, socket
os.dup2(os.memfd_create("elastic-stacks"), 9)
faulthandler.register(signal.SIGUSR1, file=9)
def serve():
    server.accept()
server = socket.create_server(("", 7001))
serve()
"""

# Says one thing and is killed.
BRIEF = """
import os, signal, socket
sock = socket.socket(socket.AF_UNIX)
sock.connect(os.environ["WHERE"])
sock.sendall(b"hello\\n")
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def network() -> Iterator[Network]:
    """Two machines, where nothing runs yet."""
    made = Network(2)
    yield made
    made.end()


@pytest.mark.parametrize(
    "cut_s", [5.0, *(pytest.param(cut_s, marks=pytest.mark.slow) for cut_s in (15.0, 60.0))]
)
def test_a_cut_of_the_link_is_survived(network: Network, tmp_path: Path, cut_s: float) -> None:
    """What runs goes on, what it prints and how it ends arrive when the link is whole again."""
    bench = MachinesBench(network, tmp_path)
    bench.start("n1", "n2")
    script = "echo before; read line < go; echo after; exit 3"
    process = bench.run("n1", "sh", "-c", f"mkfifo go; {script}")
    bench.until(lambda: "before" in bench.printed(), "the first line")
    network.cut(1)
    cut_at = bench.loop.now()
    (tmp_path / "go").write_text("now\n")
    while bench.loop.now() < cut_at + cut_s:
        bench.loop.run_once(0.1)
    assert process.exit_code is None
    assert not bench.is_lost
    network.heal(1)
    healed_at = bench.loop.now()
    assert bench.finish(process) == 3
    assert bench.loop.now() - healed_at < 5.0
    bench.close()
    assert network.is_clean()


def wait_for_listener(bench: MachinesBench, server: ProcessHandle) -> None:
    """Wait until this process, on n1, listens at port 7001."""
    there = ProcessRef(node="n1", pid=server.pid, start_time=server.start_time)
    listeners = having(bench.cluster.sockets, bench.cluster.capabilities["listeners"]).listeners
    bench.until(
        lambda: wait_for(bench.loop, listeners("n1", 7001), within_s=LIMIT_S) == (there,),
        "the server to listen",
    )


def send_and_receive(bench: MachinesBench) -> None:
    """Send a datagram from one node to the other."""
    address = (bench.cluster.nodes["n2"].address, 7000)
    sender, receiver = (
        wait_for(bench.loop, bench.sockets.open(node, datagram=True)) for node in ("n1", "n2")
    )
    with sender, receiver:
        receiver.bind(address)
        receiver.settimeout(LIMIT_S)
        sender.sendto(b"hello", address)
        assert receiver.recv(100) == b"hello"


# Sends 64 MB to who connects, and waits until all of it was read.
SENDS = """
import socket
server = socket.create_server(("", 7001))
peer, _ = server.accept()
peer.sendall(bytes(1 << 26))
peer.shutdown(socket.SHUT_WR)
peer.recv(1)
"""
# Reads all that comes from an address, and says how much, and what the longest segment was.
READS = """
import socket, sys
peer = socket.create_connection((sys.argv[1], 7001))
size = 0
while data := peer.recv(1 << 20):
    size += len(data)
print(size, peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG))
"""


@pytest.mark.parametrize(("by_datagrams", "longest"), [(False, 1448), (True, 1348)])
def test_trunks_carry_what_nodes_send(
    network: Network, tmp_path: Path, *, by_datagrams: bool, longest: int
) -> None:
    """By TCP and by UDP, where a packet of a node is one of the network's."""
    bench = MachinesBench(network, tmp_path, by_datagrams=by_datagrams)
    bench.start("n1", "n2")
    wait_for_listener(bench, bench.run("n1", sys.executable, "-S", "-c", SENDS))
    address = bench.cluster.nodes["n1"].address
    reader = bench.run("n2", sys.executable, "-S", "-c", READS, address)
    assert bench.finish(reader) == 0
    assert bench.printed().split() == [str(1 << 26), str(longest)]
    bench.close()
    assert network.is_clean()


@pytest.mark.parametrize("by_datagrams", [False, True])
def test_a_trunk_that_stalls_is_the_harnesss_own_doing(
    network: Network, tmp_path: Path, *, by_datagrams: bool
) -> None:
    """What is sent while no machine hears the other makes a run unknown; the next one is well."""
    bench = MachinesBench(network, tmp_path, by_datagrams=by_datagrams)
    bench.start("n1", "n2")
    send_and_receive(bench)
    assert bench.counters().own_drops == {}
    address = (bench.cluster.nodes["n2"].address, 7000)
    with wait_for(bench.loop, bench.sockets.open("n1", datagram=True)) as sender:
        network.cut(1)
        until = bench.loop.now() + 1.5
        while bench.loop.now() < until:
            sender.sendto(b"lost?", address)
            bench.loop.run_once(0.05)
        network.heal(1)
    assert bench.counters().own_drops["trunk"] >= 1
    bench.reset(tmp_path)
    bench.start("n1", "n2")
    send_and_receive(bench)
    assert bench.counters().own_drops == {}
    bench.close()
    assert network.is_clean()


def test_what_is_lacking_is_said_with_what_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A skipped scenario shows it: which machine does not share files, which cluster is another."""
    monkeypatch.chdir(tmp_path)
    network = Network(2, prepare=f"case $(hostname) in m2) mount -t tmpfs none {tmp_path};; esac")
    placement_of_agents = network.placement()
    try:
        capabilities = choose_machines(placement_of_agents, preload=()).capabilities
        placement_of_agents.dismiss()
        assert network.is_clean()
    finally:
        network.end()
    files, placement = capabilities.missing(["shared_files", "same_kernel", "placement"])
    there = network.machines[1].pid
    assert files.reason == f"{there} does not see {tmp_path}: call pytest in a shared folder"
    assert placement.reason == "only machines of a Ray have resources and labels"


def test_a_machine_that_the_others_cannot_reach_is_named(network: Network, tmp_path: Path) -> None:
    """Where machines reach pytest and not each other, nothing is left of the start."""
    network.machines[1].run("ip", "route", "add", "unreachable", f"{NETWORK}.1/32")
    with pytest.raises(ClusterError) as failed:
        MachinesBench(network, tmp_path)
    assert f"cannot connect to {NETWORK}.1:" in failed.value.message
    assert "--elastic-overlay=off" in str(failed.value)
    network.wait_until_clean()


def test_an_agent_whose_lease_has_passed_leaves_nothing(network: Network, tmp_path: Path) -> None:
    """It cannot be told that pytest is gone; what it started, it ends, and so is the cluster."""
    bench = MachinesBench(network, tmp_path, lease_s=6.0)
    bench.start("n1", "n2")
    bench.run("n1", "sleep", "1000")
    bench.run("n2", "sleep", "1000")
    network.cut(1)
    bench.until(lambda: bench.is_lost, "the machine to be lost")
    (lost,) = [event for event in bench.events if isinstance(event, ServerLost)]
    assert "nothing was heard of its agent" in lost.reason
    network.wait_until_clean()
    bench.close()


def test_why_an_agent_ends_is_told(network: Network, tmp_path: Path) -> None:
    """What it works with is killed: pytest need not wait, and guess, until it has ended."""
    bench = MachinesBench(network, tmp_path)
    bench.start("n1", "n2")
    fork_server = next(
        row.pid
        for row in network.machines[0].rows()
        if "fork_server" in " ".join(process_table.command_of(row.pid))
    )
    (supervisor,) = process_table.children_of(fork_server)
    (server,) = process_table.children_of(supervisor)
    os.kill(server, signal.SIGKILL)
    bench.until(lambda: bench.is_lost, "the machine to be lost")
    (lost,) = [event for event in bench.events if isinstance(event, ServerLost)]
    there = network.machines[0].pid
    assert lost.reason.startswith(f"the machine {there} was lost: its cluster server was lost: ")
    bench.close()
    network.wait_until_clean()


def test_a_machine_that_vanishes_is_named_and_the_others_are_cleared(tmp_path: Path) -> None:
    """It says nothing, as if its power were cut; what runs elsewhere ends with the cluster."""
    # With a folder for temporary files of its own, which goes with it.
    network = Network(2, prepare=f"mount -t tmpfs none {tempfile.gettempdir()}")
    bench = MachinesBench(network, tmp_path, lease_s=6.0)
    bench.start("n1", "n2")
    bench.run("n1", "sleep", "1000")
    bench.run("n2", "sleep", "1000")
    gone, other = network.machines
    # Cut off first: its kernel would say goodbye for what is killed.
    network.cut(1)
    gone.end()
    bench.until(lambda: bench.is_lost, "the machine to be lost")
    (lost,) = [event for event in bench.events if isinstance(event, ServerLost)]
    assert f"the machine {gone.pid} was lost: nothing was heard of its agent for" in lost.reason
    assert other.rows()
    bench.close()
    network.wait_until_clean()
    network.end()


class WhoseFirstAgentIsKilled(MachinesBench):
    """A cluster on machines, the first of whose agents is killed while it waits for its order."""

    def make(self, kind: str, *, preload: Sequence[str], as_user: bool) -> LiveCluster:
        made = super().make(kind, preload=preload, as_user=as_user)
        machine = self.network_of_machines.machines[0]
        machine.run("pkill", "-9", "-f", "machines.agent")
        wait_for_end(machine.rows, within_s=LIMIT_S)
        return made


def test_an_agent_that_ends_while_it_waits_is_started_anew(
    network: Network, tmp_path: Path
) -> None:
    """While tests are collected, agents may be lost."""
    bench = WhoseFirstAgentIsKilled(network, tmp_path)
    bench.start("n1", "n2")
    for node in ("n1", "n2"):
        assert bench.finish(bench.run(node, "true")) == 0
    bench.close()
    assert network.is_clean()


def test_an_agent_that_is_killed_leaves_nothing(network: Network, tmp_path: Path) -> None:
    """Its supervisor ends what it has started; pytest says which machine it was."""
    bench = MachinesBench(network, tmp_path)
    bench.start("n1", "n2")
    bench.run("n1", "sleep", "1000")
    network.machines[0].run("pkill", "-9", "-f", "machines.agent")
    bench.until(lambda: bench.is_lost, "the machine to be lost")
    (lost,) = [event for event in bench.events if isinstance(event, ServerLost)]
    assert f"the machine {network.machines[0].pid} was lost: its agent has ended" in lost.reason
    with pytest.raises(ClusterError):
        wait_for(bench.loop, bench.cluster.reset())
    bench.close()
    network.wait_until_clean()


def test_nodes_of_machines_are_looked_at_as_those_here_are(tmp_path: Path) -> None:
    """Who listens, where it stands, what passes, and what time it is: files are fetched."""
    network = Network(2, prepare=f"mount -t tmpfs none {tmp_path.parent}; mkdir {tmp_path}")
    bench = MachinesBench(network, tmp_path)
    cluster, loop = bench.cluster, bench.loop
    bench.start("n1", "n2")
    server = bench.run("n1", sys.executable, "-c", SERVES)
    there = ProcessRef(node="n1", pid=server.pid, start_time=server.start_time)
    assert cluster.sockets is not None

    def listeners(node: str) -> tuple[ProcessRef, ...]:
        assert cluster.sockets is not None
        return wait_for(loop, cluster.sockets.listeners(node, 7001), within_s=LIMIT_S)

    bench.until(lambda: listeners("n1") == (there,), "the server to listen")
    assert listeners("n2") == ()
    text, reason = wait_for(loop, cluster.stacks(there, fd=9, signum=signal.SIGUSR1))
    assert "in serve" in text, reason
    assert wait_for(loop, cluster.stacks(there, fd=9, signum=signal.SIGUSR2)) == (
        "",
        "its probe offers no stacks",
    )

    (tmp_path / "captures").mkdir()
    both = [("n1", "n2"), ("n2", "n1")]
    path = tmp_path / "captures" / "look.pcapng"
    files = wait_for(loop, bench.network.capture("look", both, str(path)), within_s=LIMIT_S)
    assert [Path(file).name for file in files] == ["look.1.pcapng", "look.2.pcapng"]
    address = cluster.nodes["n1"].address
    code = f"import socket; socket.create_connection(({address!r}, 7001)).recv(1)"
    assert bench.finish(bench.run("n2", sys.executable, "-c", code)) == 0
    bench.until(lambda: server.exit_code == 0, "the server to end")
    counted = wait_for(loop, bench.network.end_capture("look"), within_s=LIMIT_S)
    ways = [[each.link for each in read_pcapng(Path(file))] for file in files]
    assert [set(each) for each in ways] == [{"n1>n2"}, {"n2>n1"}]
    assert sum(map(len, ways)) == counted

    library, why = find_libfaketime()
    assert library is not None, why
    clock = having(cluster.clock, cluster.capabilities["clock_skew"])
    wait_for(loop, clock.set_offset("n2", f"{tmp_path}/clocks/n2", -3600.0), within_s=LIMIT_S)
    right = wait_for(loop, clock.time_of_day("n2"), within_s=LIMIT_S)
    environ = faketime_environ(library, f"{tmp_path}/clocks/n2")
    asks = bench.run("n2", sys.executable, "-c", "import time; print(time.time())", environ=environ)
    assert bench.finish(asks) == 0
    assert -3600.0 <= float(bench.printed()) - right < -3600.0 + LIMIT_S
    bench.close()
    assert network.machines[0].run("ls", str(tmp_path)).split() == ["output"]
    network.end()


# Reads four bytes of each of two connections; keeps the first and closes the second.
TAKES_TWO = """
import socket
server = socket.create_server(("", 7001))
first, _ = server.accept()
assert first.recv(4) == b"none"
first.sendall(b"?")
second, _ = server.accept()
assert second.recv(4) == b"none"
second.close()
assert first.recv(1) == b""
"""


def test_strangers_come_from_nodes_of_machines(network: Network, tmp_path: Path) -> None:
    """What they said is known to have arrived, and what became of each of them."""
    bench = MachinesBench(network, tmp_path)
    strangers = having(bench.cluster.strangers, bench.cluster.capabilities["node_sockets"])
    bench.start("n1", "n2")
    server = bench.run("n1", sys.executable, "-S", "-c", TAKES_TWO)
    wait_for_listener(bench, server)
    strangers.send("ours", "n2", ("n1", 7001), b"none", connections=1)
    bench.until(lambda: strangers.visits("ours").answered == 1, "an answer")
    strangers.send("ours", "n2", ("n1", 7001), b"none", connections=1)
    came = Visits(wanted=2, taken=2, closed=1, answered=1)
    bench.until(lambda: strangers.visits("ours") == came, "the second to be closed")
    strangers.send("refused", "n1", ("n2", 7002), b"", connections=1)
    bench.until(lambda: bool(strangers.visits("refused").refusal), "a refusal")
    assert strangers.visits("refused") == Visits(wanted=1, refusal="Connection refused")
    assert server.exit_code is None
    strangers.send_away("ours")
    bench.until(lambda: server.exit_code == 0, "the server to see that the first is gone")
    assert strangers.visits("ours") == Visits()
    bench.close()
    assert network.is_clean()


def test_agents_of_an_ordinary_user_have_networks_too() -> None:
    """In user namespaces of theirs, where a user may open the device for networks."""
    kind_for(NOBODY)
    network = Network(2, prepare=TUN_FOR_ALL)
    with tempfile.TemporaryDirectory(prefix="elastic-machines-", dir="/var/tmp") as name:
        folder = Path(name)
        folder.chmod(0o777)
        bench = MachinesBench(network, folder, user=NOBODY)
        bench.start("n1", "n2")
        assert bench.output(bench.run("n1", "id", "-u")) == f"{NOBODY}\n"
        ours, theirs = bench.connection("n1", "n2")
        with ours, theirs:
            ours.send(b"there")
            assert theirs.recv(10) == b"there"
            bench.set_policy([("n1", "n2")], LinkPolicy(up=False))
            ours.send(b"not there")
            bench.until(
                lambda: bench.counters().links["n1", "n2"].dropped.keys() == {DropReason.DOWN},
                "a packet to be dropped",
            )
        bench.close()
    network.wait_until_clean()
    network.end()


def test_a_process_that_ends_at_once_is_told_of(network: Network, tmp_path: Path) -> None:
    """What it said arrives first, then its end; also if it had ended before anybody asked."""
    bench = MachinesBench(network, tmp_path)
    heard: list[object] = []

    def on_connection(connection: Connection) -> None:
        connection.open(heard.append, lambda: heard.append("closed"))
        connections.append(connection)

    connections: list[Connection] = []
    stop = bench.cluster.reporters.listen(str(tmp_path / "s"), on_connection)
    bench.start("n1")
    process = bench.run("n1", sys.executable, "-c", BRIEF, environ={"WHERE": f"{tmp_path}/s"})
    assert bench.finish(process) == -signal.SIGKILL
    bench.until(lambda: bool(connections) and connections[0].has_ended(), "its end")
    assert heard == [b"hello\n", "closed"]
    connections[0].watch_end(lambda: heard.append("ended"))
    bench.until(lambda: heard[-1] == "ended", "its end to be told to a late reader")
    stop()
    bench.close()


def test_times_of_another_clock_are_translated(tmp_path: Path) -> None:
    """A machine whose clock is 5 000 s ahead says when something was, within the bound."""
    more = ("--time", "--boottime=5000", "--monotonic=5000")
    network = Network(1, more=more)
    bench = MachinesBench(network, tmp_path)
    assert not bench.cluster.capabilities.has("common_clock")
    assert bench.cluster.capabilities.has("same_kernel")
    heard: list[bytes] = []
    connections: list[Connection] = []

    def on_connection(connection: Connection) -> None:
        connections.append(connection)
        connection.open(heard.append, lambda: None)

    stop = bench.cluster.reporters.listen(str(tmp_path / "s"), on_connection)
    bench.start("n1")
    process = bench.run("n1", sys.executable, "-c", REPORTER, environ={"WHERE": f"{tmp_path}/s"})
    bench.until(lambda: bool(connections), "the reporter to connect")
    (connection,) = connections
    assert connection.pid == process.pid
    asked_at = bench.loop.now()
    connection.send(b"now")
    bench.until(lambda: bool(heard), "an answer")
    answered_at = bench.loop.now()
    at = json.loads(heard[0])["at"] + connection.clock_offset_s
    error_s = bench.cluster.clock_errors["n1"]
    assert asked_at - error_s <= at <= answered_at + error_s
    ended: list[str] = []
    connection.watch_end(lambda: ended.append("ended"))
    bench.end("crash", "n1")
    bench.until(lambda: bool(ended), "the end of the reporter")
    assert connection.has_ended()
    assert 0 < error_s < 0.1
    stop()
    bench.close()
    network.end()
