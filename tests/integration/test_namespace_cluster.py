"""A cluster of namespaces: what nodes see of each other, and what happens when links break.

On this machine, and on two of them: behind a trunk everything is as it is here.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from elastic_harness.cluster.cluster import GATEWAY, ClusterError, NodeSpec
from elastic_harness.future import wait_for
from elastic_harness.network import partitions
from elastic_harness.network.link_model import HEALTHY, DropReason, LinkMode, LinkPolicy

from tests.cluster_bench import Bench, namespace_bench
from tests.machines import MachinesBench, Network

CUT = LinkPolicy(up=False)
# Long against anything that happens on a healthy link here (0.1 ms), short against a test.
SILENCE_S = 0.3


HERE_ONLY = pytest.mark.parametrize("cluster_bench", ["here"], indirect=True)


@pytest.fixture(scope="module", params=["here", "machines"])
def cluster_bench(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bench]:
    """One server, with torch, for all tests of this file; then one on each of two machines."""
    folder = tmp_path_factory.mktemp("cluster")
    if request.param == "here":
        yield from namespace_bench(folder, preload=("torch",))
        return
    if os.geteuid() != 0:
        pytest.skip("only root can make the namespaces that stand for machines")
    network = Network(2)
    made = MachinesBench(network, folder)
    yield made
    made.close()
    assert network.is_clean()
    network.end()


@pytest.fixture
def bench(cluster_bench: Bench, tmp_path: Path) -> Iterator[Bench]:
    """Lend the server, without nodes, and look for what the test left."""
    yield from cluster_bench.borrow(tmp_path)


def hears(sock: socket.socket, within_s: float = SILENCE_S) -> bool:
    """Tell whether anything arrives: data, an end or a reset."""
    ready, _, _ = select.select([sock], [], [], within_s)
    return bool(ready)


@HERE_ONLY
def test_the_switch_is_served_before_the_nodes(bench: Bench) -> None:
    """By the kernel's scheduler, where it lets us: what runs in nodes is as everybody else."""
    bench.start("n1")
    # A user without permission keeps its niceness.
    may = subprocess.run(["nice", "-n", "-10", "nice"], capture_output=True, check=True).stdout
    niceness = {os.getpriority(os.PRIO_PROCESS, pid) for pid in bench.cluster.own_pids}
    assert int(may) in niceness
    assert int(bench.output(bench.run("n1", "nice"))) == os.getpriority(os.PRIO_PROCESS, 0)


def what_is_mounted(line: str) -> str:
    """Return of a line of mountinfo what is the same in a copy: root, place, kind and source."""
    before, _, after = line.partition(" - ")
    return " ".join([*before.split()[3:5], *after.split()[:2]])


# --- what a node is -------------------------------------------------------------------------------


@HERE_ONLY
def test_all_that_is_mounted_for_a_node_is_known_as_ours(bench: Bench) -> None:
    """And nothing else that is mounted there: a leak check would find what had got out."""
    bench.start("n1")
    code = (
        "from elastic_harness.leaks import snapshot; print(open('/proc/self/mountinfo').read()); "
        "print('\\n'.join(snapshot().things['mount']))"
    )
    text, _, ours = bench.output(bench.python("n1", code)).partition("\n\n")
    # A node's mounts are a copy of the host's and its own ones, some of which look alike.
    there = {line.split()[0]: what_is_mounted(line) for line in text.splitlines()}
    host = map(what_is_mounted, Path("/proc/self/mountinfo").read_text().splitlines())
    # Another test's disk that hangs is named as a leak of ours would be, and the host may have lost
    # it by now.
    there = {number: each for number, each in there.items() if not each.endswith(" fuse hangs")}
    found = Counter(there[each] for each in ours.split() if each in there)
    assert Counter(there.values()) - Counter(host) == found


def test_a_node_has_its_own_name_pids_devices_and_disks(bench: Bench) -> None:
    """Host name, process numbers, network devices and /tmp are a machine's of its own."""
    bench.start("n1", "n2")
    script = "hostname; echo $$; ls /sys/class/net; ls -A /dev/shm; touch /tmp/mine; ls -A /tmp"
    assert bench.output(bench.run("n2", "sh", "-c", script)).split()[:4] == [
        "n2",
        "2000" if os.path.exists("/proc/sys/kernel/ns_last_pid") else "2",
        "eth0",
        "lo",
    ]
    assert bench.finish(bench.run("n1", "test", "-e", "/tmp/mine")) == 1
    assert not os.path.exists("/tmp/mine")


