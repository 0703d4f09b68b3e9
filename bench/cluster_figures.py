"""How fast the cluster is on this machine: `python -m bench.cluster_figures`.

Prints what `docs/cluster.md` quotes: the times to start, use and reset nodes, the switch's round
trip and throughput, and TCP over links with policies. Nothing is judged; run it on an idle machine.
"""

from __future__ import annotations

import os
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from elastic_harness.cluster.choose import choose_cluster
from elastic_harness.cluster.client import ClusterClient
from elastic_harness.cluster.cluster import NodeSpec, having
from elastic_harness.cluster.facets import Network
from elastic_harness.cluster.process import ProcessHandle, ProcessSpec
from elastic_harness.future import gather, wait_for
from elastic_harness.network.link_model import HEALTHY, LinkPolicy

from bench.figures import Figures
from pytest_elastic.loop import Loop

_SECONDS = 3
_GOES = 3
_MAX_ROUND_TRIP_US = 150.0
_MIN_SPEED_MB_S = 500.0
_HARMLESS = LinkPolicy(rate_bytes_per_s=1e12)
_DECIDING = (
    ("the same with a policy on", _HARMLESS, None),
    ("the same, and classes told apart", LinkPolicy(up=False), "port:9"),
)
_POLICIES = {
    "a healthy link": HEALTHY,
    "a policy on": _HARMLESS,
    "10 ms each way": LinkPolicy(latency_s=0.01),
    "2 % loss": LinkPolicy(loss=0.02),
    "2 % loss, 10 ms each way": LinkPolicy(loss=0.02, latency_s=0.01),
    "200 ms each way": LinkPolicy(latency_s=0.2),
    "100 MB/s": LinkPolicy(rate_bytes_per_s=100e6),
}
_RECEIVE = """
import socket, sys, time
listener = socket.create_server(("", 7000))
open(sys.argv[1] + "/ready", "w").close()
stream, _ = listener.accept()
stream.settimeout(5)
buffer, size, began = bytearray(1 << 20), 0, time.monotonic()
try:
    while count := stream.recv_into(buffer): size += count
except TimeoutError:
    pass
print(size / (time.monotonic() - began) / 1e6)
"""
_SEND = """
import os, socket, sys, time
stream = socket.create_connection((sys.argv[1], 7000))
stream.settimeout(5)
end, block = time.monotonic() + float(sys.argv[2]), bytes(1 << 20)
while time.monotonic() < end: stream.send(block)
os._exit(0)
"""


