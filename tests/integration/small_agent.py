"""An agent that does nothing but pass orders to its keeper and reports to the test.

It is a process of its own, because an agent kills whatever its keeper leaves behind, and because
tests kill agents. `AgentProcess` is the test's side, `python small_agent.py FD SETTINGS` the other.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

from typing_extensions import Self

from pytest_elastic.channel import Channel, JsonObject, listen
from pytest_elastic.loop import Loop
from pytest_elastic.workers import messages
from pytest_elastic.workers.keeper_client import Keeper
from pytest_elastic.workers.messages import KeeperReady, Order, Report
from pytest_elastic.workers.spec import WorkerSpec

R = TypeVar("R")

# A cold import of torch on a machine that does other things too.
PATIENCE_S = 180.0


class AgentProcess:
    """A small agent with a keeper; ends both on leaving the context, whatever happened."""

    def __init__(self, *, warm: bool = True, **settings: object) -> None:
        ours, theirs = socket.socketpair()
        self.loop = Loop()
        self.reports: list[Report] = []
        self.notes: list[JsonObject] = []
        self._channel = Channel(
            self.loop, ours, on_message=self._received, on_closed=lambda _: None
        )
        self.process = subprocess.Popen(
            [
                sys.executable,
                __file__,
                str(theirs.fileno()),
                json.dumps({"warm": warm, "kill_margin_s": 0.2, **settings}),
            ],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        self.keeper_pid = 0

    def __enter__(self) -> Self:
        self.ready = self.wait_for(KeeperReady)
        self.keeper_pid = self.ready.pid
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _tb: TracebackType | None,
    ) -> None:
        self._channel.close()
        try:
            self.process.wait(PATIENCE_S)
        finally:
            self.process.kill()
            self.process.wait()
            if self.keeper_pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.keeper_pid, signal.SIGKILL)
            self.loop.close()

    def send(self, order: Order) -> None:
        """Give the keeper an order."""
        self._channel.send(messages.encode(order))

    def ask(self, **request: object) -> None:
        """Ask the agent itself for something: see `_Agent.received`."""
        self._channel.send(request)

    def wait_for(self, kind: type[R], *, within_s: float = PATIENCE_S) -> R:
        """Return the next report of a kind; those before it stay in `reports`."""
        self.wait_until(lambda: any(isinstance(r, kind) for r in self.reports), within_s=within_s)
        found = next(report for report in self.reports if isinstance(report, kind))
        self.reports.remove(found)
        return found

    def wait_for_note(self, name: str, of: type[R], *, within_s: float = PATIENCE_S) -> R:
        """Return what the agent itself says under a name."""
        self.wait_until(lambda: any(name in note for note in self.notes), within_s=within_s)
        found = next(note[name] for note in self.notes if name in note)
        assert isinstance(found, of), found
        return found

    def wait_until(self, is_so: Callable[[], bool], *, within_s: float = PATIENCE_S) -> None:
        """Serve the loop until something is so; fails after the deadline."""
        deadline = self.loop.now() + within_s
        while not is_so():
            left_s = deadline - self.loop.now()
            assert left_s > 0, f"not within {within_s} s; reports: {self.reports}, {self.notes}"
            # Bounded, because what is waited for may be no message (a process that ends).
            self.loop.run_once(min(left_s, 0.01))

    def _received(self, message: JsonObject, _fds: list[int]) -> None:
        if "kind" not in message:
            self.notes.append(message)
            return
        self.reports.append(messages.decode(message, Report))


def python_worker(
    arguments: Sequence[str],
    *,
    cwd: str,
    local_rank: int = 0,
    environ: Mapping[str, str] | None = None,
    **fields: Any,  # noqa: ANN401 (the other fields of WorkerSpec)
) -> WorkerSpec:
    """Return a worker that runs this interpreter."""
    added = {"OMP_NUM_THREADS": "1", "RANK": str(local_rank)} if environ is None else environ
    return WorkerSpec(
        local_rank=local_rank,
        rank=local_rank,
        command=[sys.executable, *arguments],
        environ={**os.environ, **added},
        cwd=cwd,
        **fields,
    )


class _Agent:
    """The other side."""

    def __init__(self, fd: int, settings: dict[str, Any]) -> None:
        self._loop = Loop()
        self._test = Channel(
            self._loop,
            socket.socket(fileno=fd),
            on_message=self._received,
            on_closed=lambda _: self._end(),
        )
        self._keeper = Keeper(
            self._loop,
            on_report=lambda report: self._test.send(messages.encode(report)),
            on_lost=lambda reason: self._test.send({"lost": reason}),
        )
        self._keeper.start(**settings)
        self._listener: socket.socket | None = None
        self._loop.run()

    def _received(self, message: JsonObject, _fds: list[int]) -> None:
        if "kind" in message:
            self._keeper.send(messages.decode(message, Order))
        elif "keep_listener" in message:
            self._listener = listen("127.0.0.1", 0)
            self._keeper.keep_listener(self._listener, message["keep_listener"])
            self._test.send({"port": self._listener.getsockname()[1]})
        elif "freeze" in message:
            os.kill(os.getpid(), signal.SIGSTOP)

    def _end(self) -> None:
        ended = self._keeper.dismiss()
        os._exit(0 if ended else 1)


if __name__ == "__main__":
    _Agent(int(sys.argv[1]), json.loads(sys.argv[2]))
