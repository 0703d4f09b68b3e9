"""How the program is run in each round: its command line, environment, logs and console."""

from __future__ import annotations

import os
import shutil
import string
import sys
from collections.abc import Mapping, Sequence

from pytest_elastic.agent.environ import worker_environ
from pytest_elastic.agent.ranks import worker_ranks
from pytest_elastic.config import LaunchConfig, ProgramConfig
from pytest_elastic.loop import Loop
from pytest_elastic.rendezvous.model import Assignment
from pytest_elastic.workers.logs import LogDirectory, LogSettings, WorkerLogs, line_prefix
from pytest_elastic.workers.spec import WorkerSpec
from pytest_elastic.workers.tee import Console, Tee, TeeStream

__all__ = ["ProgramPlan", "command_line"]

# What `--run-path` means: the file runs inside an interpreter that was started for something else.
_RUN_PATH = "import runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"


def command_line(program: ProgramConfig, local_rank: int) -> list[str]:
    """Return the command of one worker; `${local_rank}` in its arguments is filled in."""
    args = [
        string.Template(arg).safe_substitute(local_rank=str(local_rank)) for arg in program.args
    ]
    if program.kind == "binary":
        return [program.target, *args]
    python = [program.python, "-u"]
    if program.kind == "module":
        return [*python, "-m", program.target, *args]
    if program.kind == "run_path":
        return [*python, "-c", _RUN_PATH, program.target, *args]
    return [*python, program.target, *args]


class ProgramPlan:
    """The program of a launch (`agent.WorkerPlan`)."""

    def __init__(
        self, config: LaunchConfig, loop: Loop, environ: Mapping[str, str], cwd: str
    ) -> None:
        self._config = config
        self._loop = loop
        self._environ = environ
        self._cwd = cwd
        self._logs = LogDirectory(
            LogSettings(
                log_dir=config.log_dir,
                redirects=config.redirects,
                tee=config.tee,
                local_ranks=config.local_ranks_filter,
            ),
            config.run_id,
        )
        self._consoles: tuple[Console, Console] | None = None
        self._streams: list[TeeStream] = []
        self._tee: Tee | None = None

    def workers(self, assignment: Assignment) -> Sequence[WorkerSpec]:
        """Return one spec per worker of this node; makes the folders for their logs."""
        ranks = worker_ranks(assignment)
        logs = self._logs.prepare_round(assignment.round, assignment.restart_count, len(ranks))
        program = self._config.program
        self._streams = []
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
                    ),
                    cwd=self._cwd,
                    stdout=files.stdout,
                    stderr=files.stderr,
                    error_file=files.error_file,
                    is_python=program.kind != "binary" and program.python == sys.executable,
                )
            )
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
        for is_shown, path, console in (
            (files.tee.stdout, files.stdout, self._consoles[0]),
            (files.tee.stderr, files.stderr, self._consoles[1]),
        ):
            if is_shown and path is not None:
                self._streams.append(TeeStream(path=path, prefix=prefix, console=console))
