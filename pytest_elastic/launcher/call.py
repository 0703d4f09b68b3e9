"""`elastic_launch(config, function)(*args)`: a job of functions, and results by rank.

The agent runs in a process of its own: the caller may have threads, handlers and children of
theirs (a notebook, a test, a worker of another job), and keeps them. That process leads a session
of its own, so that Ctrl-C arrives once, through the caller; it is told to leave when the caller
dies, and leaves nothing behind then.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pytest_elastic.agent.console import describe_failure
from pytest_elastic.agent.outcome import Outcome
from pytest_elastic.config import LaunchConfig, ProgramConfig
from pytest_elastic.errors import (
    ElasticError,
    InternalError,
    RendezvousError,
    UsageError,
    WorkerFailed,
)
from pytest_elastic.exit_codes import describe_exit
from pytest_elastic.launcher.node_process import CONFIG_FILE, read_outcome
from pytest_elastic.launcher.settings import as_launch_config
from pytest_elastic.rendezvous.model import Failure
from pytest_elastic.workers.function_worker import pack_call, read_result

__all__ = ["JobFailed", "NodeLeft", "elastic_launch", "launch", "run_node"]

# Beyond what its workers may take to end, when a caller cannot wait for it any longer.
_END_MARGIN_S = 20.0

_NODE = (
    "import sys; from pytest_elastic.launcher.node_process import main; sys.exit(main(sys.argv))"
)


class JobFailed(WorkerFailed):
    """The function or the command failed, and the restart budget is used up.

    `first_failure` is the job's root cause, wherever it happened; None if it is not known.
    """

    def __init__(self, reason: str, first_failure: Failure | None) -> None:
        lines = [reason]
        if first_failure is not None:
            lines.append(f"first failure: {describe_failure(first_failure)}")
            lines += filter(None, (first_failure.message, first_failure.traceback.rstrip()))
        super().__init__("\n".join(lines))
        self.first_failure = first_failure

    def get_first_failure(self) -> tuple[int, Failure]:
        """Return the rank and the failure, as torch's ChildFailedError does; it must be known."""
        assert self.first_failure is not None, "no worker has reported a failure"
        return self.first_failure.rank, self.first_failure


class NodeLeft(ElasticError):
    """This node left the job, because it received the signal `signal`."""

    def __init__(self, number: int) -> None:
        super().__init__(f"the node left the job: it received {signal.Signals(number).name}")
        self.signal = number
        self.exit_code = 128 + number


class elastic_launch:  # noqa: N801 (the name that torch.distributed.launcher gives it)
    """A job of a function, or of a command; called with the arguments of either.

    `config` is what `launch_config` returns, or torch's own LaunchConfig. Every node calls it; the
    call returns what the workers of this node returned, by their rank in the job, when the job has
    succeeded (nothing on a node that was a spare to the end). A command is run without Python
    before it, and returns None.

    Raises JobFailed, NodeLeft (KeyboardInterrupt for Ctrl-C), RendezvousError when the job cannot
    go on, and UsageError when it could not even begin.
    """

    def __init__(self, config: object, entrypoint: Callable[..., Any] | str) -> None:
        self._config = as_launch_config(config)
        self._entrypoint = entrypoint

    def __call__(self, *args: Any) -> Mapping[int, Any]:  # noqa: ANN401 (the function's own)
        """Take part in the job with this node, until it is over."""
        with _folder() as folder:
            program = _program(self._entrypoint, args, folder)
            outcome = _run(replace(self._config, program=program), folder)
            _raise_unless_well(outcome)
            if not callable(self._entrypoint):
                return dict.fromkeys(sorted(outcome.ranks))
            return {
                rank: read_result(folder, outcome.round, rank) for rank in sorted(outcome.ranks)
            }


def launch(config: LaunchConfig) -> int:
    """Take part in a job with this node, as the command would; return the exit code."""
    return run_node(config).exit_code


def run_node(config: LaunchConfig) -> Outcome:
    """Take part in a job with this node, as the command would; return how it ended."""
    with _folder() as folder:
        return _run(config, folder)


def _program(entrypoint: object, args: Sequence[object], folder: str) -> ProgramConfig:
    if callable(entrypoint):
        pack_call(folder, entrypoint, args)
        return ProgramConfig(
            kind="module",
            target="pytest_elastic.workers.function_worker",
            args=(folder,),
            python=sys.executable,
        )
    if not isinstance(entrypoint, str) or not entrypoint:
        raise UsageError(f"cannot launch {entrypoint!r}: expected a function, or a command")
    return ProgramConfig(kind="binary", target=entrypoint, args=tuple(map(str, args)))


@contextlib.contextmanager
def _folder() -> Iterator[str]:
    """A private folder where caller, agent and workers leave things for each other."""
    folder = tempfile.mkdtemp(prefix="pytest_elastic_call_")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(config: LaunchConfig, folder: str) -> Outcome:
    """Run the agent in its process until it ends; signals that mean it are passed on to it."""
    with open(os.path.join(folder, CONFIG_FILE), "wb") as file:
        pickle.dump(config, file)
    command = [sys.executable, "-c", _NODE, folder, str(os.getpid())]
    with subprocess.Popen(command, start_new_session=True) as process:
        try:
            with _passing_on(config.signals, process):
                code = process.wait()
        except BaseException:
            # An exception of a foreign signal handler: our workers must not outlive the call.
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(config.shutdown_timeout_s + _END_MARGIN_S)
            process.kill()
            raise
    outcome = read_outcome(folder)
    if outcome is not None:
        return outcome
    reason = f"the process of the agent {describe_exit(code)}"
    return Outcome(result="lost", reason=reason, exit_code=3)


@contextlib.contextmanager
def _passing_on(signals: Sequence[int], process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Give signals to the agent that come to us; only the main thread hears any."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    old = {
        number: signal.signal(number, lambda received, _: process.send_signal(received))
        for number in signals
    }
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _raise_unless_well(outcome: Outcome) -> None:
    match outcome.result:
        case "succeeded":
            return
        case "failed":
            raise JobFailed(outcome.reason, outcome.first_failure)
        case "drained":
            if outcome.exit_code == 128 + signal.SIGINT:
                raise KeyboardInterrupt
            raise NodeLeft(outcome.exit_code - 128)
        case "refused":
            raise UsageError(outcome.reason)
        case "lost":
            raise RendezvousError(outcome.reason)
        case _:
            raise InternalError(outcome.reason)
