"""What is heard at the door of an agent that is dead: that it is, and its workers too.

The agent hands its listening socket to the keeper. While the agent lives nothing is accepted here.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Callable

from pytest_elastic.agent_channel import AgentChannel
from pytest_elastic.channel import JsonObject
from pytest_elastic.credentials import Credentials
from pytest_elastic.frames import Probation
from pytest_elastic.loop import Loop

__all__ = ["Tombstone"]

# More visitors than there are peers that could ask at once are strangers: the oldest is let go.
_MAX_VISITORS = 1024


class Tombstone:
    """One listening socket and the answer to each connection."""

    def __init__(
        self, loop: Loop, fd: int, answer: JsonObject, credentials: Credentials | None
    ) -> None:
        self._loop = loop
        self._credentials = credentials
        self._listener = socket.socket(fileno=fd)
        self._answer = answer
        self._visitors: deque[AgentChannel] = deque()

    def show(self, linger_s: float, *, on_over: Callable[[], None]) -> None:
        """Answer for `linger_s`; every worker must be gone."""
        # The reader of the agent's output is to see its end now.
        nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for fd in (0, 1, 2):
            os.dup2(nowhere, fd, inheritable=True)
        os.close(nowhere)
        self._listener.setblocking(False)
        self._loop.watch(self._listener.fileno(), on_readable=self._accept)
        self._loop.call_at(self._loop.now() + linger_s, on_over)

    def close(self) -> None:
        """Close the socket, of which nothing was shown."""
        self._listener.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        # Left open until the other side closes: closing with its greeting unread would reset the
        # connection, and the answer with it.
        channel = AgentChannel(
            self._loop,
            connection,
            credentials=self._credentials,
            is_caller=False,
            on_message=lambda _: None,
            on_closed=lambda _: None,
            probation=Probation(),
        )
        channel.send(self._answer)
        self._visitors.append(channel)
        if len(self._visitors) > _MAX_VISITORS:
            self._visitors.popleft().close()