class Measured:
    """A running cluster to be measured."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.figures = Figures()
        self.loop = Loop()
        choice = choose_cluster()
        print(f"{choice.cluster.kind} cluster: {choice.reason}")
        self.cluster: ClusterClient = choice.make(self.loop, on_event=lambda _: None)
        self.figures.show("start the server, torch imported", "s", self.time(self.start_server))

    def start_server(self) -> None:
        """Start the server."""
        wait_for(self.loop, self.cluster.start())

    @property
    def network(self) -> Network:
        """The links between nodes."""
        return having(self.cluster.network, self.cluster.capabilities["network"])

    @staticmethod
    def time(act: Callable[[], None]) -> float:
        """Return the seconds something takes."""
        began = time.perf_counter()
        act()
        return time.perf_counter() - began

    def start(self, count: int) -> None:
        """Start nodes, all at once."""
        specs = [
            NodeSpec(name=f"n{index}", index=index, shared=[str(self.folder)])
            for index in range(1, count + 1)
        ]
        wait_for(self.loop, gather(self.cluster.start_node(spec) for spec in specs))

    def reset(self) -> None:
        """End all nodes."""
        wait_for(self.loop, self.cluster.reset())

    def spawn(self, node: str, *argv: str) -> ProcessHandle:
        """Start a process on a node."""
        spec = ProcessSpec(
            argv=argv,
            environ={"PATH": os.environ["PATH"]},
            cwd=str(self.folder),
            stdout=str(self.folder / "output"),
            stderr=str(self.folder / "errors"),
        )
        handle: ProcessHandle = wait_for(self.loop, self.cluster.spawn(node, spec))
        return handle

    def round_trips(self, count: int = 2000) -> list[float]:
        """Return the seconds of single bytes to another node and back, fastest first."""
        ends: list[socket.socket] = [
            wait_for(self.loop, self.cluster.sockets.open(node)) for node in ("n1", "n2")
        ]
        client, listener = ends
        listener.bind((self.cluster.nodes["n2"].address, 0))
        listener.listen()
        client.connect(listener.getsockname())
        server, _ = listener.accept()
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def echo() -> None:
            while data := server.recv(1):
                server.send(data)

        thread = threading.Thread(target=echo)
        thread.start()
        took = []
        for _ in range(count):
            began = time.perf_counter()
            client.send(b"?")
            client.recv(1)
            took.append(time.perf_counter() - began)
        client.close()
        thread.join()
        server.close()
        listener.close()
        return sorted(took)

    def set_policy(self, policy: LinkPolicy, *, traffic: str | None = None) -> None:
        """Put a policy in force between the two nodes, both ways."""
        links = [("n1", "n2"), ("n2", "n1")]
        wait_for(self.loop, self.network.lay(links, (("", policy),), traffic=traffic))

    def throughput(self, policy: LinkPolicy) -> float:
        """Return the megabytes a second of one TCP connection under a policy, both ways."""
        for name in ("ready", "output"):
            (self.folder / name).unlink(missing_ok=True)
        self.set_policy(policy)
        receiver = self.spawn("n1", sys.executable, "-S", "-c", _RECEIVE, str(self.folder))
        while not (self.folder / "ready").exists():
            assert receiver.exit_code is None, (self.folder / "errors").read_text()
            self.loop.run_once(0.01)
        address = self.cluster.nodes["n1"].address
        self.spawn("n2", sys.executable, "-S", "-c", _SEND, address, str(_SECONDS))
        while receiver.exit_code is None:
            self.loop.run_once(10.0)
        return float((self.folder / "output").read_text())

    def median_round_trip_us(self) -> float:
        """Return the median of the best of some goes."""
        return min(statistics.median(self.round_trips()) for _ in range(_GOES)) * 1e6


def main() -> int:
    """Measure everything, and judge what has a target."""
    with tempfile.TemporaryDirectory() as folder:
        measured = Measured(Path(folder))
        show = measured.figures.show
        for count in (3, 64):
            show(f"start {count} nodes", "s", measured.time(partial(measured.start, count)))
            show(f"reset {count} nodes", "s", measured.time(measured.reset))
        measured.start(2)
        trips = measured.round_trips()
        show("round trip of one byte, 99 in 100", "us", trips[len(trips) * 99 // 100] * 1e6)
        show("round trip of one byte, median", "us", measured.median_round_trip_us())
        # Policies that every packet meets and that do nothing to it: what deciding itself costs.
        for what, policy, traffic in _DECIDING:
            measured.set_policy(policy, traffic=traffic)
            show(what, "us", measured.median_round_trip_us(), at_most=_MAX_ROUND_TRIP_US)
        measured.set_policy(HEALTHY, traffic="port:9")
        for what, policy in _POLICIES.items():
            has_target = policy is _HARMLESS
            speed = max(measured.throughput(policy) for _ in range(_GOES if has_target else 1))
            least = _MIN_SPEED_MB_S if has_target else None
            show(f"one TCP connection, {what}", "MB/s", speed, at_least=least)
        counters = wait_for(measured.loop, measured.network.counters())
        print(f"packets the switch itself dropped: {dict(counters.own_drops) or 'none'}")
        wait_for(measured.loop, measured.cluster.close())
    return measured.figures.end()


if __name__ == "__main__":
    sys.exit(main())
