"""How an agent is brought to a machine: by ssh, or by any command that runs another one there.

By Ray: `ray_placement`.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import socket
import string
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from elastic_harness.cluster.cluster import ClusterError
from elastic_harness.cluster.machines.agent import AgentOrder, AgentStart, line_of
from elastic_harness.cluster.machines.agent_command import AgentCommand
from elastic_harness.cluster.machines.facts import MachineFacts
from elastic_harness.cluster.machines.travel import AGENT, code_for_agents
from elastic_harness.cluster.process_table import descendants
from elastic_harness.future import Future, Sleep, Steps, settled
from pytest_elastic.errors import UsageError
from pytest_elastic.loop import Loop

__all__ = [
    "SURVEY_LIMIT_S",
    "CallBack",
    "CommandPlacement",
    "Placement",
    "command_placement",
    "read_machines",
    "ssh_placement",
]

# Ask no questions: no user is there to answer. What the user has configured comes first elsewhere.
_SSH_OPTIONS: Final = (
    *("-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10"),
    # An agent may wait for minutes, and firewalls forget a connection that is silent for so long.
    *("-o", "ServerAliveInterval=15"),
)
SURVEY_LIMIT_S: Final = 60.0
# The agent has answered `close` by then, and has nothing more to do.
_LEAVE_LIMIT_S: Final = 5.0
_NAME: Final = re.compile(r"[A-Za-z0-9_.@:/%\[\]+-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallBack:
    """Where agents call pytest: `host` "" is found out, `port` 0 any."""

    host: str = ""
    port: int = 0

    @classmethod
    def parse(cls, text: str) -> CallBack:
        """Return what HOST or HOST:PORT says; raises UsageError."""
        host, colon, port = text.rpartition(":") if text.count(":") == 1 else (text, "", "0")
        if (colon and not port.isdecimal()) or int(port) > 65535:
            raise UsageError(f"cannot be called at {text!r}: expected HOST or HOST:PORT")
        try:
            found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM) if host else []
        except OSError as error:
            raise UsageError(f"cannot be called at {text!r}: {error.strerror}") from error
        return cls(host=str(found[0][4][0]) if found else "", port=int(port))

    @property
    def is_here(self) -> bool:
        """Tell whether agents call this machine itself, whose other ports they reach then, too."""
        if not self.host:
            return True
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        with socket.socket(family) as probe:
            try:
                probe.bind((self.host, 0))
            except OSError:
                return False
        return True


class Placement(ABC):
    """Brings the agent to machines, whose names are `machines`.

    With `keeps_agents` what has started an agent lasts as long as the agent does. `placing` is the
    capability `placement`, and why.
    """

    placing: ClassVar[tuple[bool, str]] = (
        False,
        "only machines of a Ray have resources and labels",
    )

    def __init__(
        self, kind: str, machines: Sequence[str], *, call_back: CallBack, keeps_agents: bool
    ) -> None:
        self.kind = kind
        self.machines = tuple(machines)
        self.keeps_agents = keeps_agents
        self.call_back = call_back

    @property
    @abstractmethod
    def own_pids(self) -> frozenset[int]:
        """The processes on this machine that belong to agents, and what they have started."""

    @property
    @abstractmethod
    def own_fds(self) -> frozenset[int]:
        """The descriptors of this process that belong to them."""

    @abstractmethod
    def place(self, loop: Loop, machine: str, order: AgentOrder) -> Future[None]:
        """Give the agent there its order; it is the one that waits, or else started now.

        Done when what has started it is, with an error if it failed.
        """

    @abstractmethod
    def close(self, loop: Loop) -> Steps[None]:
        """Wait for what has started agents to end; what does not end is killed."""

    @abstractmethod
    def survey(self, sign: str, preload: Sequence[str]) -> dict[str, MachineFacts | str]:
        """Ask all machines at once what they are; what is no answer is why there is none.

        It is agents that answer. They import `preload`, and wait until they are placed.
        """

    @abstractmethod
    def dismiss(self) -> None:
        """End the agents that wait."""

    def start_of_agents(self, sign: str, preload: Sequence[str]) -> AgentStart:
        """Return how an agent of this placement is to start, now."""
        return AgentStart(
            sign=sign, environ=dict(os.environ), preload=list(preload), stays=self.keeps_agents
        )

    def room_on(
        self, machine: str, resources: Mapping[str, float], labels: Mapping[str, str]
    ) -> float:
        """Return for how many nodes with these needs a machine has room."""
        return 0.0

    def machine_for(
        self, index: int, resources: Mapping[str, float], labels: Mapping[str, str]
    ) -> str:
        """Return the machine of node number `index` (from 1): one after the other has one.

        Of those that have what the node needs, for as long as there is room; raises ClusterError.
        """
        if not (resources or labels):
            return self.machines[(index - 1) % len(self.machines)]
        rooms = {name: self.room_on(name, resources, labels) for name in self.machines}
        before, turn = index - 1, 0
        while having_room := [name for name, room in rooms.items() if room > turn]:
            if before < len(having_room):
                return having_room[before]
            before, turn = before - len(having_room), turn + 1
        needs = [f"{name}: {value:g}" for name, value in resources.items()]
        needs += [f"{name}: {value}" for name, value in labels.items()]
        found = ", ".join(f"{room:g} on {name}" for name, room in rooms.items())
        raise ClusterError(
            f"it needs a machine with {', '.join(needs)}: there is room for "
            f"{sum(rooms.values()):g} such nodes ({found})"
        )

    def reserve(
        self, loop: Loop, machine: str, node: str, resources: Mapping[str, float]
    ) -> Future[None]:
        """Keep resources for a node, until `release`; harmless where they are kept already."""
        return settled(None)

    def release(self, loop: Loop) -> Future[None]:
        """Keep nothing for nodes any more."""
        return settled(None)

    def listen(self) -> socket.socket:
        """Open the socket that agents call; raises ClusterError."""
        port = self.call_back.port
        try:
            if socket.has_dualstack_ipv6():
                return socket.create_server(
                    ("", port), family=socket.AF_INET6, backlog=64, dualstack_ipv6=True
                )
            return socket.create_server(("", port), backlog=64)
        except OSError as error:
            raise ClusterError(f"cannot listen at port {port}: {error.strerror}") from error

    def addresses(self, machine: str, port: int) -> list[tuple[str, int]]:
        """Return where the agent of a machine may reach that port."""
        if self.call_back.host:
            return [(self.call_back.host, port)]
        if self.kind == "ssh":
            return [("", port)]
        return [(host, port) for host in (*_addresses_towards(machine), "127.0.0.1")]


class CommandPlacement(Placement):
    """Runs the agent on machines by a command; see `command_placement` and `ssh_placement`."""

    def __init__(
        self,
        kind: str,
        machines: Sequence[str],
        template: Sequence[str],
        *,
        call_back: CallBack,
        keeps_agents: bool,
    ) -> None:
        super().__init__(kind, machines, call_back=call_back, keeps_agents=keeps_agents)
        self._template = tuple(template)
        self._waiting: dict[str, AgentCommand] = {}
        self._started: dict[str, AgentCommand] = {}

    @property
    def own_pids(self) -> frozenset[int]:
        own = {each.process.pid for each in self._every}
        return frozenset(own | {row.pid for pid in own for row in descendants(pid)})

    @property
    def own_fds(self) -> frozenset[int]:
        return frozenset(fd for each in self._every for fd in each.fds)

    @property
    def _every(self) -> tuple[AgentCommand, ...]:
        return (*self._started.values(), *self._waiting.values())

    def command(self, machine: str) -> list[str]:
        """Return the command that runs the agent on a machine."""
        words: list[str] = []
        for word in self._template:
            if word == "$agent":
                words += AGENT
            else:
                text = string.Template(word)
                words.append(text.substitute(machine=machine, agent=shlex.join(AGENT)))
        return words

    def survey(self, sign: str, preload: Sequence[str]) -> dict[str, MachineFacts | str]:
        began_at = time.monotonic()
        given = code_for_agents() + line_of(self.start_of_agents(sign, preload))
        asked: dict[str, AgentCommand] = {}
        found: dict[str, MachineFacts | str] = {}
        for machine in self.machines:
            try:
                asked[machine] = AgentCommand(self.command(machine))
                asked[machine].ask(given)
            except OSError as error:
                found[machine] = str(error)
        for machine, command in asked.items():
            problem = command.wait_for_answer(SURVEY_LIMIT_S, since=began_at)
            if command.facts is not None:
                self._waiting[machine] = command
            found[machine] = command.facts or problem
        return {machine: found[machine] for machine in self.machines}

    def dismiss(self) -> None:
        waiting, self._waiting = list(self._waiting.values()), {}
        for command in waiting:
            command.dismiss()
        for command in waiting:
            command.finish()

    def place(self, loop: Loop, machine: str, order: AgentOrder) -> Future[None]:
        placed: Future[None] = Future()
        command = self._waiting.pop(machine, None)
        if command is not None and not command.give(line_of(order)):
            command.finish()
            command = None
        try:
            if command is None:
                start = self.start_of_agents("", order.preload)
                given = code_for_agents() + line_of(start) + line_of(order)
                command = AgentCommand(self.command(machine), given)
        except OSError as error:
            placed.settle(ClusterError(f"cannot start an agent on {machine}: {error}"))
            return placed
        self._started[machine] = started = command

        def on_ended() -> None:
            loop.unwatch(started.pidfd)
            code, said = started.finish()
            del self._started[machine]
            if code or self.keeps_agents:
                why = said or f"the command ended with {code}"
                placed.settle(ClusterError(f"cannot start an agent on {machine}: {why}"))
            else:
                placed.settle(None)

        loop.watch(started.pidfd, on_readable=on_ended)
        return placed

    def close(self, loop: Loop) -> Steps[None]:
        self.dismiss()
        deadline = loop.now() + _LEAVE_LIMIT_S
        while self._started and loop.now() < deadline:
            yield Sleep(seconds=0.01)
        for started in tuple(self._started.values()):
            started.process.kill()
        while self._started:
            yield Sleep(seconds=0.01)


def ssh_placement(
    hosts: Sequence[str], *, call_back: CallBack, ssh: str = "ssh"
) -> CommandPlacement:
    """Return a placement by the system's ssh, with its configuration and known hosts."""
    template = (*shlex.split(ssh), *_SSH_OPTIONS, "--", "$machine", "${agent}")
    return CommandPlacement("ssh", hosts, template, call_back=call_back, keeps_agents=False)


