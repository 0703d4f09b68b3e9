"""A command here that runs an agent on another machine: what it is given, and what it says."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from typing import Final

from elastic_harness.cluster.machines.facts import MachineFacts

__all__ = ["AgentCommand"]

_QUOTED_LINES: Final = 10
# A command that was killed, or is given no order, has nothing more to do.
_END_LIMIT_S: Final = 5.0


class AgentCommand:
    """A command at work. It reads what is `given` and nothing else, or first what it is asked with.

    Raises OSError if it cannot be run.
    """

    def __init__(self, argv: Sequence[str], given: bytes | None = None) -> None:
        self._said_fd = os.memfd_create("agent-command", os.MFD_CLOEXEC)
        given_fd = subprocess.PIPE
        if given is not None:
            # A file, and not a pipe: a command that reads nothing must not block us.
            given_fd = os.memfd_create("agent-order", os.MFD_CLOEXEC)
            os.write(given_fd, given)
            os.lseek(given_fd, 0, os.SEEK_SET)
        try:
            self.process = subprocess.Popen(
                argv,
                stdin=given_fd,
                stdout=subprocess.PIPE if given is None else subprocess.DEVNULL,
                stderr=self._said_fd,
                start_new_session=True,
            )
        except OSError:
            os.close(self._said_fd)
            raise
        finally:
            if given_fd >= 0:
                os.close(given_fd)
        self.pidfd = os.pidfd_open(self.process.pid)
        self.facts: MachineFacts | None = None
        self._thread: threading.Thread | None = None

    @property
    def fds(self) -> tuple[int, ...]:
        """The descriptors of this process."""
        pipes = (pipe for pipe in (self.process.stdin, self.process.stdout) if pipe is not None)
        open_pipes = (pipe.fileno() for pipe in pipes if not pipe.closed)
        return (self._said_fd, self.pidfd, *open_pipes)

    def ask(self, given: bytes) -> None:
        """Have it told this in another thread, which waits for the `facts` that it answers with."""
        self._thread = threading.Thread(target=self._ask, args=(given,), daemon=True)
        self._thread.start()

    def _ask(self, given: bytes) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # what it has said is why
            self.process.stdin.write(given)
            self.process.stdin.flush()
        for line in self.process.stdout:
            # What a login script prints comes before.
            with contextlib.suppress(ValueError, TypeError):
                self.facts = MachineFacts.decode(line.decode())
                return

    def wait_for_answer(self, limit_s: float, *, since: float) -> str:
        """Wait for the `facts`, or for the end of the command; returns why there is no answer.

        `limit_s` counts from `since`, in `time.monotonic`.
        """
        assert self._thread is not None, "it was asked"
        self._thread.join(max(0.0, since + limit_s - time.monotonic()))
        if self.facts is not None:
            return ""
        late = f"no answer within {limit_s:g} s" if self._thread.is_alive() else ""
        if late:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self._thread.join(_END_LIMIT_S)
            if self._thread.is_alive():
                return late  # something else holds its pipes, which cannot be closed then
        code, said = self.finish()
        return late or said or f"the command ended with {code} and told nothing"

    def give(self, order: bytes) -> bool:
        """Give it its order, which is all that it waited for; False if it has ended."""
        assert self.process.stdin is not None, "it was asked"
        if self.process.poll() is not None:
            return False
        try:
            self.process.stdin.write(order)
            self.process.stdin.close()
        except OSError:
            return False
        return True

    def dismiss(self) -> None:
        """Give it no order."""
        assert self.process.stdin is not None, "it was asked"
        with contextlib.suppress(OSError):
            self.process.stdin.close()

    def finish(self) -> tuple[int, str]:
        """Wait for the end; returns the exit code, and the last lines of errors."""
        try:
            code = self.process.wait(_END_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        text = os.pread(self._said_fd, 1 << 16, 0).decode(errors="replace").strip()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        for fd in (self._said_fd, self.pidfd):
            os.close(fd)
        return code, "\n".join(text.splitlines()[-_QUOTED_LINES:])
