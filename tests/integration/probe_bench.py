"""An observer and real processes for it to observe."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import pytest
from elastic_harness.cluster.local_reporters import LocalReporters
from elastic_harness.cluster.process_table import row_of
from elastic_harness.history.checkers import bind
from elastic_harness.history.events import WorkerGone
from elastic_harness.history.history import Entry, History
from elastic_harness.history.verdict import Verdict
from elastic_harness.observe.observer import Observer, probe_environ

from pytest_elastic.events.model import Event, Record
from pytest_elastic.loop import Loop
from pytest_elastic.workers.messages import GroupGone, StartGroup, WorkerEnded, WorkersRunning
from pytest_elastic.workers.process_tree import descendants, send_signal
from pytest_elastic.workers.spec import WorkerSpec
from tests.integration.small_agent import AgentProcess

__all__ = ["DEADLINE_S", "WORKER", "Bench", "judge", "run_warm", "warm_agent"]

E = TypeVar("E", bound=Event)

DEADLINE_S = 180.0
WORKER = {
    "RANK": "0",
    "LOCAL_RANK": "0",
    "GROUP_RANK": "0",
    "WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29999",
    "TORCHELASTIC_RUN_ID": "job",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_MAX_RESTARTS": "3",
    "OMP_NUM_THREADS": "1",
}


class Bench:
    """An observer and the processes it observes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.loop = Loop()
        self.history = History()
        self.path = str(folder / "s")
        self.processes: list[subprocess.Popen[str]] = []
        self._observer: Observer | None = None

    @property
    def observer(self) -> Observer:
        """The observer, made when it is first asked for."""
        return self._observer or self.observe()

    def observe(
        self, *, samples: bool = False, hashes: bool = False, hold_s: float = 30.0
    ) -> Observer:
        """Begin to observe with these settings."""
        self._observer = Observer(
            self.loop,
            LocalReporters(self.loop),
            self.path,
            self._record,
            hash_parameters=hashes,
            observe_samples=samples,
            hold_limit_s=hold_s,
        )
        return self._observer

    def _record(self, record: Record) -> None:
        self.history.append(record)

    def environ(self, **more: str) -> dict[str, str]:
        """Return the environment of a worker, with the probe in it."""
        plain = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        return {**probe_environ(self.path, plain), "ELASTIC_NODE": "n1", **WORKER, **more}

    def start(self, script: str, **more: str) -> subprocess.Popen[str]:
        """Start a worker."""
        return self.start_command([sys.executable, self.write(script)], self.environ(**more))

    def start_command(self, command: list[str], environ: dict[str, str]) -> subprocess.Popen[str]:
        """Start anything, once somebody listens."""
        if self._observer is None:
            self.observe()
        process = subprocess.Popen(
            command,
            env=environ,
            cwd=self.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.processes.append(process)
        return process

    def write(self, script: str) -> str:
        """Write a script and return its path."""
        path = self.folder / f"script{len(list(self.folder.glob('*.py')))}.py"
        path.write_text(textwrap.dedent(script))
        return str(path)

    def seen(self, kind: type[E]) -> list[Entry[E]]:
        """Return what was seen so far."""
        return self.history.of_kind(kind)

    def until(self, is_so: Callable[[], object]) -> None:
        """Serve the loop until something is so."""
        deadline = self.loop.now() + DEADLINE_S
        while not is_so():
            assert self.loop.now() < deadline, f"not within {DEADLINE_S} s; {self.told()}"
            self.loop.run_once(0.1)

    def until_all_ended(self) -> list[str]:
        """Wait for every process and return what each printed."""
        self.until(lambda: all(process.poll() is not None for process in self.processes))
        self.until(lambda: not self.observer.stack_sources)
        return [process.communicate(timeout=DEADLINE_S)[0] for process in self.processes]

    def told(self) -> str:
        """Return the history's kinds, for messages."""
        return " ".join(entry.event.kind for entry in self.history)

    def close(self) -> None:
        """End everything, also what a launcher that did not end in time has started."""
        for process in self.processes:
            # Workers of torchrun have sessions of their own, and live on when it is killed.
            below = descendants(process.pid) if process.poll() is None else []
            if process.poll() is None:
                process.kill()
            send_signal(below, signal.SIGKILL)
        for worker in [source.worker for source in self.observer.stack_sources]:
            row = row_of(worker.pid)
            if row is not None and row.start_ticks == worker.start_time:
                send_signal([worker.pid], signal.SIGKILL)
        for process in self.processes:
            process.communicate(timeout=DEADLINE_S)
        self.observer.close()
        self.loop.close()


def warm_agent(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, *, preload: Sequence[str]
) -> AgentProcess:
    """Return an agent whose warm interpreter is one for workers of the bench."""
    environ = bench.environ()
    for name in ("PYTHONPATH", "ELASTIC_PROBE_SOCKET", "ELASTIC_NODE", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, environ[name])
    return AgentProcess(preload=list(preload))


def run_warm(
    bench: Bench,
    agent: AgentProcess,
    command: Sequence[str],
    environ: Mapping[str, str],
    *,
    is_silent: bool = True,
) -> int:
    """Run a worker to its end, which has to be a good one, and silent; return its pid."""
    out = bench.folder / "out"
    out.unlink(missing_ok=True)
    worker = WorkerSpec(
        local_rank=0,
        rank=0,
        command=[sys.executable, *command],
        environ=environ,
        cwd=str(bench.folder),
        stdout=str(out),
        stderr=str(out),
    )
    gone = len(bench.seen(WorkerGone))
    agent.send(StartGroup(round=1, workers=[worker]))
    bench.until(lambda: len(bench.seen(WorkerGone)) > gone)
    running = agent.wait_for(WorkersRunning)
    assert running.start == "warm", running.start_reason
    assert agent.wait_for(WorkerEnded).exit_code == 0, out.read_text()
    agent.wait_for(GroupGone)
    assert not is_silent or out.read_text() == ""
    return running.pids[0]


def judge(history: History, clause: str, value: object = None) -> Verdict:
    """Judge one clause."""
    return bind(clause, value).run(history)
