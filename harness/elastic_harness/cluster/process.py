"""Processes on nodes, as values: how each is named, started and seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pytest_elastic.errors import UsageError

__all__ = [
    "PIDS_OF_A_MACHINE",
    "ProcessHandle",
    "ProcessInfo",
    "ProcessRef",
    "ProcessSpec",
    "is_running",
]

# No process of Linux has a number as high as this (PID_MAX_LIMIT). Those of processes on other
# machines are higher: that of their machine, times this, plus their own.
PIDS_OF_A_MACHINE: Final = 1 << 22


def is_running(state: str) -> bool:
    """Tell whether a process in such a state (`ProcessInfo.state`, "" for none) still runs."""
    return state not in ("", "Z", "X")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRef:
    """One process for good: a pid may be given out again, one with its start time may not.

    `pid` is in the process numbers of the cluster's caller. `start_time` is the kernel's, in clock
    ticks since boot; 0 where it is not known.
    """

    node: str
    pid: int
    start_time: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """A process to be started on a node, as a session leader with clean signal dispositions.

    `argv` is the whole command and `environ` the whole environment. `stdout` and `stderr` are files
    to append to (None: nowhere). `logs` is a folder that it and what it starts write into. Wherever
    the node is, these can be read here under the same names, and all of them before the end of the
    process is reported; on this machine they have to lie in a directory that the node shares.

    In a child of the preloaded server, instead of executing `argv`: `preloaded_entry` names a
    "module:function" that takes `argv[1:]` and returns an exit status; `preloaded_role` names one
    that takes them and returns a `pytest_elastic.boot.role.Role`, so that the process can go on
    forking warm programs.
    """

    argv: Sequence[str]
    environ: Mapping[str, str]
    cwd: str
    stdin: str | None = None
    stdout: str | None = None
    stderr: str | None = None
    logs: str | None = None
    preloaded_entry: str | None = None
    preloaded_role: str | None = None

    def __post_init__(self) -> None:
        if not self.argv:
            raise UsageError("cannot start a process without a command")
        named = [name for name in (self.preloaded_entry, self.preloaded_role) if name is not None]
        if len(named) > 1:
            raise UsageError(f"cannot start a process both as {named[0]!r} and as {named[1]!r}")
        for name in named:
            if name.count(":") != 1:
                raise UsageError(f"cannot call {name!r}: 'module:function' is expected")


@dataclass(slots=True, eq=False, kw_only=True)
class ProcessHandle:
    """A process we started; `node_pid` is its number on its node.

    `exit_code` is None while it runs; negative: ended by that signal.
    """

    node: str
    id: int
    pid: int
    node_pid: int
    start_time: int = 0
    exit_code: int | None = None

    @property
    def ref(self) -> ProcessRef:
        """How it is named."""
        return ProcessRef(node=self.node, pid=self.pid, start_time=self.start_time)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessInfo:
    """A process seen on a node.

    `node_pid` and `node_ppid` are numbers on its node; `state` is the letter of /proc/PID/stat.
    `session` is the `pid` of the process that leads its session: what a cluster has started leads
    one.
    """

    node: str
    pid: int
    session: int
    start_time: int
    node_pid: int
    node_ppid: int
    command: tuple[str, ...]
    state: str

    @property
    def ref(self) -> ProcessRef:
        """How it is named."""
        return ProcessRef(node=self.node, pid=self.pid, start_time=self.start_time)
