"""How the program is run in each round: its command line, environment, logs and console."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from pytest_elastic.agent.environ import worker_environ
from pytest_elastic.agent.ranks import WorkerRanks, worker_ranks
from pytest_elastic.config import LaunchConfig, ProgramConfig, fill_in
from pytest_elastic.file_thread import FileThread
from pytest_elastic.loop import Loop
from pytest_elastic.printed import printable
from pytest_elastic.rendezvous.model import Assignment
from pytest_elastic.workers.file_timer import make_file_timer
from pytest_elastic.workers.logs.console import Console
from pytest_elastic.workers.logs.folders import LogDirectory, LogSettings, WorkerLogs, line_prefix
from pytest_elastic.workers.logs.plugin import READY_S, LogsPlugin
from pytest_elastic.workers.logs.tee import Tee, TeeStream, tee_streams
from pytest_elastic.workers.spec import WorkerSpec
from pytest_elastic.workers.store import registry_file
from pytest_elastic.workers.store.name_lookup import name_or_address

__all__ = ["PlannedRound", "ProgramPlan", "command_line", "runs_our_python"]

# How long the name of the store's host is looked up, while the round waits for its workers.
_LOOK_UP_S = 3.0
# What `--run-path` means: the file runs inside an interpreter that was started for something else,
# and, as with torchrun, an exception that it does not catch is recorded in the error file.
_RUN_PATH = (
    "import runpy, sys; del sys.argv[0]; "
    "from torch.distributed.elastic.multiprocessing.errors import record; "
    "record(runpy.run_path)(sys.argv[0], run_name='__main__')"
)
# What the files may take to make that all rounds need.
_OPEN_S = 10.0
# How long the end of a launch waits until its own folder is gone.
_REMOVE_S = 3.0


def runs_our_python(program: ProgramConfig) -> bool:
    """Tell whether workers are programs of the interpreter that this is, which may be warm."""
    return program.kind != "binary" and program.python == sys.executable


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


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRound:
    """How this node's workers run in one round, and which of their output is shown."""

    round: int
    specs: list[WorkerSpec] = field(default_factory=list)
    streams: list[TeeStream] = field(default_factory=list)


