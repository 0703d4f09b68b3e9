"""Launchers and pytests that tests start, forked from one interpreter that has imported torch.

A test's launcher would import torch anew for its stores, torchrun for all it does, and a pytest for
its tests on ranks: a second of a processor each, some hundred times. Here a server imports torch
once for each pytest, as a warm cluster's server does, and what it forks is a launcher as any other.
Commands of other kinds, and all where no server runs, are executed.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, TypeAlias

from pytest_elastic.boot.descriptors import close_all_but
from pytest_elastic.boot.role import Program, Role
from pytest_elastic.boot.spawn import command_and_environ
from pytest_elastic.cli.run import LauncherRole

__all__ = ["LAUNCHERS", "PYTEST", "ForkedLauncher", "LaunchServer", "Started", "serving", "start"]

_OURS: Final = [sys.executable, "-m", "pytest_elastic", "run"]
LAUNCHERS: Final = (_OURS, [sys.executable, "-m", "torch.distributed.run"])
PYTEST: Final = [sys.executable, "-m", "pytest"]
# A program that is warm with torch finds what it finds without.
_PRELOADS: Final = frozenset({"", "torch"})
_LONGEST_REQUEST: Final = 1 << 20
# What every Python ignores from its start on.
_PYTHON_IGNORES: Final = (signal.SIGPIPE, signal.SIGXFSZ)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Server:
    control: socket.socket
    environ: Mapping[str, str]  # that it was started with
    commands: Sequence[list[str]]  # how what it forks begins


_server: _Server | None = None


# --- the tests' side ---


@contextlib.contextmanager
def serving(
    commands: Sequence[list[str]] = LAUNCHERS,
    preload: Sequence[str] = ("torch", "pytest_elastic.launch"),
) -> Iterator[None]:
    """Have what `start` is asked for forked, if it begins so, while this is open."""
    global _server  # noqa: PLW0603 (one pytest, one server at a time)
    before = _server
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command, environ = command_and_environ(
        "tests.launch_server:LaunchServer",
        {"control_fd": theirs.fileno()},
        preload=preload,
    )
    process = subprocess.Popen(
        command,
        env=environ,
        cwd=Path(__file__).parents[1],
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
    )
    theirs.close()
    _server = _Server(control=ours, environ=dict(os.environ), commands=commands)
    try:
        yield
    finally:
        _server = before
        ours.close()
        process.wait()


def start(
    words: Sequence[str],
    *,
    cwd: Path,
    environ: Mapping[str, str],
    stderr: int = subprocess.PIPE,
    is_forked: bool = True,
) -> Started:
    """Start a command in a session of its own, with nothing to read, its output in pipes."""
    server = _server if is_forked else None
    if server is None or not _can_be_forked(words, environ, server):
        return subprocess.Popen(
            words,
            cwd=cwd,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,
        )
    request = {"words": list(words), "cwd": str(cwd), "environ": dict(environ)}
    pipes = [os.pipe() for _ in range(2 if stderr == subprocess.STDOUT else 3)]
    (ended, ends), (out, to_out), *rest = pipes
    to_err = rest[0][1] if rest else to_out
    try:
        with open(os.devnull, "rb") as nothing:
            fds = [nothing.fileno(), to_out, to_err, ends]
            socket.send_fds(server.control, [json.dumps(request).encode()], fds)
    finally:
        for _, end in pipes:
            os.close(end)
    return ForkedLauncher(words, ended=ended, stdout=out, stderr=rest[0][0] if rest else None)


def _can_be_forked(words: Sequence[str], environ: Mapping[str, str], server: _Server) -> bool:
    """Tell whether an interpreter of its own would not treat it otherwise."""
    is_served = any(list(words[: len(begin)]) == begin for begin in server.commands)
    for_python = {name for name in (*environ, *server.environ) if name.startswith("PYTHON")}
    is_as_started = all(environ.get(name) == server.environ.get(name) for name in for_python)
    asked = [word.partition("=")[2] for word in words if word.startswith("--preload")]
    is_warm = {environ.get("PET_PRELOAD", ""), *asked} <= _PRELOADS
    return is_served and is_as_started and is_warm


class ForkedLauncher:
    """What `subprocess.Popen` is for a child, for a launcher that the server has forked.

    `ended` is a pipe on which the server says its pid and, when it has ended, its exit code.
    """

    def __init__(
        self, words: Sequence[str], *, ended: int, stdout: int, stderr: int | None
    ) -> None:
        self.args = words
        self.returncode: int | None = None
        self.stdout: IO[bytes] = io.FileIO(stdout)
        self.stderr: IO[bytes] | None = None if stderr is None else io.FileIO(stderr)
        self._ended = os.fdopen(ended, "r", encoding="ascii")
        self.pid = int(self._ended.readline())

    def poll(self) -> int | None:
        """Return the exit code if it has ended: a signal's number below zero, as of a child."""
        if self.returncode is None and _is_readable(self._ended.fileno(), 0.0):
            self.returncode = int(self._ended.readline())
            self._ended.close()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; raises TimeoutExpired."""
        if self.returncode is None and not _is_readable(self._ended.fileno(), timeout):
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        code = self.poll()
        assert code is not None, "the server has said how it ended"
        return code

    def communicate(self, timeout: float | None = None) -> tuple[bytes, bytes]:
        """Read what it prints to its end, then wait for that; raises TimeoutExpired."""
        deadline = None if timeout is None else time.monotonic() + timeout
        streams = [stream for stream in (self.stdout, self.stderr) if stream is not None]
        printed = {stream: bytearray() for stream in streams}
        poll = select.poll()
        for stream in streams:
            if not stream.closed:
                poll.register(stream, select.POLLIN)
        unread = {stream.fileno(): stream for stream in streams if not stream.closed}
        while unread:
            ready = poll.poll(None if deadline is None else _left_s(deadline) * 1000)
            if not ready:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            for fd, _ in ready:
                if data := os.read(fd, 1 << 16):
                    printed[unread[fd]] += data
                else:
                    poll.unregister(fd)
                    unread.pop(fd).close()
        self.wait(None if deadline is None else _left_s(deadline))
        out, *err = (bytes(text) for text in printed.values())
        return out, err[0] if err else b""

    def send_signal(self, number: int) -> None:
        """Signal the launcher, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """End it by SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it by SIGKILL."""
        self.send_signal(signal.SIGKILL)


