"""How agents are brought to the machines of a Ray cluster: one to each of several Ray nodes.

Ray only starts the agents. They are daemons, which answer pytest by themselves: a raylet that dies
later takes nothing of a run with it. For as long as a cluster lives, its driver keeps a processor
of each machine reserved (a placement group, STRICT_SPREAD), so that Ray's other jobs know of us.

A driver takes seconds to start. The one that has asked the machines what they are also starts the
agents of the first cluster. In between it keeps no processor.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import secrets
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from elastic_harness.cluster.cluster import ClusterError
from elastic_harness.cluster.machines.agent import AgentOrder, AgentStart, line_of
from elastic_harness.cluster.machines.facts import MachineFacts
from elastic_harness.cluster.machines.placement import (
    SURVEY_LIMIT_S,
    CallBack,
    Placement,
)
from elastic_harness.cluster.machines.travel import AGENT
from elastic_harness.cluster.process_table import descendants
from elastic_harness.conversation import Answer, Conversation
from elastic_harness.future import Future, Sleep, Steps, run, wait_for
from pytest_elastic.errors import ElasticError, UsageError
from pytest_elastic.loop import Loop

__all__ = ["RayPlacement"]

_DRIVER: Final = (sys.executable, "-m", "elastic_harness.cluster.machines.ray_driver")
# Ray itself waits for minutes if nothing answers.
_DIAL_LIMIT_S: Final = 5.0
# One that starts a Ray of its own takes 6 s on two busy cores, and as long to end it.
_OPEN_LIMIT_S: Final = 60.0
_CLOSE_LIMIT_S: Final = 20.0
# For so long Ray looks for a raylet on this machine, by default a minute; one that runs is found at
# once. It is also what Ray waits for any answer of its head.
_PATIENCE: Final = {"RAY_gcs_server_request_timeout_seconds": "20"}
# [2026-11-24 15:10:33,538 C 23905 23905] raylet_ipc_client.cc:85: what happened
_NO_RAYLET: Final = re.compile("No node info found|Failed to connect to socket")
_FATAL: Final = re.compile(r"^\[[^\]]+ C \d+ \d+\] \S+ (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class _RayNode:
    """A node of Ray's; `resources` are all that it has, be they free or not."""

    id: str
    address: str
    resources: Mapping[str, float]
    labels: Mapping[str, str]


