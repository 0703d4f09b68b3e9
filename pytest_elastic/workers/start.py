"""Starting one worker: what happens between the fork and its first instruction.

The child gets its own session, its streams, its processors, and every signal at its default; it
keeps no descriptor of ours. A pipe tells the keeper when that is done: it ends when the new program
begins (by exec, or when the warm child has closed everything), and carries a sentence if it cannot.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

from pytest_elastic.boot.role import Program
from pytest_elastic.workers.spec import WorkerSpec

__all__ = ["Started", "fork_worker"]

# What a shell answers for a program that cannot be run.
_CANNOT_START = 127
_END_OF_DESCRIPTORS = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A forked worker: its process, and the pipe that ends when it has begun."""

    pid: int
    begun_fd: int


def fork_worker(spec: WorkerSpec, *, warm: bool) -> Started | Program:
    """Fork a worker. In the parent: what was started. In a warm child: what it is to become.

    An exec'ed child never returns.
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
        return _begin(spec, telling_fd, warm=warm)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    os.close(telling_fd)
    return Started(pid=pid, begun_fd=begun_fd)


def _begin(spec: WorkerSpec, telling_fd: int, *, warm: bool) -> Program:
    """Do the child's part; a failure is told through the pipe and ends the child."""
    try:
        os.setsid()
        os.chdir(spec.cwd)
        for path, fd in ((spec.stdout, 1), (spec.stderr, 2)):
            if path is not None:
                _redirect(path, fd)
        if spec.cpus is not None:
            os.sched_setaffinity(0, spec.cpus)
        if warm:
            # What is open here is closed, and the signals are unblocked, when it becomes that.
            return Program(argv=tuple(spec.command[1:]), environ=dict(spec.environ))
        _exec(spec, telling_fd)
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        _tell(telling_fd, f"{error.strerror}{where}")
    except BaseException as error:  # noqa: BLE001 (nothing may unwind into the keeper's frames)
        _tell(telling_fd, repr(error))
    os._exit(_CANNOT_START)


def _redirect(path: str, fd: int) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    os.dup2(file, fd, inheritable=True)
    os.close(file)


def _exec(spec: WorkerSpec, telling_fd: int) -> None:
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if signal.getsignal(number) is not signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    os.closerange(3, telling_fd)
    os.closerange(telling_fd + 1, _END_OF_DESCRIPTORS)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.execvpe(spec.command[0], list(spec.command), dict(spec.environ))


def _tell(fd: int, sentence: str) -> None:
    os.write(fd, sentence.encode(errors="replace")[:4000])
