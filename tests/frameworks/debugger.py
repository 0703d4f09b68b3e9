"""A debugger's client: as much of the Debug Adapter Protocol as a person needs for a breakpoint.

Each message is a JSON object behind a Content-Length header; a request is
answered by a response with its number, and events come between.
"""

from __future__ import annotations

import itertools
import json
import select
import socket
import time
from collections.abc import Mapping
from typing import Any

__all__ = ["Debugger"]

LIMIT_S = 120.0
_PAUSE_S = 0.05


class Debugger:
    """A client that is attached to the adapter at an address, once there is one."""

    def __init__(self, host: str, port: int) -> None:
        deadline = time.monotonic() + LIMIT_S
        while True:
            try:
                self._sock = socket.create_connection((host, port), timeout=LIMIT_S)
                break
            except ConnectionRefusedError:
                assert time.monotonic() < deadline, f"no debugger listens at {host}:{port}"
                select.select([], [], [], _PAUSE_S)
        self._file = self._sock.makefile("rb")
        self._numbers = itertools.count(1)
        self._events: list[Mapping[str, Any]] = []

    def attach(self, breakpoints: Mapping[str, int]) -> None:
        """Begin a session that stops at the line given for each file, and let the program go."""
        self.ask("initialize", adapterID="debugpy", pathFormat="path", linesStartAt1=True)
        attached = self._send("attach", {"justMyCode": True})
        self.wait_for("initialized")
        for path, line in breakpoints.items():
            found = self.ask("setBreakpoints", source={"path": path}, breakpoints=[{"line": line}])
            assert [point["verified"] for point in found["breakpoints"]] == [True], found
        self.ask("configurationDone")
        self._answer(attached)

    def stop(self) -> tuple[int, int]:
        """Wait until the program stops; return the thread and the frame it is in."""
        thread = int(self.wait_for("stopped")["threadId"])
        return thread, int(self.ask("stackTrace", threadId=thread)["stackFrames"][0]["id"])

    def frames(self, thread: int) -> list[tuple[str, int]]:
        """Return the names and lines of a stopped thread's frames, the innermost first."""
        frames = self.ask("stackTrace", threadId=thread)["stackFrames"]
        return [(frame["name"], frame["line"]) for frame in frames]

    def evaluate(self, expression: str, frame: int) -> str:
        """Return what an expression is worth in a frame."""
        return str(self.ask("evaluate", expression=expression, frameId=frame)["result"])

    def go_on(self, thread: int) -> None:
        """Let the program run; it may end before that is answered."""
        self._send("continue", {"threadId": thread})

    def close(self) -> None:
        """End the session."""
        self._sock.close()

    def ask(self, command: str, **arguments: object) -> Mapping[str, Any]:
        """Make a request and return the body of its answer."""
        return self._answer(self._send(command, arguments))

    def wait_for(self, event: str) -> Mapping[str, Any]:
        """Return the body of the next event of a kind."""
        while True:
            for number, message in enumerate(self._events):
                if message["event"] == event:
                    del self._events[: number + 1]
                    body: Mapping[str, Any] = message.get("body", {})
                    return body
            self._take()

    def _answer(self, number: int) -> Mapping[str, Any]:
        while (message := self._take()).get("request_seq") != number:
            pass
        assert message["success"], message
        body: Mapping[str, Any] = message.get("body", {})
        return body

    def _take(self) -> Mapping[str, Any]:
        """Read a message; events are kept until somebody asks for them."""
        length = 0
        while (line := self._file.readline()) != b"\r\n":
            assert line, "the debugger closed the connection"
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        message: Mapping[str, Any] = json.loads(self._file.read(length))
        if message["type"] == "event":
            self._events.append(message)
        return message

    def _send(self, command: str, arguments: Mapping[str, object]) -> int:
        number = next(self._numbers)
        request = {"seq": number, "type": "request", "command": command, "arguments": arguments}
        body = json.dumps(request).encode()
        self._sock.sendall(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        return number
