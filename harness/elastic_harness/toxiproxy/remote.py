"""A Toxiproxy server that is not ours, for a loop: calls are made in a thread, one after another.

The client blocks, for seconds if the server does; a loop must not.
"""

from __future__ import annotations

import os
import queue
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from pytest_elastic.errors import ElasticError, UsageError
from pytest_elastic.exit_codes import describe_exit
from pytest_elastic.loop import Loop

if TYPE_CHECKING:
    from elastic_harness.toxiproxy.client import ToxiproxyClient

__all__ = ["EMBEDDED", "RemoteToxiproxy", "check_choice", "find_server"]

# What stands for our own server, where a URL or a program could stand.
EMBEDDED = "embedded"

T = TypeVar("T")

_START_LIMIT_S = 10.0
# A server of ours ends with the thread that started it, however we end.
_WITH_US = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""
_LOOK_S = 0.02
# The sockets of a killed process are gone before it can be waited for.
_END_LIMIT_S = 1.0
_MAX_CALLS = 1024


def find_server(program: str) -> str:
    """Return the path of a server's program; raises UsageError."""
    found = shutil.which(program)
    if found is None:
        raise UsageError(
            f"cannot start a Toxiproxy server: there is no program {program!r}",
            hint="No package of pip or apt has it; `embedded` needs none.",
        )
    return found


def check_choice(text: str) -> str:
    """Return which server is meant: `embedded`, a URL or a program; raises UsageError.

    A server must be one of this machine: what it connects to and listens at is on loopback.
    """
    if text == EMBEDDED:
        return text
    if "://" not in text:
        find_server(text)
        return text
    host = urlsplit(text).hostname or ""
    if not text.startswith("http://") or not (host == "localhost" or host.startswith("127.")):
        raise UsageError(
            f"cannot use the Toxiproxy server {text}: http://127.0.0.1:PORT is expected",
            hint="It has to run on this machine, where it reaches the cluster's gateway.",
        )
    return text


class RemoteToxiproxy:
    """Either a server that runs at `url`, or one of our own making from `program`.

    Threads must be allowed to wake the loop (`enable_thread_wakeup`). `close` ends the thread,
    and the server if it is ours. A server of ours that has ended (Shopify's does, over some
    requests) fails the call that finds it out, and is started again for the next.
    """

    def __init__(self, loop: Loop, *, url: str = "", program: str = "") -> None:
        assert bool(url) != bool(program), "a server is found, or started"
        self._loop = loop
        self._url = url
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None
        self._calls: queue.Queue[Callable[[], None] | None] = queue.Queue(_MAX_CALLS)
        self._thread = threading.Thread(target=self._work, name="elastic-toxiproxy", daemon=True)
        self._client: ToxiproxyClient | None = None
        self._is_closed = False
        self._thread.start()

    def call(
        self, work: Callable[[ToxiproxyClient], T], on_done: Callable[[T | ElasticError], None]
    ) -> None:
        """Do something with the server; the result, or why there is none, comes to the loop."""

        def do() -> None:
            try:
                outcome: T | ElasticError = work(self._connected())
            except ElasticError as error:
                outcome = self._ended(error) or error
            except OSError as error:
                outcome = ElasticError(f"cannot use the Toxiproxy server: {error}")
            self._loop.call_from_thread(lambda: on_done(outcome))

        self._calls.put_nowait(do)

    def close(self) -> None:
        """Make no more calls, and end a server of ours; harmless twice."""
        self._is_closed = True
        self._calls.put_nowait(None)
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _work(self) -> None:
        while (do := self._calls.get()) is not None:
            do()

    def _connected(self) -> ToxiproxyClient:
        if self._client is None:
            if self._is_closed:
                raise ElasticError("the Toxiproxy server is not used any more")
            # Its HTTP library takes a while to import, and most runs have no such server.
            from elastic_harness.toxiproxy.client import ToxiproxyClient

            url = self._url or self._start()
            client = ToxiproxyClient(url)
            deadline = time.monotonic() + (_START_LIMIT_S if self._program else 0.0)
            while not client.running():
                has_ended = self._process is not None and self._process.poll() is not None
                if has_ended or time.monotonic() >= deadline:
                    raise UsageError(f"no Toxiproxy server answers at {url}")
                time.sleep(_LOOK_S)
            self._client = client
        return self._client

    def _ended(self, error: ElasticError) -> ElasticError | None:
        """Return what to say instead of `error` where a server of ours is no more."""
        process = self._process
        if process is None or getattr(error, "status", None) is not None:
            return None
        with suppress(subprocess.TimeoutExpired):
            code = process.wait(_END_LIMIT_S)
            self._process = self._client = None
            return ElasticError(
                f"the Toxiproxy server {self._program} {describe_exit(code)};"
                " its proxies are lost, and the next job gets a new one"
            )
        return None

    def _start(self) -> str:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        program = find_server(self._program)
        command = [program, "-host", "127.0.0.1", "-port", str(port)]
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-c", _WITH_US, str(os.getpid()), *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        return f"http://127.0.0.1:{port}"
