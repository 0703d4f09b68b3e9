"""Starting one worker: what happens between the fork and its first instruction.

The child gets its own session, its streams, its processors, and every signal at its default, unless
our parent has us ignore it; it keeps no descriptor of ours. A pipe tells the keeper when that is
done: it ends when the new program begins (by exec, or when the warm child has closed everything),
and carries a sentence if it cannot.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from pytest_elastic.boot.role import Program
from pytest_elastic.workers.spec import WorkerSpec
from pytest_elastic.workers.warm.late_variables import LateVariables

__all__ = ["CANNOT_START", "Worker", "fork_worker"]

# What a shell answers for a program that cannot be run.
CANNOT_START = 127
_END_OF_DESCRIPTORS = 1 << 20


@dataclass(slots=True, kw_only=True)
class Worker:
    """A worker that was to be forked: its process, and the pipe that ends when it has begun."""

    local_rank: int
    pid: int = 0
    begun_fd: int | None = None
    exit_code: int | None = None
    start_error: str = ""


def fork_worker(
    spec: WorkerSpec,
    *,
    libraries: Mapping[str, Container[str]] | None,
    notes_fd: int,
    ignored_signals: Sequence[int],
) -> Worker | Program:
    """Fork a worker. In the parent: what was started. In a warm child: what it is to become.

    `libraries` is what the modules that a warm worker would share have read but by Python; None: it
    is exec'ed, and the child never returns. `notes_fd` is where this process can be written to;
    `ignored_signals` are those that its parent has it ignore, as all its children do.
    """
    begun_fd, telling_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    # A signal for the child must wait until it has its own dispositions, or it would be lost.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
    except OSError:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(begun_fd)
        os.close(telling_fd)
        raise
    if pid == 0:
        return _begin(spec, telling_fd, libraries, notes_fd, ignored_signals)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    os.close(telling_fd)
    return Worker(local_rank=spec.local_rank, pid=pid, begun_fd=begun_fd)


def _begin(
    spec: WorkerSpec,
    telling_fd: int,
    libraries: Mapping[str, Container[str]] | None,
    notes_fd: int,
    ignored_signals: Sequence[int],
) -> Program:
    """Do the child's part; a failure is told through the pipe and ends the child."""
    try:
        os.setsid()
        _take_place(spec)
        if libraries is not None:
            late = LateVariables(
                libraries=libraries,
                execute=partial(_begin_again, spec, ignored_signals),
                notes=f"/proc/{os.getppid()}/fd/{notes_fd}",
            )
            # What is open here is closed, and the signals are unblocked, when it becomes that.
            return Program(argv=tuple(spec.command[1:]), environ=dict(spec.environ), late=late)
        _exec(spec, ignored_signals, telling_fd)
    except BaseException as error:  # noqa: BLE001 (nothing may unwind into the keeper's frames)
        os.write(telling_fd, _sentence(error))
    os._exit(CANNOT_START)


def _begin_again(spec: WorkerSpec, ignored_signals: Sequence[int]) -> None:
    """Make a worker that was warm what it would be if it had been exec'ed; never returns."""
    try:
        _take_place(spec)
        _exec(spec, ignored_signals)
    except BaseException as error:  # noqa: BLE001 (what the program had is gone)
        os.write(2, b"pytest-elastic: cannot begin again: " + _sentence(error) + b"\n")
    os._exit(CANNOT_START)


def _take_place(spec: WorkerSpec) -> None:
    os.chdir(spec.cwd)
    for path, fd in ((spec.stdout, 1), (spec.stderr, 2)):
        if path is not None:
            _redirect(path, fd)
    if spec.cpus is not None:
        os.sched_setaffinity(0, spec.cpus)


def _redirect(path: str, fd: int) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    os.dup2(file, fd, inheritable=True)
    os.close(file)


def _exec(spec: WorkerSpec, ignored_signals: Sequence[int], keep_fd: int = 2) -> None:
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        wanted = signal.SIG_IGN if number in ignored_signals else signal.SIG_DFL
        if signal.getsignal(number) is not wanted:
            signal.signal(number, wanted)
    signal.set_wakeup_fd(-1)
    os.closerange(3, keep_fd)
    os.closerange(keep_fd + 1, _END_OF_DESCRIPTORS)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        os.execvpe(spec.command[0], list(spec.command), dict(spec.environ))
    except FileNotFoundError as error:  # it names the last of the places that were looked at
        raise FileNotFoundError(error.errno, error.strerror, spec.command[0]) from None


def _sentence(error: BaseException) -> bytes:
    named = isinstance(error, OSError) and error.filename
    where = f": {os.fsdecode(named)}" if named else ""
    what = f"{error.strerror}{where}" if isinstance(error, OSError) else repr(error)
    return what.encode(errors="replace")[:4000]
