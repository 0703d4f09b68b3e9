"""A name server for one network namespace, which answers late or not at all, and what asks it.

Run as `unshare --mount --net python -m tests.integration.name_server STEP...`: it takes the place
of the machine's resolver, performs the steps one after the other, and prints as a JSON list what
each came to and how long it took. A step is a JSON list: `["answer", SECONDS]` (null: never) says
how late answers are from there on; any other is a call of `EndpointStore`, in a process of its own.

With `run COMMAND...` it runs a command while every tenth query is dropped, and prints last how many
queries there were and how many of them were dropped. With `late ADDRESS COMMAND...` the name has
that address only, of either family, and is not known for the first queries.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from typing import Any

from pytest_elastic.backends.threaded_store import ThreadedStore
from pytest_elastic.config import Endpoint
from pytest_elastic.loop import Loop
from pytest_elastic.workers.store import torch_store

LIMIT_S = 30.0
ADDRESS = "10.9.9.9"
# A query for each family, and a node that asks again ten times a second: it has settled by then.
LATE_QUERIES = 20
_A, _AAAA, _NO_SUCH_NAME, _ANSWER = 1, 28, 0x8183, 0x8180


class NameServer:
    """Knows `store.test` by one address, and no other name and no name of any address."""

    def __init__(self, address: str = ADDRESS) -> None:
        self._address = address
        self.unknown_for = 0  # so many queries that the name is not known
        self.late_s: float | None = 0.0
        self.drops_every = 0  # one query of so many gets no answer, the first one first; 0: none
        self.queries = self.dropped = 0
        self._sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._sock.bind(("127.0.0.1", 53))
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            query, client = self._sock.recvfrom(4096)
            self.queries += 1
            if self.drops_every and self.queries % self.drops_every == 1:
                self.dropped += 1
            elif self.late_s is not None:
                address = self._address if self.queries > self.unknown_for else ""
                answer = partial(self._sock.sendto, _answer_to(query, address), client)
                threading.Timer(self.late_s, answer).start()


def _answer_to(query: bytes, address: str) -> bytes:
    end = query.index(b"\0", 12) + 5  # the name, its type and its class
    question = query[12:end]
    is_known = bool(address) and question.startswith(b"\5store\4test\0")
    (kind,) = struct.unpack(">H", question[-4:-2])
    records = b""
    if is_known and kind == (_AAAA if ":" in address else _A):
        packed = socket.inet_pton(socket.AF_INET6 if kind == _AAAA else socket.AF_INET, address)
        records = struct.pack(">HHHIH", 0xC00C, kind, 1, 0, len(packed)) + packed
    flags = _ANSWER if is_known else _NO_SUCH_NAME
    return query[:2] + struct.pack(">HHHHH", flags, 1, bool(records), 0, 0) + question + records


class Caller:
    """Makes calls of an `EndpointStore` one after the other."""

    def __init__(self) -> None:
        self._loop = Loop()
        self._loop.enable_thread_wakeup()
        self._store = ThreadedStore(self._loop)

    def call(self, name: str, arguments: dict[str, Any]) -> tuple[list[str], float]:
        answers: list[list[str]] = []
        begin = time.monotonic()
        rest = dict(arguments)
        endpoint = Endpoint(host=rest.pop("host"), port=rest.pop("port"))
        getattr(self._store, name)(
            endpoint, **rest, on_done=lambda *answer: answers.append([*answer])
        )
        while not answers:
            assert time.monotonic() - begin < LIMIT_S, f"{name} has not called back"
            self._loop.run_once(0.1)
        return answers[0], time.monotonic() - begin


def _take_the_resolvers_place(folder: str) -> None:
    for path, text in (
        ("/etc/resolv.conf", "nameserver 127.0.0.1\n"),
        ("/etc/nsswitch.conf", "hosts: files dns\n"),
    ):
        own = os.path.join(folder, os.path.basename(path))
        with open(own, "w", encoding="utf-8") as file:
            file.write(text)
        subprocess.run(["mount", "--bind", own, path], check=True)


def _take_the_address() -> None:
    for command in (
        ["ip", "link", "set", "lo", "up"],
        ["ip", "address", "add", f"{ADDRESS}/32", "dev", "lo"],
    ):
        subprocess.run(command, check=True)


def serve_calls() -> None:
    """Perform calls from standard input, a line each; print what they came to."""
    torch_store.prepare()  # what is measured is the call
    caller = Caller()
    for line in sys.stdin:
        name, arguments = json.loads(line)
        sys.stdout.write(json.dumps(caller.call(name, arguments)) + "\n")
        sys.stdout.flush()


def run_command(command: list[str]) -> int:
    """Run a command whose resolver drops every tenth query; return its exit code."""
    with tempfile.TemporaryDirectory() as folder:
        _take_the_address()
        _take_the_resolvers_place(folder)
        server = NameServer()
        server.drops_every = 10
        code = subprocess.run(command, check=False).returncode
    sys.stdout.write(json.dumps([server.queries, server.dropped]) + "\n")
    return code


def run_command_before_the_name_is_known(address: str, command: list[str]) -> int:
    """Run a command on a machine of its own addresses; return its exit code."""
    with tempfile.TemporaryDirectory() as folder:
        _take_the_resolvers_place(folder)
        server = NameServer(address)
        server.unknown_for = LATE_QUERIES
        code = subprocess.run(command, check=False).returncode
    assert server.queries > LATE_QUERIES, f"the name was asked for {server.queries} times only"
    return code


def main(steps: list[list[Any]]) -> None:
    """Perform steps."""
    with tempfile.TemporaryDirectory() as folder:
        _take_the_address()
        _take_the_resolvers_place(folder)
        server = NameServer()
        command = [sys.executable, "-m", "tests.integration.name_server"]
        results = []
        # Who hosts and who asks are two processes, as the store services of two nodes are.
        children = {
            role: subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            for role in ("host", "other")
        }
        for name, argument in steps:
            if name == "answer":
                server.late_s = argument
                continue
            child = children["host" if name == "host" else "other"]
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write(json.dumps([name, argument]) + "\n")
            child.stdin.flush()
            results.append(json.loads(child.stdout.readline()))
        for child in children.values():
            child.kill()
            child.wait()
    sys.stdout.write(json.dumps(results) + "\n")
    sys.stdout.flush()
    os._exit(0)  # answers that are still to come have nobody to hear them


if __name__ == "__main__":
    if sys.argv[1:2] == ["run"]:
        sys.exit(run_command(sys.argv[2:]))
    elif sys.argv[1:2] == ["late"]:
        sys.exit(run_command_before_the_name_is_known(sys.argv[2], sys.argv[3:]))
    elif sys.argv[1:]:
        main([json.loads(step) for step in sys.argv[1:]])
    else:
        serve_calls()
