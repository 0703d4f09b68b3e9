"""The program that an agent is: it says what its machine is, waits for its order, and works.

What starts it puts three lines on its standard input: what `travel` needs, how it is to start, and
later its order. In between the agent has answered with one line of JSON on standard output, and
imports what is to be preloaded. If no order comes, standard input ends, and so does the agent.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from typing import Final

import msgspec

from elastic_harness.cluster.machines.agent import AgentOrder, AgentStart, NodeAgent
from elastic_harness.cluster.machines.facts import facts_of_this_machine
from elastic_harness.cluster.server.server_process import sharing_one_interpreter

__all__ = ["main"]

# The connection to pytest may be lost in silence.
_ORDER_LIMIT_S: Final = 600.0


def main(code: str = "") -> int:
    """Become a daemon unless told to stay, and be an agent; 1 if that failed.

    `code` is the folder in which our packages have come, "" where they are installed.
    """
    start = msgspec.json.decode(sys.stdin.readline(), type=AgentStart)
    # Where ssh came from, which is what the address "" stands for.
    caller = (os.environ.get("SSH_CONNECTION", "").split() or ["127.0.0.1"])[0]
    os.environ.clear()
    os.environ.update(start.environ)
    if start.stays:
        said: list[str] = []
        _be_agent(start, caller, code, said.append)
        return _report(said[0] if said else "")
    read, write = os.pipe2(os.O_CLOEXEC)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            _be_daemon(start, caller, code, write)
        os._exit(0)
    os.close(write)
    with open(read, encoding="utf-8") as pipe:
        return _report(pipe.read())


def _be_daemon(start: AgentStart, caller: str, code: str, answer: int) -> None:
    """Be the agent, and say on `answer` why it cannot work, or nothing; never returns."""

    def on_ready(problem: str) -> None:
        nonlocal answer
        if answer >= 0:
            os.write(answer, problem.encode())
            os.close(answer)
            answer = -1

    try:
        _be_agent(start, caller, code, on_ready)
    except BaseException as error:  # noqa: BLE001 (a daemon has no other way to report it)
        on_ready(f"the agent failed: {error!r}")
        os._exit(70)
    os._exit(0)


def _be_agent(start: AgentStart, caller: str, code: str, on_ready: Callable[[str], None]) -> None:
    """Say what this machine is, and work if there is an order; `on_ready` is told how that went."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit("it was told to end"))
    os.chdir("/")
    with _removed_at_the_end(code), sharing_one_interpreter(start.preload):
        sys.stdout.write(json.dumps(asdict(facts_of_this_machine(start.sign))) + "\n")
        sys.stdout.flush()
        is_told, _, _ = select.select([0], [], [], _ORDER_LIMIT_S)
        line = sys.stdin.readline() if is_told else ""
        if line:
            order = msgspec.json.decode(line, type=AgentOrder)
            addresses = [(host or caller, port) for host, port in order.addresses]
            null = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1) if start.stays else (0, 1, 2):
                os.dup2(null, stream)
            NodeAgent(replace(order, addresses=addresses), on_ready, code).run()


@contextlib.contextmanager
def _removed_at_the_end(code: str) -> Iterator[None]:
    try:
        yield
    finally:
        if code:
            shutil.rmtree(code, ignore_errors=True)


def _report(problem: str) -> int:
    if not problem:
        return 0
    sys.stderr.write(f"{problem}\n")
    return 1