Started: TypeAlias = "subprocess.Popen[bytes] | ForkedLauncher"


def _left_s(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.0)


def _is_readable(fd: int, timeout_s: float | None) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(None if timeout_s is None else timeout_s * 1000))


# --- the server's side ---


class LaunchServer:
    """A warm interpreter's role: fork what is asked for, and say when that ends."""

    def __init__(self, argument: Mapping[str, Any]) -> None:
        self._control_fd = int(argument["control_fd"])
        self._running: dict[int, tuple[int, int]] = {}  # pid and where to tell, by pidfd

    def run(self) -> Role | Program:
        """Serve; returns in forked children only."""
        poll = select.poll()
        poll.register(self._control_fd, select.POLLIN)
        while True:
            for fd, _ in poll.poll():
                if fd in self._running:
                    poll.unregister(fd)
                    self._tell_end(fd)
                    continue
                with socket.socket(fileno=os.dup(self._control_fd)) as control:
                    text, fds, _, _ = socket.recv_fds(control, _LONGEST_REQUEST, 4)
                if not text:
                    os._exit(0)
                if (pid := os.fork()) == 0:
                    return _become(json.loads(text), fds)
                pidfd = os.pidfd_open(pid)
                self._running[pidfd] = (pid, fds.pop())
                os.write(self._running[pidfd][1], f"{pid}\n".encode())
                for each in fds:
                    os.close(each)
                poll.register(pidfd, select.POLLIN)

    def _tell_end(self, pidfd: int) -> None:
        pid, tell = self._running.pop(pidfd)
        _, status = os.waitpid(pid, 0)
        with contextlib.suppress(BrokenPipeError):
            os.write(tell, f"{os.waitstatus_to_exitcode(status)}\n".encode())
        os.close(tell)
        os.close(pidfd)


def _become(request: Mapping[str, Any], fds: Sequence[int]) -> Role | Program:
    """Be as if executed: its own session, default signals, no descriptors but three."""
    os.setsid()
    for number, fd in enumerate(fds[:3]):
        os.dup2(fd, number)
    close_all_but()
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if signal.getsignal(number) is not signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
    os.chdir(request["cwd"])
    words, environ = request["words"], request["environ"]
    if words[: len(_OURS)] != _OURS:
        return Program(argv=words[1:], environ=environ)
    for number in _PYTHON_IGNORES:
        signal.signal(number, signal.SIG_IGN)
    os.environ.clear()
    os.environ.update(environ)
    tempfile.tempdir = None  # another environment may name another folder
    return LauncherRole(words[1:])
