"""Faults from the body of a test on ranks: `elastic_chaos.here().kill("rank 3")`.

A rank sends an order to the server, which is the parent of all ranks, and waits for the answer.
`here()` works like a collective: each rank calls it, and the fault takes effect when all of them
have come. `now()` is called by one rank, and takes effect at once.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from pytest_elastic.errors import UsageError

__all__ = ["Order", "RankChaos", "RankFault", "RankTrigger", "SendOrder"]

_Action = Literal["kill", "pause", "heal"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What one rank asks the server to do to others, or to itself.

    `is_shared`: it takes effect when all ranks have sent the same order. `lasting_s` is how long a
    rank is paused, None for as long as nothing heals it.
    """

    action: _Action
    targets: tuple[int, ...]
    is_shared: bool
    signum: int = signal.SIGKILL
    lasting_s: float | None = None

    def __str__(self) -> str:
        return f"{self.action} {', '.join(f'rank {number}' for number in self.targets)}"


# Sends an order and returns what was wrong with it, "" once it has taken effect.
SendOrder = Callable[[Order], str]


@dataclass(frozen=True, slots=True)
class RankFault:
    """A fault that has taken effect."""

    _order: Order
    _send: SendOrder

    def heal(self) -> None:
        """Let the ranks go on that it has paused; twice is harmless, and so is a dead rank."""
        RankTrigger(self._send, is_shared=False).heal(self)

    @property
    def targets(self) -> tuple[int, ...]:
        """The ranks that it has hit."""
        return self._order.targets


class RankTrigger:
    """The moment of a fault: what `elastic_chaos.here()` and `elastic_chaos.now()` return."""

    def __init__(self, send: SendOrder, *, is_shared: bool) -> None:
        self._send = send
        self._is_shared = is_shared

    def kill(self, worker: object, *, signal: str = "SIGKILL") -> RankFault:
        """Kill a rank and return when it has ended; of another signal: when it was delivered."""
        return self._give("kill", worker, signum=_number_of(signal))

    def pause(self, worker: object, *, lasting: str | None = None) -> RankFault:
        """Stop a rank (SIGSTOP) and return when it stands still; healing lets it go on."""
        return self._give("pause", worker, lasting_s=_seconds(lasting))

    def heal(self, fault: RankFault) -> None:
        """Let the ranks go on that a fault has paused."""
        names = [f"rank {number}" for number in fault.targets]
        self._give("heal", names)

    def __getattr__(self, action: str) -> NoReturn:
        if action.startswith("_"):
            raise AttributeError(action)
        raise UsageError(
            f"{action}: a test on ranks knows the faults kill and pause",
            hint="What a rank does to itself is written in the body (`if rank == 3: raise ...`); "
            "faults of nodes, links, disks and clocks need a job: see the fixture elastic_job.",
        )

    def _give(self, action: _Action, worker: object, **more: Any) -> RankFault:  # noqa: ANN401 (fields of Order)
        order = Order(action=action, targets=_ranks_in(worker), is_shared=self._is_shared, **more)
        if wrong := self._send(order):
            from elastic_harness.faults.context import FaultImpossible

            raise FaultImpossible(wrong)
        return RankFault(order, self._send)


class RankChaos:
    """Disturbs the ranks of a test, from the test's body."""

    def __init__(self, send: SendOrder) -> None:
        self._send = send

    def here(self) -> RankTrigger:
        """Choose this line: every rank calls it, and the fault waits until all have come.

        Ranks that have ended or are paused are not waited for.
        """
        return RankTrigger(self._send, is_shared=True)

    def now(self) -> RankTrigger:
        """Choose this moment, from one rank: `if rank == 0: elastic_chaos.now().pause("rank 1")`.

        The other ranks may be anywhere, in the middle of a collective too.
        """
        return RankTrigger(self._send, is_shared=False)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        raise UsageError(
            f"elastic_chaos.{name}: a test on ranks says when by here() or now(), as in "
            "elastic_chaos.here().kill('rank 3'); steps and times are those of a job (elastic_job)"
        )


def _ranks_in(worker: object) -> tuple[int, ...]:
    from elastic_harness.scenario.selectors import parse_selector  # pytest itself imports this file

    selector = parse_selector(worker)
    if selector.exclude or any(term.kind != "rank" for term in selector.terms):
        raise UsageError(f"`{selector}`: a test on ranks has no nodes; write 'rank 3', or a list")
    return tuple(sorted({term.number for term in selector.terms}))


def _number_of(name: str) -> int:
    try:
        return signal.Signals[name]
    except KeyError:
        raise UsageError(f"{name!r} is not a signal: write for example SIGTERM") from None


def _seconds(lasting: str | None) -> float | None:
    from elastic_harness.scenario.fields import parse_duration

    try:
        return None if lasting is None else parse_duration(lasting)
    except ValueError as error:
        raise UsageError(f"lasting: {error}") from None
