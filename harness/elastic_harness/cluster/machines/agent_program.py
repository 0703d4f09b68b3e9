"""The program that an agent is: it says what its machine is, or becomes a daemon and works.

It is started by what `travel` has put before its order on standard input. The order is one line of
JSON. With `facts SIGN` as arguments there is none, and the program prints what the machine is and
can do.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace

from elastic_harness.cluster.machines.agent import AgentOrder, NodeAgent
from elastic_harness.cluster.machines.facts import facts_of_this_machine

__all__ = ["main"]


def main(code: str = "") -> int:
    """Read the order, become a daemon unless told to stay, and work; 1 if that failed.

    `code` is the folder in which our packages have come, "" where they are installed.
    """
    if sys.argv[1:2] == ["facts"]:
        with _removed_at_the_end(code):
            sys.stdout.write(json.dumps(asdict(facts_of_this_machine(sys.argv[2]))) + "\n")
        return 0
    order = _with_ssh_address(AgentOrder.decode(sys.stdin.readline()))
    os.environ.clear()
    os.environ.update(order.environ)
    if order.stays:
        failure: list[str] = []
        with _removed_at_the_end(code):
            NodeAgent(order, failure.append, code).run()
        return _report(failure[0] if failure else "the agent ended before it could dial")
    read, write = os.pipe2(os.O_CLOEXEC)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            _work(order, write, code)
        os._exit(0)
    os.close(write)
    with open(read, encoding="utf-8") as pipe:
        return _report(pipe.read())


def _with_ssh_address(order: AgentOrder) -> AgentOrder:
    """Fill in where we were called from, where that is what an address stands for ("")."""
    caller = (os.environ.get("SSH_CONNECTION", "").split() or ["127.0.0.1"])[0]
    return replace(order, addresses=[(host or caller, port) for host, port in order.addresses])


@contextlib.contextmanager
def _removed_at_the_end(code: str) -> Iterator[None]:
    try:
        yield
    finally:
        if code:
            shutil.rmtree(code, ignore_errors=True)


def _work(order: AgentOrder, answer: int, code: str) -> None:
    """Be the daemon: say on `answer` "ready" or why not, then work; never returns."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    os.chdir("/")

    def on_ready(problem: str) -> None:
        nonlocal answer
        if answer >= 0:
            os.write(answer, (problem or "ready").encode())
            os.close(answer)
            answer = -1

    try:
        with _removed_at_the_end(code):
            NodeAgent(order, on_ready, code).run()
    except BaseException as error:  # noqa: BLE001 (a daemon has nobody else to tell)
        on_ready(f"the agent failed: {error!r}")
        os._exit(70)
    os._exit(0)


def _report(said: str) -> int:
    if said in ("", "ready"):
        return 0
    sys.stderr.write(f"{said}\n")
    return 1