def test_nodes_find_each_other_by_name_those_started_later_included(bench: Bench) -> None:
    """Names resolve to the nodes' addresses, forwards and back, without a name server."""
    bench.start("n1")
    bench.start("n2")
    code = (
        "import socket; print(socket.gethostbyname('n2'), socket.gethostbyaddr('10.77.0.2')[0],"
        " socket.getnameinfo(('::ffff:10.77.0.2', 1), 0)[0], socket.gethostname())"
    )
    assert bench.output(bench.python("n1", code)).split() == ["10.77.0.2", "n2", "n2", "n1"]


def test_what_is_shared_is_shared_even_below_a_private_directory(bench: Bench) -> None:
    """The run directory is the same on every node and outside; the rest of /tmp is not."""
    shared = bench.folder / "deep" / "run"
    shared.mkdir(parents=True)
    folders = [str(shared), str(bench.folder)]
    bench.start("n1", spec=lambda name, index: NodeSpec(name=name, index=index, shared=folders))
    assert bench.finish(bench.run("n1", "sh", "-c", f"echo seen > {shared}/file")) == 0
    assert (shared / "file").read_text() == "seen\n"


def test_what_is_read_only_can_be_read_and_not_written(bench: Bench) -> None:
    """For root, too, and on that node only; a path that is not there is left alone."""
    (kept := bench.folder / "kept").mkdir()
    (kept / "file").write_text("old\n")
    locked = [str(kept), str(bench.folder / "nowhere")]
    folders = [str(bench.folder)]
    bench.start(
        "n1",
        spec=lambda name, index: NodeSpec(name=name, index=index, shared=folders, read_only=locked),
    )
    bench.start("n2", spec=lambda name, index: NodeSpec(name=name, index=index, shared=folders))
    change = f"cat {kept}/file; echo new > {kept}/file"
    assert bench.finish(bench.run("n1", "sh", "-c", change)) != 0
    assert "Read-only file system" in bench.printed()
    assert (kept / "file").read_text() == "old\n"
    assert bench.finish(bench.run("n2", "sh", "-c", change)) == 0
    assert (kept / "file").read_text() == "new\n"


def test_three_nodes_form_a_gloo_group_by_name_without_warnings(bench: Bench) -> None:
    """An unmodified group of 3 x 2 workers adds up its ranks over the switch; nothing is said."""
    bench.start("n1", "n2", "n3")
    environ = {"WORLD_SIZE": "6", "MASTER_ADDR": "n1", "MASTER_PORT": "29500"}
    workers = [
        bench.run(
            f"n{rank // 2 + 1}",
            "worker",
            str(bench.folder),
            environ={**environ, "RANK": str(rank)},
            preloaded_entry="tests.integration.gloo_ring:main",
        )
        for rank in range(6)
    ]
    assert [bench.finish(worker) for worker in workers] == [0] * 6, bench.printed()
    results = [(bench.folder / str(rank)).read_text().split()[:2] for rank in range(6)]
    assert results == [["6", "15"]] * 6
    assert bench.printed() == ""
    assert bench.counters().own_drops == {}


# --- links ----------------------------------------------------------------------------------------


def test_a_cut_link_is_silent_in_one_direction_only(bench: Bench) -> None:
    """What n1 sends does not arrive, what n2 sends does; healed, everything arrives."""
    bench.start("n1", "n2")
    one, two = bench.connection("n1", "n2")
    bench.set_policy([("n1", "n2")], CUT)
    one.send(b"lost for now")
    assert not hears(two)
    two.send(b"still heard")
    assert one.recv(100) == b"still heard"
    bench.set_policy([("n1", "n2")], HEALTHY)
    assert two.recv(100) == b"lost for now"
    links = bench.counters().links
    assert links["n1", "n2"].dropped[DropReason.DOWN] > 0
    assert not links["n2", "n1"].dropped
    one.close()
    two.close()


def test_a_link_that_rejects_resets_connections_at_once(bench: Bench) -> None:
    """Old connections break and new ones are refused, instead of being waited for."""
    bench.start("n1", "n2")
    one, two = bench.connection("n1", "n2")
    bench.set_policy([("n1", "n2")], LinkPolicy(up=False, mode=LinkMode.REJECT))
    one.send(b"x")
    with pytest.raises(ConnectionResetError):
        one.recv(1)
    with bench.open_socket("n1") as new, pytest.raises(ConnectionRefusedError):
        new.connect(("10.77.0.2", 80))
    dropped = bench.counters().links["n1", "n2"].dropped
    # One of each connection, or more: a kernel that waits long for an answer says it again.
    assert dropped.keys() == {DropReason.REJECTED}
    assert dropped[DropReason.REJECTED] >= 2
    one.close()
    two.close()


