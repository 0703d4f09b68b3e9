"""Start a Ray over all nodes of a job, run a script of Ray Train on the first, and end with it.

    python launch.py HOST:PORT ADDRESS PROCESSORS SCRIPT [ARGUMENTS]

HOST is the first node, where Ray's head and the script are; ADDRESS is this node's own. The other
nodes stay until the script has ended, and fail if it does, or if the first node or their Ray goes.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time

STARTED = ("--object-store-memory=80000000", "--disable-usage-stats", "--block")
HEAD = ("--head", "--include-dashboard=false", "--include-log-monitor=false")
LIMIT_S = 60.0
END_LIMIT_S = 40.0  # a node that is told to go lets Ray drain it, which takes up to 30 s


class Ray:
    """The processes of Ray on this node."""

    def __init__(self, *options: str, **environ: str) -> None:
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", *options, *STARTED]
        self._process = subprocess.Popen(command, env={**os.environ, **environ})
        self.pidfd = os.pidfd_open(self._process.pid)

    def stop(self) -> None:
        """End them: `ray start --block` ends its own when it is asked to end."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(END_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()


def main(endpoint: str, address: str, processors: str, *program: str) -> int:
    """Do this node's part; returns its exit code."""
    name, _, port = endpoint.rpartition(":")
    host = socket.gethostbyname(name)
    own = (f"--node-ip-address={address}", f"--num-cpus={processors}")
    if host != address:
        return follow(host, int(port), own)
    # Where the head goes, all is over.
    ray = Ray(f"--port={port}", *HEAD, *own, RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S="0")
    try:
        # Those who connect wait in its queue, for what becomes of the script.
        with socket.create_server((host, int(port) + 1)) as server:
            connect(host, int(port)).close()
            environ = {**os.environ, "RAY_ADDRESS": f"{host}:{port}"}
            code = subprocess.run([sys.executable, *program], env=environ, check=False).returncode
            tell(server, b"+" if code == 0 else b"-")
    finally:
        ray.stop()
    return code


def follow(host: str, port: int, own: tuple[str, ...]) -> int:
    """Add this node to the Ray of the first, until that tells how the script has ended."""
    with connect(host, port + 1) as first:
        connect(host, port).close()
        ray = Ray(f"--address={host}:{port}", *own)
        try:
            select.select([first.fileno(), ray.pidfd], [], [])
            first.setblocking(False)
            try:
                return 0 if first.recv(1) == b"+" else 1
            except OSError:
                return 1
        finally:
            ray.stop()


def connect(host: str, port: int) -> socket.socket:
    """Connect to the first node as soon as it listens."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        try:
            return socket.create_connection((host, port), 1.0)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def tell(server: socket.socket, result: bytes) -> None:
    """Send it to all who have connected, and wait until they have left our Ray."""
    server.setblocking(False)
    connected = []
    while True:
        try:
            connection, _ = server.accept()
        except BlockingIOError:
            break
        connection.settimeout(END_LIMIT_S)
        connection.sendall(result)
        connected.append(connection)
    for connection in connected:
        with connection, contextlib.suppress(OSError):
            connection.recv(1)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    sys.exit(main(*sys.argv[1:]))
