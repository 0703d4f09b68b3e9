"""`--logs-specs`: where a user's class for torchrun wants the output of workers.

Such a class is torch's (`torch.distributed.elastic.multiprocessing.LogsSpecs`), found by its entry
point of the group torchrun.logs_specs. A process of its own calls it, because this one does not
import torch; it is asked once in each round.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from pytest_elastic.boot.descriptors import wait_for
from pytest_elastic.errors import UsageError
from pytest_elastic.workers.logs.folders import LogSettings, WorkerLogs

__all__ = ["READY_S", "LogsPlugin", "check_plugin"]

_GROUP = "torchrun.logs_specs"
# Importing torch takes a second, on a busy machine some more.
READY_S = 120.0
# A class makes folders and returns, while the workers of other nodes wait for this one's.
_ANSWER_S = 8.0
_END_S = 2.0


def check_plugin(name: str) -> None:
    """Raise UsageError if no class of that name is installed."""
    from importlib import metadata  # not for nothing in every launch

    known = sorted(found.name for found in metadata.entry_points(group=_GROUP))
    if name not in known:
        raise UsageError(
            f"--logs-specs={name}: there is no entry point of that name in the group {_GROUP} "
            f"(there are: {', '.join(known) or 'none'})"
        )


class LogsPlugin:
    """One object of the user's class, for as long as a launch."""

    def __init__(self, name: str, settings: LogSettings) -> None:
        self._name = name
        wanted = {
            "name": name,
            "log_dir": settings.log_dir,
            "redirects": settings.redirects,
            "tee": settings.tee,
            "local_ranks": list(settings.local_ranks),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"{__name__}_host", json.dumps(wanted)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # A signal from the terminal is the agent's business.
            start_new_session=True,
        )
        self._rest = b""
        self._is_ready = False

    @property
    def pid(self) -> int:
        """The process that holds the object."""
        return self._process.pid

    def wait_until_ready(self) -> None:
        """Block until the class has been loaded; raises UsageError if it cannot be.

        Called on a thread: a class may import for as long as it likes, and signals are heard.
        """
        self._read(READY_S)
        self._is_ready = True

    def place(self, environs: Sequence[Mapping[str, str]]) -> Sequence[WorkerLogs]:
        """Ask where the output of a round's workers goes; raises UsageError if it does not say."""
        assert self._process.stdin is not None, "it was started with a pipe"
        question = json.dumps({rank: dict(environ) for rank, environ in enumerate(environs)})
        try:
            self._process.stdin.write(question.encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise self.failed("its process has ended") from error
        return [WorkerLogs(**worker) for worker in self._read(_ANSWER_S)["workers"]]

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None, "it was started with a pipe"
        assert self._process.stdout is not None, "it was started with a pipe"
        with suppress(OSError):  # what was left to write has no reader any more
            self._process.stdin.close()
        try:
            self._process.wait(_END_S if self._is_ready else 0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(_END_S)
        self._process.stdout.close()

    def _read(self, timeout_s: float) -> dict[str, Any]:
        assert self._process.stdout is not None, "it was started with a pipe"
        fd = self._process.stdout.fileno()
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._rest:
            left_s = max(deadline - time.monotonic(), 0)
            if not wait_for(fd, select.POLLIN, left_s):
                raise self.failed(f"no answer within {timeout_s:g} s")
            data = os.read(fd, 65536)
            if not data:
                raise self.failed("its process has ended")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise self.failed(answer["error"])
        return answer

    def failed(self, why: str) -> UsageError:
        """Return the error that ends the launch."""
        return UsageError(f"--logs-specs={self._name} cannot be used: {why}")
