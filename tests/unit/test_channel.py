"""Messages and descriptors that travel together arrive together."""

from __future__ import annotations

import os
import socket

from pytest_elastic.channel import Channel, JsonObject
from pytest_elastic.loop import Loop


def test_descriptors_arrive_with_the_message_they_were_sent_with() -> None:
    """Messages that the kernel hands over in one read do not take each other's descriptors."""
    loop = Loop()
    left, right = socket.socketpair()
    received: list[tuple[object, int]] = []

    def on_message(message: JsonObject, fds: list[int]) -> None:
        received.append((message["n"], len(fds)))
        for fd in fds:
            os.close(fd)

    sender = Channel(loop, left, on_message=on_message, on_closed=lambda _: None)
    receiver = Channel(loop, right, on_message=on_message, on_closed=lambda _: None)
    for number, fds in enumerate(((), (0,), (), (0, 1), ())):
        sender.send({"n": number}, fds)
    deadline = loop.now() + 60
    while len(received) < 5 and loop.now() < deadline:
        loop.run_once(deadline - loop.now())
    sender.close()
    receiver.close()
    loop.close()
    assert received == [(0, 0), (1, 1), (2, 0), (3, 2), (4, 0)]
