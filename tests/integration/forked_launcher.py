# ruff: noqa: T201 (what it prints is what the test reads)
"""A launcher in a process forked from a warm interpreter, as the harness and `run` make it.

The server forks the launcher, the launcher forks its keeper before anything else, the keeper forks
the workers: every process is a role of one interpreter that imported torch once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from pytest_elastic.boot.role import Program, Role
from pytest_elastic.loop import Loop
from pytest_elastic.workers.keeper_client import AdoptedKeeper, Keeper, fork_keeper
from pytest_elastic.workers.messages import (
    CallStore,
    GroupGone,
    KeeperReady,
    Report,
    StartGroup,
    StoreAnswered,
    WorkersRunning,
)
from pytest_elastic.workers.spec import WorkerSpec


class ServerRole:
    """Forks one launcher and ends with its exit code."""

    def __init__(self, argument: Mapping[str, Any]) -> None:
        self._argument = argument

    def run(self) -> Role | Program:
        """Return in the launcher only."""
        # A descriptor of the server's that nobody below it is to have.
        os.set_inheritable(os.open("/dev/zero", os.O_RDONLY), True)
        pid = os.fork()
        if pid == 0:
            return LauncherRole(self._argument)
        _, status = os.waitpid(pid, 0)
        sys.exit(os.waitstatus_to_exitcode(status))


class LauncherRole:
    """Runs `argument["code"]` in two workers, asks the store service something, and ends."""

    def __init__(self, argument: Mapping[str, Any]) -> None:
        self._code = str(argument["code"])

    def run(self) -> Role | Program:
        """Return in the keeper only."""
        forked = fork_keeper(kill_margin_s=0.2, linger_s=0.0)
        if not isinstance(forked, AdoptedKeeper):
            return forked
        loop = Loop()
        reports: list[Report] = []
        keeper = Keeper(loop, on_report=reports.append, on_lost=lambda _: None)
        keeper.adopt(forked.sock, forked.pid)
        keeper.send(CallStore(id=1, call="open", arguments={"host": "127.0.0.1"}))
        workers = [
            WorkerSpec(
                local_rank=rank,
                rank=rank,
                command=[sys.executable, "-c", self._code],
                environ={**os.environ, "OMP_NUM_THREADS": "1", "RANK": str(rank)},
                cwd=os.getcwd(),
            )
            for rank in range(2)
        ]
        keeper.send(StartGroup(round=1, workers=workers))
        deadline = loop.now() + 60.0
        while not any(isinstance(r, GroupGone) for r in reports) or not any(
            isinstance(r, StoreAnswered) for r in reports
        ):
            assert loop.now() < deadline, reports
            loop.run_once(deadline - loop.now())
        for report in reports:
            match report:
                case KeeperReady():
                    print("keeper", report.cold_reason or "warm")
                case WorkersRunning():
                    print("workers", report.start)
                case StoreAnswered():
                    print("store", report.error or "open")
                case _:
                    pass
        print("dismissed", keeper.dismiss())
        sys.exit("the launcher's last words")
