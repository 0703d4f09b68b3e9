"""Which job a record belongs to, where nodes that have all died begin anew under the same run id.

A coordinator that finds no node of the job before begins with round 1 again (R12.10 of
docs/rendezvous.md), and so do other launchers. That is no second world of a living job: the rounds
of a job are compared with each other only.

**How jobs are told apart.** A launcher *belongs* to a job as soon as it has sealed or was told a
round of it, or as a worker of its node says hello. Another job of the same run id has begun when
all launchers that belong to the one before are dead, by what the harness saw of the processes, and
a launcher that runs names a round that is not higher than all before it. One living launcher, be it
frozen or cut off, is enough for the job to be the same one: then two worlds of one number are for
the checkers to find. And a round that is higher goes on, whichever nodes are left in it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from elastic_harness.history.events import NodeStopped, ProcessExited, ProcessStarted, WorkerHello
from pytest_elastic.events.model import Record, RoundCommitted, RoundSealed

__all__ = ["Jobs"]


@dataclass(slots=True, eq=False)
class _Launcher:
    pid: int
    is_alive: bool = True


@dataclass(slots=True)
class _Job:
    """The newest job of one run id; `members` are the launchers that belong to it."""

    number: int = 1
    highest_round: int = 0
    members: list[_Launcher] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        """Tell whether it had workers, and all of them are dead."""
        return bool(self.members) and not any(each.is_alive for each in self.members)


class Jobs:
    """The reduction: feed it every record of a history, in order."""

    def __init__(self) -> None:
        self._newest: dict[str, _Launcher] = {}
        self._jobs: dict[str, _Job] = {}
        self._by_incarnation: dict[tuple[str, str], int] = {}
        self._later: dict[int, int] = {}  # the job of each record that is not of the first
        self._seq = 0

    def of(self, seq: int) -> int:
        """Return the number, from 1 for each run id, of the job that a record belongs to."""
        return self._later.get(seq, 1)

    def observe(self, record: Record) -> int:
        """Take the next record into account; return the number of its job."""
        self._seq += 1
        match record.event:
            case ProcessStarted(role="launcher", pid=pid):
                self._newest[record.node] = _Launcher(pid)
            case ProcessExited(role="launcher", pid=pid):
                launcher = self._newest.get(record.node)
                if launcher is not None and launcher.pid == pid:
                    launcher.is_alive = False
            case NodeStopped():
                if (launcher := self._newest.get(record.node)) is not None:
                    launcher.is_alive = False
            case WorkerHello(run_id=run_id, round=round_):
                self._on_round(record, run_id, round_)
            case RoundSealed(round=round_) | RoundCommitted(round=round_):
                self._on_round(record, record.run_id, round_)
            case _:
                pass
        run_id = record.event.run_id if isinstance(record.event, WorkerHello) else record.run_id
        job = self._jobs.get(run_id)
        current = job.number if job is not None else 1
        number = self._by_incarnation.get((run_id, record.incarnation), current)
        if number > 1:
            self._later[self._seq] = number
        return number

    def _on_round(self, record: Record, run_id: str, round_: int | None) -> None:
        """Let a launcher belong to a job, that of before or another one."""
        job = self._jobs.setdefault(run_id, _Job())
        who = (run_id, record.incarnation)
        if self._by_incarnation.get(who, job.number) != job.number:
            return  # said late, by a launcher of a job before
        launcher = self._newest.get(record.node)
        is_again = round_ is None or round_ <= job.highest_round
        if launcher is not None and launcher.is_alive and is_again and job.is_over:
            job = self._jobs[run_id] = _Job(number=job.number + 1)
        if launcher is not None and launcher not in job.members:
            job.members.append(launcher)
        job.highest_round = max(job.highest_round, round_ or 0)
        if record.incarnation:
            self._by_incarnation[who] = job.number
