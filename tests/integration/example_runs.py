"""Runs of `examples/train.py`, in fresh interpreters or in warm ones.

To import torch and its compiler takes more than all that a short run does besides. A warm worker
cannot be told from `python train.py` (`test_warm_workers.py`), so only runs that are about the
command itself are started as a person would; the bits of both are compared with each other.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pytest_elastic.workers.messages import (
    GroupGone,
    KillGroup,
    StartGroup,
    WorkerEnded,
    WorkersRunning,
)
from pytest_elastic.workers.spec import WorkerSpec
from tests.free_ports import free_port
from tests.integration.small_agent import AgentProcess

__all__ = ["SCRIPT", "Run", "Runs", "warm_agent"]

SCRIPT = Path(__file__).parents[2] / "examples" / "train.py"
_DEADLINE_S = 240.0  # a start is 2 s on a quiet machine
_LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
# The compiler is what torch's optimizers import when the first of them is made.
_PRELOAD = ("torch", "torch._dynamo", "pydoc_data.topics")


def warm_agent() -> AgentProcess:
    """Return an agent whose keeper has imported what the example takes."""
    return AgentProcess(preload=_PRELOAD)


class Run:
    """One process, its lines as they come, and a deadline."""

    def __init__(self, pid: int, reading: int, until_ended: Callable[[], int]) -> None:
        self.pid = pid
        self.lines: list[str] = []
        self._output = os.fdopen(reading)
        self._until_ended = until_ended
        self._deadline = threading.Timer(_DEADLINE_S, self.send, [signal.SIGKILL])
        self._deadline.start()

    def send(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def wait_for_line(self, pattern: str) -> re.Match[str]:
        """Read until a line matches."""
        for line in self._output:
            self.lines.append(line.rstrip())
            if match := re.search(pattern, line):
                return match
        raise AssertionError(f"no line matches {pattern!r} in:\n" + "\n".join(self.lines))

    def wait(self) -> int:
        """Read to the end and return the exit status."""
        self.lines += [line.rstrip() for line in self._output]
        status = self._until_ended()
        self._stop_deadline()
        return status

    @property
    def output(self) -> str:
        """All lines read so far."""
        return "\n".join(self.lines)

    def close(self) -> None:
        """Close what was open to it, which has ended or is ended by others."""
        self._stop_deadline()
        self._output.close()

    def _stop_deadline(self) -> None:
        self._deadline.cancel()
        self._deadline.join()


@dataclass(kw_only=True)
class Runs:
    """Starts runs of the example, and ends those that a failing test left behind.

    `agent` is for warm ones, of which there are those of one start at a time.
    """

    directory: Path
    agent: AgentProcess | None = None
    _fresh: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _all: list[Run] = field(default_factory=list)
    _round: int = 0
    _warm: int = 0  # warm workers of the last start

    def finish(self, *arguments: str) -> Run:
        """Run the example to its end, which has to be a good one; warm."""
        run = self.start(*arguments)
        assert run.wait() == 0, run.output
        return run

    def finish_fresh(self, *arguments: str, launcher: Sequence[str] = ()) -> Run:
        """Run the example to its end, as a person would, or with a launcher before the script."""
        command = [*(launcher or [sys.executable]), str(SCRIPT), *self._arguments(arguments)]
        reading, writing = os.pipe()
        process = subprocess.Popen(
            command, stdout=writing, stderr=writing, cwd=SCRIPT.parents[1], env=_environ()
        )
        os.close(writing)
        self._fresh.append(process)
        run = Run(process.pid, reading, process.wait)
        self._all.append(run)
        assert run.wait() == 0, run.output
        return run

    def start(self, *arguments: str) -> Run:
        """Start the example alone, warm."""
        (run,) = self._start([str(SCRIPT), *self._arguments(arguments)], [{}])
        return run

    def start_ranks(self, count: int, *arguments: str, code: str | None = None) -> list[Run]:
        """Start ranks without a launcher, so that signals reach only those they are sent to; warm.

        With `code`, that is what they run, as `python -c`.
        """
        port = free_port()
        program = ["-c", code] if code else [str(SCRIPT)]
        environs = [
            {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(count),
                "LOCAL_WORLD_SIZE": str(count),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            }
            for rank in range(count)
        ]
        return self._start([*program, *self._arguments(arguments)], environs)

    def end(self) -> None:
        """Kill what still runs, and close what was open to it."""
        if self.agent and self._warm:
            self.agent.send(KillGroup(round=self._round))
            self._wait_until_warm_are_gone(self.agent)
        for process in self._fresh:
            process.kill()
            process.wait()
        for run in self._all:
            run.close()

    def _arguments(self, arguments: Sequence[str]) -> list[str]:
        return [f"--checkpoint-dir={self.directory}", *arguments]

    def _start(self, command: Sequence[str], environs: Sequence[Mapping[str, str]]) -> list[Run]:
        agent = self.agent
        assert agent, "no agent was given for warm runs"
        self._wait_until_warm_are_gone(agent)
        pipes = [os.pipe() for _ in environs]
        workers = [
            WorkerSpec(
                local_rank=rank,
                rank=rank,
                command=[sys.executable, *command],
                environ={**_environ(), **environ},
                cwd=str(SCRIPT.parents[1]),
                stdout=f"/proc/{os.getpid()}/fd/{writing}",
                stderr=f"/proc/{os.getpid()}/fd/{writing}",
            )
            for rank, (environ, (_, writing)) in enumerate(zip(environs, pipes, strict=True))
        ]
        self._round += 1
        self._warm = len(workers)
        agent.send(StartGroup(round=self._round, workers=workers))
        running = agent.wait_for(WorkersRunning)
        for _, writing in pipes:
            os.close(writing)
        runs = [
            Run(pid, reading, lambda rank=rank: _status_of(agent, rank))  # type: ignore[misc]
            for rank, (pid, (reading, _)) in enumerate(zip(running.pids, pipes, strict=True))
        ]
        self._all += runs
        assert running.start == "warm", running.start_reason
        return runs

    def _wait_until_warm_are_gone(self, agent: AgentProcess) -> None:
        if self._warm:
            agent.wait_for(GroupGone)
            agent.reports.clear()
            self._warm = 0


def _environ() -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if k not in _LAUNCHER_VARIABLES}
    return inherited | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def _status_of(agent: AgentProcess, rank: int) -> int:
    def ended() -> list[WorkerEnded]:
        return [r for r in agent.reports if isinstance(r, WorkerEnded) and r.local_rank == rank]

    agent.wait_until(lambda: bool(ended()))
    return ended()[0].exit_code
