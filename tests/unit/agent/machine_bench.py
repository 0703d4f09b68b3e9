"""An agent's machine on a bench: what it is given, when, and what it orders."""

from __future__ import annotations

from collections.abc import Iterable

from pytest_elastic.agent import messages as m
from pytest_elastic.agent.machine import AgentMachine
from pytest_elastic.events import model as events
from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous.model import Assignment, Node
from pytest_elastic.workers import messages as w

__all__ = ["FAILURE_GRACE_S", "GRACE_S", "KILL_TIMEOUT_S", "Bench", "assignment"]

GRACE_S = 30.0
FAILURE_GRACE_S = 3.0
KILL_TIMEOUT_S = 60.0
LEAVE_TIMEOUT_S = 4.0


def assignment(round_: int = 1, slots: int = 2) -> Assignment:
    """Return a round of two nodes, in which the node under test, n1, comes first."""
    return Assignment(
        round=round_,
        term=1,
        roster=(
            Node(name="n1", incarnation="a", address="10.0.0.1", slots=slots),
            Node(name="n2", incarnation="b", address="10.0.0.2", slots=slots),
        ),
        group_rank=0,
        restart_count=0,
        max_restarts=3,
        store_address="10.0.0.1",
        store_port=4000,
    )


class Bench:
    """An agent's machine, its clock, and what it has ordered."""

    def __init__(self) -> None:
        self.now = 100.0
        self.machine = AgentMachine(
            node="n1",
            shutdown_timeout_s=GRACE_S,
            failure_grace_s=FAILURE_GRACE_S,
            kill_timeout_s=KILL_TIMEOUT_S,
            leave_timeout_s=LEAVE_TIMEOUT_S,
        )
        self.orders: list[m.AgentCommand] = []

    def give(self, given: m.AgentInput) -> None:
        self.orders = list(self.machine.step(given, self.now))

    def notice(self, notice: ports.Notice) -> None:
        self.give(notice)

    def exit(self, local_rank: int, code: int, round_: int = 1) -> None:
        self.give(
            m.WorkerExit(round=round_, local_rank=local_rank, pid=100 + local_rank, exit_code=code)
        )

    def succeed(self) -> None:
        """Have all workers of round 1 end well."""
        for local_rank in (0, 1):
            self.exit(local_rank, 0)

    def run_round(self, round_: int = 1) -> None:
        self.notice(ports.StartWorkers(assignment=assignment(round_)))
        self.give(w.WorkersRunning(round=round_, pids=(100, 101), start="warm", start_reason=""))

    def pass_time(self, seconds: float) -> None:
        """Let time pass, waking the machine whenever it asked for it."""
        end = self.now + seconds
        collected: list[m.AgentCommand] = []
        for _ in range(100):
            wake_at = self.machine.wake_at()
            if wake_at is None or wake_at > end:
                break
            self.now = max(wake_at, self.now)
            self.give(m.TimePassed())
            collected += self.orders
        self.now = end
        self.orders = collected

    def asked(self) -> list[ports.Request]:
        return [order for order in self.orders if isinstance(order, ports.Request)]

    def signalled(self) -> list[tuple[int, str]]:
        return [(o.signal, o.to) for o in self.orders if isinstance(o, w.SignalGroup)]

    def facts(self) -> Iterable[events.Event]:
        return [order for order in self.orders if isinstance(order, events.Event)]

    def exits(self) -> list[tuple[int, str]]:
        return [(o.code, o.result) for o in self.orders if isinstance(o, m.Exit)]

    def stuck(self) -> list[tuple[int, ...]]:
        return [tuple(o.stuck) for o in self.orders if isinstance(o, m.Exit)]

    def has_killed(self) -> bool:
        return any(isinstance(order, w.KillGroup) for order in self.orders)
