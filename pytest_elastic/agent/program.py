"""How the program is run in each round: its command line, environment, logs and console."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence

from pytest_elastic.agent.environ import worker_environ
from pytest_elastic.agent.ranks import worker_ranks
from pytest_elastic.config import LaunchConfig, ProgramConfig, fill_in
from pytest_elastic.loop import Loop
from pytest_elastic.rendezvous.model import Assignment
from pytest_elastic.workers.logs import LogDirectory, LogSettings, WorkerLogs, line_prefix
from pytest_elastic.workers.spec import WorkerSpec
from pytest_elastic.workers.tee import Console, Tee, TeeStream, tee_streams

__all__ = ["ProgramPlan", "command_line"]

# What `--run-path` means: the file runs inside an interpreter that was started for something else,
# and, as with torchrun, an exception that it does not catch is recorded in the error file.
_RUN_PATH = (
    "import runpy, sys; del sys.argv[0]; "
    "from torch.distributed.elastic.multiprocessing.errors import record; "
    "record(runpy.run_path)(sys.argv[0], run_name='__main__')"
)


def command_line(program: ProgramConfig, local_rank: int) -> list[str]:
    """Return the command of one worker; `${local_rank}` in its words is filled in."""
    args = [fill_in(arg, local_rank=local_rank) for arg in program.args]
    if program.kind == "binary":
        return [program.target, *args]
    python = [program.python, "-u"]
    target = fill_in(program.target, local_rank=local_rank)
    if program.kind == "module":
        return [*python, "-m", target, *args]
    if program.kind == "run_path":
        return [*python, "-c", _RUN_PATH, target, *args]
    return [*python, target, *args]


class ProgramPlan:
    """The program of a launch (`agent.WorkerPlan`)."""

    def __init__(
        self, config: LaunchConfig, loop: Loop, environ: Mapping[str, str], cwd: str
    ) -> None:
        self._config = config
        self._loop = loop
        self._environ = environ
        self._cwd = cwd
        self._log_settings = LogSettings(
            log_dir=config.log_dir,
            redirects=config.redirects,
            tee=config.tee,
            local_ranks=config.local_ranks_filter,
            stdout_filters=config.stdout_filters,
            stderr_filters=config.stderr_filters,
        )
        self._logs = LogDirectory(self._log_settings, config.run_id)
        self._cpus: Sequence[Sequence[int]] | None = None
        self._error_files: dict[tuple[int, int], str | None] = {}  # of the last round
        self._consoles: tuple[Console, Console] | None = None
        self._streams: list[TeeStream] = []
        self._tee: Tee | None = None

    def bind(self, cpus: Sequence[Sequence[int]]) -> None:
        """Bind the workers to these processors, by local rank."""
        self._cpus = cpus

    def error_file(self, round: int, rank: int) -> str | None:
        """Return where a worker of this node in the last round leaves its error, if it may."""
        return self._error_files.get((round, rank))

    def workers(self, assignment: Assignment) -> Sequence[WorkerSpec]:
        """Return one spec per worker of this node; makes the folders for their logs."""
        ranks = worker_ranks(assignment)
        logs = self._logs.prepare_round(assignment.round, assignment.restart_count, len(ranks))
        program = self._config.program
        self._streams = []
        self._error_files = {}
        specs = []
        for worker, files in zip(ranks, logs, strict=True):
            specs.append(
                WorkerSpec(
                    local_rank=worker.local_rank,
                    rank=worker.rank,
                    command=command_line(program, worker.local_rank),
                    environ=worker_environ(
                        self._environ,
                        assignment,
                        worker,
                        run_id=self._config.run_id,
                        error_file=files.error_file,
                        signals=self._config.signals,
                        virtual_local_rank=self._config.virtual_local_rank,
                    ),
                    cwd=self._cwd,
                    stdout=files.stdout,
                    stderr=files.stderr,
                    error_file=files.error_file,
                    is_python=program.kind != "binary" and program.python == sys.executable,
                    cpus=None if self._cpus is None else self._cpus[worker.local_rank],
                )
            )
            self._error_files[assignment.round, worker.rank] = files.error_file
            self._add_streams(files, worker.rank)
        return specs

    def round_started(self, workers: Sequence[WorkerSpec]) -> None:
        """Begin to show tee'd output."""
        if self._streams:
            self._tee = Tee(self._loop, self._streams)
            self._tee.start()

    def round_ended(self) -> None:
        """Show the rest of tee'd output."""
        if self._tee is not None:
            self._tee.finish()
            self._tee = None

    def close(self) -> None:
        """Take away the folder of logs if nobody asked for one; it holds error files only."""
        self.round_ended()
        config = self._config
        keeps_output = config.redirects != "0" or config.tee != "0"
        if config.log_dir is None and not keeps_output and self._logs.path is not None:
            shutil.rmtree(os.path.dirname(self._logs.path), ignore_errors=True)

    def _add_streams(self, files: WorkerLogs, rank: int) -> None:
        if not (files.tee.stdout or files.tee.stderr):
            return
        if self._consoles is None:
            self._consoles = (Console(self._loop, 1), Console(self._loop, 2))
        prefix = line_prefix(
            self._config.log_line_prefix,
            role=self._config.role,
            rank=rank,
            local_rank=files.local_rank,
        )
        stdout, stderr = self._consoles
        self._streams += tee_streams(
            files, self._log_settings, prefix=prefix, stdout=stdout, stderr=stderr
        )
