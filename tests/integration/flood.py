"""Floods one port with connections, as fast as one process can, and prints what it did.

`python flood.py HOST PORT CONNECTIONS SECONDS FILE HOW` sends the bytes of a file on each
connection, over and over (HOW is `repeat`) or once (`stay`), and replaces closed connections.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import time
from pathlib import Path


class Flood:
    """Open connections, and what of the bytes each has still to send."""

    def __init__(self, door: tuple[str, int], words: bytes, *, repeats: bool) -> None:
        self.door = door
        self.words = words
        self.repeats = repeats
        self.left: dict[socket.socket, memoryview] = {}
        self.opened = 0
        self.sent = 0

    def open(self) -> None:
        """Begin to connect."""
        sock = socket.socket()
        sock.setblocking(False)
        sock.connect_ex(self.door)
        self.left[sock] = memoryview(self.words)
        self.opened += 1

    def send(self, sock: socket.socket) -> None:
        """Send as much as the kernel takes."""
        try:
            count = sock.send(self.left[sock][:65536])
        except BlockingIOError:
            return
        except OSError:
            sock.close()
            del self.left[sock]
            self.open()
            return
        self.sent += count
        self.left[sock] = self.left[sock][count:]
        if self.repeats and not self.left[sock]:
            self.left[sock] = memoryview(self.words)


def main() -> None:
    """Flood until the time is over."""
    host, port, connections, seconds, file, how = sys.argv[1:]
    flood = Flood((host, int(port)), Path(file).read_bytes(), repeats=how == "repeat")
    for _ in range(int(connections)):
        flood.open()
    end = time.monotonic() + float(seconds)
    while time.monotonic() < end:
        busy = [sock for sock, left in flood.left.items() if left]
        _, writable, _ = select.select([], busy, [], 0.1)
        for sock in writable:
            flood.send(sock)
    sys.stdout.write(json.dumps({"opened": flood.opened, "sent": flood.sent}))


if __name__ == "__main__":
    main()