class ProgramPlan:
    """The program of a launch, as its agent runs it in each round."""

    def __init__(
        self,
        config: LaunchConfig,
        loop: Loop,
        environ: Mapping[str, str],
        cwd: str,
        *,
        consoles: tuple[Console, Console],
        say: Callable[[str], None],
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
        self._logs = LogDirectory(self._log_settings, config.run_id, on_problem=self._say_in_loop)
        self._plugin: LogsPlugin | None = None
        self._cpus: Sequence[Sequence[int]] | None = None
        self._error_files: dict[tuple[int, int], str | None] = {}  # of the last round
        self._consoles = consoles
        self._tee: Tee | None = None
        self._say = say
        self._file_timer = make_file_timer(loop, environ, say=say)
        self._refuse: Callable[[str], None] = lambda _: None  # what is being opened now
        loop.enable_thread_wakeup()

    def _say_in_loop(self, text: str) -> None:
        self._loop.call_from_thread(lambda: self._say(text))

    def bind(self, cpus: Sequence[Sequence[int]]) -> None:
        """Bind the workers to these processors, by local rank."""
        self._cpus = cpus

    @property
    def open_limit_s(self) -> float:
        """What `open` may take: a file system that hangs, or a class that imports torch."""
        return _OPEN_S if self._plugin is None else _OPEN_S + READY_S

    def open(self) -> None:
        """Make what all rounds need: the file that nodes meet in, the watchdog's pipe, logs.

        Called on a thread, as that may take for ever. Raises UsageError.
        """
        config = self._config
        if (path := config.registry_file) is not None:
            said = config.said("rdzv_endpoint")
            self._refuse = lambda why: registry_file.refuse(path, why, said=said)
            registry_file.prepare(path, said=said)
        if (timer := self._file_timer) is not None:
            self._refuse = timer.refuse
            timer.open()
        if self._plugin is not None:
            self._plugin.wait_until_ready()
        else:
            said = config.said("log_dir")
            self._refuse = lambda why: self._logs.refuse(why, said=said)
            self._logs.open(said=said)

    def without_opening(self, limit_s: float) -> None:
        """Do without what took too long to make, unless the user asked for it (UsageError).

        `limit_s` is how long that was waited for.
        """
        self._refuse(f"its file system gave no answer within {limit_s:g} s")

    @property
    def plugin_pid(self) -> int:
        """The process of the user's log settings; 0 if there is none."""
        return 0 if self._plugin is None else self._plugin.pid

    def use_plugin(self) -> None:
        """Have the class that `--logs-specs` names place the output; `open` waits until it can."""
        assert self._config.logs_specs is not None, "there is a class to use"
        self._plugin = LogsPlugin(self._config.logs_specs, self._log_settings)

    def error_file(self, round: int, rank: int) -> str | None:
        """Return where a worker of this node in the last round leaves its error, if it may."""
        return self._error_files.get((round, rank))

    def prepare(self, assignment: Assignment) -> PlannedRound:
        """Return how this node's workers run in a round; makes the folders for their logs.

        They find the store by the name that the user gave to its host, if that leads there.
        Called on a thread, as that may take for ever: it changes nothing else of this object.
        """
        store = name_or_address(
            assignment.roster[0].host_name, assignment.store_address, _LOOK_UP_S
        )
        assignment = replace(assignment, store_address=store)
        if self._plugin is not None:
            return self._planned(assignment, self._placed(self._plugin, assignment))
        slots = len(worker_ranks(assignment))
        logs = self._logs.prepare_round(assignment.round, assignment.restart_count, slots)
        return self._planned(assignment, logs)

    def without_files(self, assignment: Assignment) -> PlannedRound:
        """Return how they run with all output on the console; raises UsageError with a plugin."""
        if self._plugin is not None:
            raise self._plugin.failed("it gave no answer")
        self._say(
            f"the folder for logs of round {assignment.round} could not be made in time: is its "
            "file system there? Its output goes to the console"
        )
        return self._planned(assignment, self._logs.without_files(len(worker_ranks(assignment))))

    def _planned(self, assignment: Assignment, logs: Sequence[WorkerLogs]) -> PlannedRound:
        planned = PlannedRound(round=assignment.round)
        for worker, files in zip(worker_ranks(assignment), logs, strict=True):
            environ = self._environ_of(self._environ, assignment, worker, files.error_file)
            planned.streams.extend(
                tee_streams(
                    files,
                    self._log_settings,
                    prefix=self._prefix(worker),
                    consoles=self._consoles,
                )
            )
            planned.specs.append(self._spec(worker, {**environ, **files.environ}, files))
        return planned

    def _environ_of(
        self,
        base: Mapping[str, str],
        assignment: Assignment,
        worker: WorkerRanks,
        error_file: str | None,
    ) -> dict[str, str]:
        environ = worker_environ(
            base,
            assignment,
            worker,
            run_id=self._config.run_id,
            error_file=error_file,
            signals=self._config.signals,
            virtual_local_rank=self._config.virtual_local_rank,
        )
        return environ if self._file_timer is None else {**environ, **self._file_timer.environ}

    def _spec(
        self, worker: WorkerRanks, environ: Mapping[str, str], logs: WorkerLogs
    ) -> WorkerSpec:
        program = self._config.program
        return WorkerSpec(
            local_rank=worker.local_rank,
            rank=worker.rank,
            command=command_line(program, worker.local_rank),
            environ=environ,
            cwd=self._cwd,
            stdout=logs.stdout,
            stderr=logs.stderr,
            error_file=logs.error_file,
            is_python=runs_our_python(program),
            cpus=None if self._cpus is None else self._cpus[worker.local_rank],
        )

    def _placed(self, plugin: LogsPlugin, assignment: Assignment) -> Sequence[WorkerLogs]:
        """Ask the user's class; as torchrun, it is shown what the launcher adds, and no more."""
        added = []
        for worker in worker_ranks(assignment):
            environ = self._environ_of(self._environ, assignment, worker, None)
            names = self._environ_of({}, assignment, worker, None)
            added.append({name: environ[name] for name in names})
        return plugin.place(added)

    def round_started(self, plan: PlannedRound) -> None:
        """Begin to show tee'd output."""
        self._error_files = {(plan.round, spec.rank): spec.error_file for spec in plan.specs}
        self._tee = None
        if plan.streams:
            self._tee = Tee(self._loop, plan.streams)
            self._tee.start()

    def round_ended(self, on_done: Callable[[], None]) -> None:
        """Show the rest of tee'd output, and then call `on_done`."""
        if self._file_timer is not None:
            self._file_timer.forget()
        if self._tee is None:
            on_done()
        else:
            self._tee.finish(on_done)

    @property
    def own_folder(self) -> str | None:
        """The folder of logs, if none was asked for: a temporary one, with error files only."""
        config = self._config
        keeps_output = config.redirects != "0" or config.tee != "0"
        if config.log_dir is not None or keeps_output or self._logs.path is None:
            return None
        return os.path.dirname(self._logs.path)

    def close(self) -> None:
        """Remove the folder of logs if none was asked for; it holds error files only."""
        if self._tee is not None:
            self._tee.close()
        removal = FileThread()
        if self._file_timer is not None:
            self._file_timer.stop()
            removal.do(self._file_timer.remove)
        if self._plugin is not None:
            self._plugin.close()
        if (folder := self.own_folder) is not None:
            removal.do(lambda: shutil.rmtree(folder, ignore_errors=True))
        removal.wait(_REMOVE_S)

    def _prefix(self, worker: WorkerRanks) -> str:
        config = self._config
        return line_prefix(
            config.log_line_prefix,
            role=config.role,
            rank=worker.rank,
            local_rank=worker.local_rank,
            hostname=printable(socket.gethostname()),
        )