def test_a_link_that_holds_delivers_everything_later(bench: Bench) -> None:
    """Nothing arrives while a link holds, and nothing is lost when it lets go."""
    bench.start("n1", "n2")
    one, two = bench.connection("n1", "n2")
    bench.set_policy([("n1", "n2")], LinkPolicy(up=False, mode=LinkMode.HOLD))
    one.send(b"late")
    assert not hears(two)
    bench.set_policy([("n1", "n2")], HEALTHY)
    assert two.recv(100) == b"late"
    assert not bench.counters().links["n1", "n2"].dropped
    one.close()
    two.close()


def test_latency_is_added_to_each_direction_that_has_it(bench: Bench) -> None:
    """A round trip takes as long as both directions say, and hardly longer."""
    bench.start("n1", "n2")
    one, two = bench.connection("n1", "n2")
    slow = LinkPolicy(latency_s=0.05)
    bench.set_policy([("n1", "n2"), ("n2", "n1")], slow)
    took: list[float] = []
    # Of many one is not held up by what else the machine does.
    while len(took) < 5 or (min(took) >= 0.12 and len(took) < 100):
        began = time.monotonic()
        one.send(b"?")
        two.send(two.recv(1))
        one.recv(1)
        took.append(time.monotonic() - began)
    assert 0.1 <= min(took) < 0.12
    one.close()
    two.close()


def test_a_rate_bounds_what_a_link_carries(bench: Bench) -> None:
    """Ten megabytes through ten megabytes a second take about a second."""
    bench.start("n1", "n2")
    one, two = bench.connection("n1", "n2")
    bench.set_policy([("n1", "n2")], LinkPolicy(rate_bytes_per_s=10e6))
    one.setblocking(False)
    took: list[float] = []
    # A busy machine may carry less than the link would; of a few times one has to be good.
    while not took or (min(took) >= 2.5 and len(took) < 10):
        began = time.monotonic()
        left = 10_000_000
        while left > 0:
            _, writable, _ = select.select([], [one], [], 0)
            if writable:
                one.send(bytes(1 << 16))
            readable, _, _ = select.select([two], [], [], 0.001)
            if readable:
                left -= len(two.recv(1 << 20))
        took.append(time.monotonic() - began)
        assert took[-1] > 0.7 or len(took) > 1  # what the last time has left comes at once
    assert min(took) < 2.5, took
    one.close()
    two.close()


def test_breaking_one_link_loses_nothing_on_another(bench: Bench) -> None:
    """While links are cut and healed around it, a busy connection loses no packet."""
    bench.start("n1", "n2", "n3")
    receive = (
        "import socket, sys\n"
        "s = socket.socket(); s.bind(('', 7000)); s.listen(); open(sys.argv[1], 'w').close()\n"
        "c, _ = s.accept(); n = 0\n"
        "while d := c.recv(1 << 20): n += len(d)\n"
        "print(n)\n"
    )
    send = (
        "import socket\n"
        "s = socket.create_connection(('n2', 7000)); b = bytes(1 << 20)\n"
        "for _ in range(500): s.sendall(b)\n"
    )
    receiver = bench.python("n2", receive, str(bench.folder / "ready"))
    bench.wait_for_file("ready")
    sender = bench.python("n1", send)
    others = partitions.isolate(["n1", "n2", "n3"], ["n3"])
    policies = [CUT, LinkPolicy(latency_s=0.01, loss=0.1), HEALTHY]
    changes = 0
    while sender.exit_code is None:
        bench.set_policy(others, policies[changes % 3])
        changes += 1
    assert bench.output(receiver) == f"{500 << 20}\n"
    assert changes > 10
    counters = bench.counters()
    assert not counters.links["n1", "n2"].dropped
    assert counters.own_drops == {}


@HERE_ONLY
def test_packets_lost_by_a_stalled_switch_are_our_own_drops(bench: Bench) -> None:
    """A device whose queue overflows behind the switch's back makes the run's network unknown."""
    bench.start("n1", "n2")
    flood = (
        "import socket\n"
        "socks = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(200)]\n"
        "for s in socks:\n"
        "    s.setblocking(False)\n"
        "    try:\n"
        "        for _ in range(400): s.sendto(b'x', ('10.77.0.2', 9))\n"
        "    except BlockingIOError: pass\n"
    )
    switch = bench.switch_pid
    os.kill(switch, signal.SIGSTOP)
    try:
        assert bench.finish(bench.python("n1", flood)) == 0, bench.printed()
    finally:
        os.kill(switch, signal.SIGCONT)
    assert bench.counters().own_drops.keys() == {"stall"}
    bench.end("crash", "n1")
    assert bench.counters().own_drops.keys() == {"stall"}


# --- ends -----------------------------------------------------------------------------------------