class RayPlacement(Placement):
    """Places agents by a Ray: the one at `address`, or one of its own ("").

    `count` machines, or all that have a processor (0). Which ones these are is known after
    `survey`, and stays so.
    """

    placing = (True, "by Ray")

    def __init__(self, address: str, *, count: int, call_back: CallBack) -> None:
        super().__init__("ray", (), call_back=call_back, keeps_agents=False)
        self._address = "" if address == "local" else address
        self._count = count
        self._nodes: dict[str, _RayNode] = {}  # by the machine's name
        self._keeps_for_nodes = False
        self._driver: _Driver | None = None
        self._opened: Future[None] | None = None

    @property
    def where(self) -> str:
        """Which Ray it is, in words."""
        return f"the Ray at {self._address}" if self._address else "a Ray of our own"

    @property
    def own_pids(self) -> frozenset[int]:
        if self._driver is None:
            return frozenset()
        pid = self._driver.process.pid
        return frozenset({pid, *(row.pid for row in descendants(pid))})

    @property
    def own_fds(self) -> frozenset[int]:
        return frozenset() if self._driver is None else self._driver.fds

    def addresses(self, machine: str, port: int) -> list[tuple[str, int]]:
        return super().addresses(self._nodes[machine].address, port)

    def room_on(
        self, machine: str, resources: Mapping[str, float], labels: Mapping[str, str]
    ) -> float:
        node = self._nodes[machine]
        if labels.items() - node.labels.items():
            return 0.0
        # One processor is reserved for the agent.
        free = {**node.resources, "CPU": node.resources["CPU"] - 1}
        rooms = (free.get(name, 0.0) // wanted for name, wanted in resources.items())
        return min(rooms, default=float("inf"))

    def reserve(
        self, loop: Loop, machine: str, node: str, resources: Mapping[str, float]
    ) -> Future[None]:
        return run(loop, self._reserve(machine, node, resources))

    def _reserve(self, machine: str, node: str, resources: Mapping[str, float]) -> Steps[None]:
        order = {"key": node, "node": self._nodes[machine].id, "resources": dict(resources)}
        assert self._driver is not None, "it lasts as long as the cluster"
        self._keeps_for_nodes = True
        try:
            yield from self._driver.call("reserve_for", order)
        except ClusterError as error:
            why = f"{self.where} gives {machine} nothing for it: {error.message}"
            raise ClusterError(f"cannot start node '{node}': {why}") from error

    def release(self, loop: Loop) -> Future[None]:
        return run(loop, self._release())

    def _release(self) -> Steps[None]:
        if self._keeps_for_nodes and self._driver is not None:
            self._keeps_for_nodes = False
            # A driver that has ended keeps nothing.
            with contextlib.suppress(ClusterError):
                yield from self._driver.call("release_all", {})

    def place(self, loop: Loop, machine: str, order: AgentOrder) -> Future[None]:
        return run(loop, self._place(loop, machine, order))

    def _place(self, loop: Loop, machine: str, order: AgentOrder) -> Steps[None]:
        given = {"node": self._nodes[machine].id, "given": line_of(order).decode()}
        try:
            yield from self._open(loop)
            assert self._driver is not None, "it was opened"
            answer = yield from self._driver.call("end", given)
            if not answer.fields["is_there"]:
                begun = yield from self._begin(machine, self.start_of_agents("", order.preload))
                if not begun.fields["told"]:
                    raise ClusterError(str(begun.fields["said"]))
                answer = yield from self._driver.call("end", given)
        except ClusterError as error:
            why = f"{self.where}: {error.message}"
            raise ClusterError(f"cannot start an agent on {machine} by {why}") from error
        if answer.fields.get("code"):
            raise ClusterError(f"cannot start an agent on {machine}: {answer.fields['said']}")

    def close(self, loop: Loop) -> Steps[None]:
        driver, self._driver, self._opened = self._driver, None, None
        atexit.unregister(self._dismiss_in)
        if driver is not None:
            yield from driver.close(loop)

    def survey(self, sign: str, preload: Sequence[str]) -> dict[str, MachineFacts | str]:
        self._check_that_somebody_answers()
        loop, is_kept = Loop(), False
        try:
            surveying = run(loop, self._survey(loop, self.start_of_agents(sign, preload)))
            found = wait_for(loop, surveying, within_s=SURVEY_LIMIT_S)
            is_kept = True
        except ElasticError as error:
            raise UsageError(f"cannot use {self.where}: {error.message}") from error
        finally:
            if not is_kept:
                self.dismiss()
            loop.close()
        # Whether there will be a cluster is not known yet.
        atexit.register(self._dismiss_in, os.getpid())
        return found

    def _dismiss_in(self, pid: int) -> None:
        """Do it in the process that has started the driver."""
        if pid == os.getpid():
            self.dismiss()

    def dismiss(self) -> None:
        loop = Loop()
        wait_for(loop, run(loop, self.close(loop)), within_s=2 * _CLOSE_LIMIT_S)
        loop.close()

    def _survey(self, loop: Loop, start: AgentStart) -> Steps[dict[str, MachineFacts | str]]:
        yield from self._open(loop)
        asked = {machine: self._begin(machine, start) for machine in self.machines}
        found: dict[str, MachineFacts | str] = {}
        for machine, asking in asked.items():
            try:
                answer = yield from asking
                found[machine] = _facts_in(answer)
            except ClusterError as error:
                found[machine] = error.message
        assert self._driver is not None, "it was asked"
        yield from self._driver.call("release", {})
        self._driver.pause()
        self._opened = None
        return found

    def _check_that_somebody_answers(self) -> None:
        host, colon, port = self._address.rpartition("//")[2].rpartition(":")
        if not colon or not port.isdecimal():
            return  # "auto", and what only Ray understands
        try:
            socket.create_connection((host.strip("[]"), int(port)), _DIAL_LIMIT_S).close()
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise UsageError(f"cannot use {self.where}: nothing answers there ({why})") from error

    def _open(self, loop: Loop) -> Future[None]:
        """Start a driver unless there is one; many may wait for it."""
        if self._opened is None:
            if self._driver is not None and self._driver.process.poll() is None:
                self._driver.resume(loop)
                self._opened = self._driver.call("reserve", {}).then(lambda _: None)
            else:
                self._opened = run(loop, self._start_driver(loop))
        return self._opened

    def _start_driver(self, loop: Loop) -> Steps[None]:
        if self._driver is not None:  # it has ended by itself
            yield from self._driver.close(loop)
        known = [node.id for node in self._nodes.values()]
        is_own = not self._address
        environ = {"RAY_USAGE_STATS_ENABLED": "0", **_PATIENCE}
        if is_own:
            # Ray would write a token into the user's home, and leave it there.
            environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        driver = self._driver = _Driver(loop, environ)
        opening = {
            "address": self._address,
            "count": self._count,
            # A Ray of our own is another one each time.
            "nodes": [] if is_own else known,
        }
        answer = yield from driver.call("open", opening)
        nodes = [_RayNode(**fields) for fields in answer.fields["nodes"]]
        if known and not is_own:
            return
        addresses = [node.address for node in nodes]
        names = {
            # Several raylets on one machine are several machines to Ray.
            node.address
            if addresses.count(node.address) == 1
            else f"{node.address}/{node.id[:8]}": node
            for node in nodes
        }
        self._nodes = dict(sorted(names.items()))
        self.machines = tuple(self._nodes)

    def _begin(self, machine: str, start: AgentStart) -> Future[Answer]:
        assert self._driver is not None, "a driver is started first"
        fields = {
            "node": self._nodes[machine].id,
            "command": AGENT,
            "environ": start.environ,
            "given": line_of(start).decode(),
        }
        return self._driver.call("begin", fields)


class _Driver:
    """A driver at work; if it ends, what is asked of it fails with what it said at last."""

    def __init__(self, loop: Loop, environ: Mapping[str, str]) -> None:
        self._said_fd = os.memfd_create("ray-driver", os.MFD_CLOEXEC)
        self._last_words = ""
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [*_DRIVER, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=self._said_fd,
                stderr=self._said_fd,
                pass_fds=[theirs.fileno()],
                # Where a `ray.py` of the user would be Ray.
                cwd="/",
                env={**os.environ, **environ},
                start_new_session=True,
            )
        self._socket = ours
        self.resume(loop)

    def resume(self, loop: Loop) -> None:
        """Talk to it in this loop, until `pause`."""
        self._loop = loop
        self._talk = Conversation(loop, self._socket.dup(), on_closed=lambda _: None)

    def pause(self) -> None:
        """Talk to it no more in this loop; nothing that was asked is unanswered."""
        self._talk.close()

    @property
    def fds(self) -> frozenset[int]:
        """The descriptors of this process."""
        return frozenset({self._said_fd, self._socket.fileno(), self._talk.fileno()}) - {-1}

    def call(self, op: str, fields: Mapping[str, Any]) -> Future[Answer]:
        """Ask it for something."""
        return run(self._loop, self._call(op, fields))

    def _call(self, op: str, fields: Mapping[str, Any]) -> Steps[Answer]:
        try:
            return (yield from self._talk.call(op, fields, timeout_s=_OPEN_LIMIT_S))
        except ClusterError as error:
            if not self._talk.is_closed:
                raise ClusterError(_with_advice(error.message)) from error
            yield from self.close(self._loop)
            raise ClusterError(self._last_words) from error

    def close(self, loop: Loop) -> Steps[None]:
        """Let it end its job, and wait for that."""
        self._talk.close()
        with contextlib.suppress(OSError):
            # A process that was forked from this one may have it as well.
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        deadline = loop.now() + _CLOSE_LIMIT_S
        while self.process.poll() is None:
            if loop.now() > deadline:
                self.process.kill()
            yield Sleep(seconds=0.01)
        if self._said_fd >= 0:
            self._last_words = self._find_last_words()
            os.close(self._said_fd)
            self._said_fd = -1

    def _find_last_words(self) -> str:
        """Return why it ended: Ray's fatal line, which a trace of its C++ follows, or the last."""
        text = os.pread(self._said_fd, 1 << 16, 0).decode(errors="replace")
        fatal = _FATAL.search(text)
        if fatal is not None:
            return _with_advice(fatal[1])
        lines = text.strip().splitlines()
        return lines[-1] if lines else f"the driver ended with {self.process.returncode}"


def _with_advice(problem: str) -> str:
    if _NO_RAYLET.search(problem) is None:
        return problem
    return (
        "pytest has to be on a machine of that Ray, where a raylet runs, or to be given "
        f"ray://HOST:10001 ({problem})"
    )


def _facts_in(answer: Answer) -> MachineFacts | str:
    try:
        return MachineFacts.decode(answer.fields["told"])
    except (ValueError, TypeError):
        return str(answer.fields["said"] or answer.fields["told"])