def command_placement(text: str, hosts: Sequence[str], *, call_back: CallBack) -> CommandPlacement:
    """Return a placement by a command with $machine and $agent in it; raises UsageError."""
    try:
        template = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"cannot run {text!r}: {error}") from error
    if not template or not any("$agent" in word for word in template):
        raise UsageError(
            f"cannot run {text!r}: it does not say where the agent goes",
            hint="For example: 'command: srun -N1 -n1 -w $machine $agent'",
        )
    try:
        for word in template:
            string.Template(word).substitute(machine="", agent="")
    except (KeyError, ValueError) as error:
        raise UsageError(
            f"cannot run {text!r}: $machine and $agent are all there is ($$: a dollar)"
        ) from error
    return CommandPlacement("command", hosts, template, call_back=call_back, keeps_agents=True)


def read_machines(path: str) -> list[str]:
    """Return the machines in a file, one a line; raises UsageError."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.partition("#")[0].strip() for line in file]
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"cannot read the machines in {path}: {why}") from error
    machines = [line for line in lines if line]
    for number, line in enumerate(lines, start=1):
        if line and (line.startswith("-") or _NAME.fullmatch(line) is None):
            raise UsageError(f"{path}, line {number}: {line!r} is no machine: one name a line")
    if not machines:
        raise UsageError(f"there are no machines in {path}: expected one name a line")
    if len(set(machines)) < len(machines):
        twice = next(each for each in machines if machines.count(each) > 1)
        raise UsageError(f"{path} names {twice} twice: a machine has one agent")
    return machines


def _addresses_towards(machine: str) -> list[str]:
    """Return our address as another machine sees it, if its name is known here."""
    with contextlib.suppress(OSError), socket.socket(type=socket.SOCK_DGRAM) as probe:
        probe.connect((machine, 9))
        return [str(probe.getsockname()[0])]
    return []