def test_a_crash_is_heard(bench: Bench) -> None:
    """The kernel of a crashed node closes its connections and refuses new ones."""
    bench.start("n1", "n2")
    listen = (
        "import socket, sys, time\n"
        "s = socket.socket(); s.bind(('', 7000)); s.listen(); open(sys.argv[1], 'w').close()\n"
        "c, _ = s.accept(); c.send(b'hello'); time.sleep(1000)\n"
    )
    bench.python("n2", listen, str(bench.folder / "ready"))
    bench.wait_for_file("ready")
    with bench.open_socket("n1") as peer:
        peer.connect(("10.77.0.2", 7000))
        assert peer.recv(5) == b"hello"  # one that was not accepted yet would be reset
        bench.end("crash", "n2")
        assert peer.recv(1) == b""
    with bench.open_socket("n1") as late, pytest.raises(ConnectionRefusedError):
        late.connect(("10.77.0.2", 7000))


def test_a_power_cut_is_never_heard_of_not_even_after_the_node_is_back(bench: Bench) -> None:
    """There is no end and no reset; a returned machine knows nothing of old connections."""
    bench.start("n1", "n2")
    listen = (
        "import socket, sys, time\n"
        "s = socket.socket(); s.bind(('', 7000)); s.listen(); open(sys.argv[1], 'w').close()\n"
        "c, _ = s.accept(); c.send(b'hello'); time.sleep(1000)\n"
    )
    bench.python("n2", listen, str(bench.folder / "ready"))
    bench.wait_for_file("ready")
    with bench.open_socket("n1") as peer:
        peer.connect(("10.77.0.2", 7000))
        assert peer.recv(5) == b"hello"
        bench.end("cut", "n2")
        peer.send(b"anybody?")
        assert not hears(peer)
        bench.start("n2")
        assert bench.cluster.nodes["n2"].incarnation == 2
        # Its kernel answers what it does not know with a reset, as a rebooted machine's does.
        with pytest.raises(ConnectionResetError):
            peer.recv(1)


def test_an_address_nobody_has_is_silent(bench: Bench) -> None:
    """A machine that is not there does not answer that it is not there."""
    bench.start("n1")
    with bench.open_socket("n1") as sock:
        sock.setblocking(False)
        assert sock.connect_ex(("10.77.0.99", 80)) == errno.EINPROGRESS
        _, writable, _ = select.select([], [sock], [], SILENCE_S)
        assert not writable


@HERE_ONLY
def test_services_of_the_host_listen_on_the_gateway(bench: Bench) -> None:
    """A socket of ours, bound inside the cluster's network, is reached by nodes."""
    bench.start("n1")
    with bench.open_socket(GATEWAY) as listener, bench.open_socket("n1") as node:
        listener.bind(("10.77.0.254", 8474))
        listener.listen()
        node.connect(("10.77.0.254", 8474))
        accepted, address = listener.accept()
        assert address[0] == "10.77.0.1"
        accepted.close()
    assert list(bench.cluster.nodes) == ["n1"]


def test_nodes_can_be_made_in_a_user_namespace(tmp_path: Path) -> None:
    """What ordinary users have: the same nodes, the same network, the same ends."""
    try:
        bench = Bench("namespace", tmp_path, preload=(), as_user=True)
    except ClusterError as error:
        pytest.skip(error.message)
    bench.start("n1", "n2")
    one, two = bench.connection("n1", "n2")
    one.send(b"hello")
    assert two.recv(5) == b"hello"
    wait_for(bench.loop, bench.cluster.pause_node("n1"))
    wait_for(bench.loop, bench.cluster.resume_node("n1"))
    bench.end("cut", "n1")
    two.send(b"anybody?")
    assert not hears(two)
    one.close()
    two.close()
    bench.reset(tmp_path)
    bench.close()


# --- limits ---------------------------------------------------------------------------------------


@HERE_ONLY
def test_memory_above_a_limit_is_killed_for(bench: Bench) -> None:
    """A process of a node with a memory limit dies by the kernel's hand, and only it.

    The kernel has counted the allocations that met the limit.
    """
    if not bench.cluster.capabilities.has("memory_limit"):
        pytest.skip(bench.cluster.capabilities["memory_limit"].reason)
    bench.start("n1")
    limit = bench.limits.limit_node("n1", "memory", 64 << 20)
    wait_for(bench.loop, limit)
    greedy = bench.python("n1", "b = b'x' * (512 << 20); print(len(b))")
    assert bench.finish(greedy) == -signal.SIGKILL
    modest = bench.python("n1", "b = b'x' * (16 << 20); print(len(b))")
    assert bench.output(modest) == f"{16 << 20}\n"
    counted = wait_for(bench.loop, bench.limits.readings("n1"))
    assert counted.memory_kills == 1
    assert counted.memory_hits > 0
