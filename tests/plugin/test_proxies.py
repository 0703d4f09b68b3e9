"""Jobs whose rendezvous and services lie behind proxies with toxics, on real clusters."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterator

import pytest

from tests.plugin.place import Place

TESTS = """
    import os, socket, time
    import pytest

    def world():
        return int(os.environ["WORLD_SIZE"]), os.environ.get("ELASTIC_PROXY_RENDEZVOUS", "")

    @pytest.mark.elastic(nodes=2, proxies={"rendezvous": "rendezvous"})
    def test_a_rendezvous_that_is_slow(elastic_job, elastic_chaos):
        job = elastic_job(world)
        elastic_chaos.at("0s").toxic(
            proxy="rendezvous", type="latency", latency="100ms", jitter="50ms"
        )
        done = job.wait()
        assert done.succeeded
        assert {size for size, _ in done.results.values()} == {2}
        assert all(address.count(":") == 1 for _, address in done.results.values())

    @pytest.mark.elastic(nodes=2, proxies={"rendezvous": "rendezvous"})
    @pytest.mark.parametrize("kind", ["timeout", "reset_peer"])
    def test_a_rendezvous_that_breaks_connections_at_first(elastic_job, elastic_chaos, kind):
        job = elastic_job(world)
        broken = elastic_chaos.at("0s").toxic(proxy="rendezvous", type=kind, stream="upstream")
        elastic_chaos.when(event="fault_effective", id=broken.id).heal(broken.id)
        job.wait_for_round(1, within="60s", after=broken.healed)
        assert job.wait().succeeded

    def ask(count):
        host, port = os.environ["ELASTIC_PROXY_ECHO"].rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=30) as service:
            began = time.monotonic()
            for _ in range(count):
                service.sendall(b"?")
                assert service.recv(1) == b"?"
            return time.monotonic() - began

    @pytest.mark.elastic(nodes=2)
    def test_a_service_of_the_host_that_is_slow(elastic_job, elastic_chaos):
        job = elastic_job(ask, 2, proxies={"echo": os.environ["ECHO"]})
        elastic_chaos.at("0s").toxic(proxy="echo", type="latency", latency="200ms")
        done = job.wait()
        assert done.succeeded
        assert min(done.results.values()) >= 0.4

    def knock():
        host, port = os.environ["ELASTIC_PROXY_ECHO"].rsplit(":", 1)
        refused = 0
        while True:
            try:
                with socket.create_connection((host, int(port)), timeout=30) as service:
                    service.sendall(b"?")
                    assert service.recv(1) == b"?"
                    return refused
            except ConnectionRefusedError:
                refused += 1
                with open(os.environ["ELASTIC_CHECKPOINT_DIR"] + "/refused", "w"):
                    time.sleep(0.02)
                print("refused", flush=True)

    def test_a_service_that_is_late(elastic_job, elastic_chaos):
        echo = {"upstream": os.environ["ECHO"], "enabled": False}
        job = elastic_job(knock, nodes=1, proxies={"echo": echo})
        elastic_chaos.when(log="refused").enable_proxy("echo")
        done = job.wait()
        assert done.succeeded
        assert min(done.results.values()) >= 1

    def ask_until_slow():
        host, port = os.environ["ELASTIC_PROXY_ECHO"].rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=30) as service:
            while True:
                began = time.monotonic()
                service.sendall(b"?")
                assert service.recv(1) == b"?"
                took = time.monotonic() - began
                if took >= 0.3 or os.environ["ELASTIC_NODE"] != "n2":
                    return os.environ["ELASTIC_NODE"], took

    def test_the_link_from_the_gateway_to_one_node(elastic_job, elastic_chaos):
        job = elastic_job(ask_until_slow, nodes=2, proxies={"echo": os.environ["ECHO"]})
        slow = elastic_chaos.when(event="worker_hello", count=2)
        slow.degrade(from_="gateway", to="n2", latency="300ms")
        job.wait_for_event("worker_finished", count=2, within="60s")
        done = job.wait()
        assert done.succeeded
        assert dict(done.results.values())["n2"] >= 0.3

    def test_a_proxy_that_is_not_there(elastic_job, elastic_chaos):
        job = elastic_job(ask, 1, proxies={"echo": os.environ["ECHO"]})
        elastic_chaos.at("0s").toxic(proxy="ecko", type="noop")
        job.wait()

    def test_an_upstream_that_is_none(elastic_job):
        elastic_job(ask, 1, proxies={"echo": "somewhere"})
"""

# Another process with another server: what the real one's command line starts, here.
SERVER = """
    #!/bin/sh
    exec {python} -m pytest_elastic toxiproxy --host "$2" --port "$4"
"""


class Echo:
    """A service of the host: it says what it hears."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        """Listen no more."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            while data := connection.recv(100):
                connection.sendall(data)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A folder with the tests, and the service that they are about."""
    place = Place(tmp_path_factory.mktemp("proxies"))
    place.add_ini()
    place.add("test_proxies.py", TESTS)
    echo = Echo()
    place.environ["ECHO"] = echo.address
    yield place
    echo.close()


def test_jobs_work_through_proxies_with_toxics(place: Place) -> None:
    """Slow, mute and broken: the job gets on as soon as the toxic allows, and finds its service.

    What cannot be is said before anything starts: a toxic on no proxy, a proxy to nowhere.
    """
    called = place.pytest("-rA")
    refused = {"test_a_proxy_that_is_not_there", "test_an_upstream_that_is_none"}
    not_passed = {name for name, word in called.outcomes.items() if word != "PASSED"}
    assert not_passed == refused, called.out
    assert len(called.outcomes) == 8
    assert "no proxy 'ecko'" in called.about("test_a_proxy_that_is_not_there")
    assert "did you mean 'echo'?" in called.about("test_a_proxy_that_is_not_there")
    assert "a proxy cannot lead to 'somewhere'" in called.about("test_an_upstream_that_is_none")


def test_proxies_are_on_loopback_where_nodes_are_plain_processes(place: Place) -> None:
    """With the embedded server, and with a program that is called as Shopify's is."""
    program = place.add("toxiproxy-server", SERVER.format(python=sys.executable))
    program.chmod(0o755)
    for server in ("embedded", str(program)):
        called = place.pytest(
            "-rA", "-k", "slow", "--elastic-cluster=process", f"--elastic-toxiproxy={server}"
        )
        assert list(called.outcomes.values()) == ["PASSED"] * 2, called.out
