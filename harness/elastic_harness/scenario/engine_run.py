"""An engine at work: its inputs, one after the other, and its orders carried out.

What all runs have in common, of real nodes and of simulated ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

from typing_extensions import assert_never

from elastic_harness.faults.injector import Injector
from elastic_harness.history.checkers.registry import Registry
from elastic_harness.history.history import History
from elastic_harness.history.judge import judge_checks
from elastic_harness.scenario.engine import messages as m
from elastic_harness.scenario.engine.engine import EngineMachine
from pytest_elastic.events.model import Event

__all__ = ["Breakpoints", "EngineRun"]


class Breakpoints(Protocol):
    """What holds ranks at steps."""

    def arm(self, step: int, rank: int) -> None:
        """Hold a rank when it has completed this step."""

    def disarm(self, step: int, rank: int) -> None:
        """Hold it no more."""

    def release(self, pid: int) -> None:
        """Let a worker go on that is held."""


class EngineRun(ABC):
    """One run, as far as its engine is concerned; its maker sets `_injector`."""

    _injector: Injector

    def __init__(
        self, engine: EngineMachine, history: History, checkers: Registry, breakpoints: Breakpoints
    ) -> None:
        self.engine = engine
        self.history = history
        self._checkers = checkers
        self._breakpoints = breakpoints
        self._holds: dict[str, tuple[int, int]] = {}
        self._inputs: list[m.EngineInput] = []
        self._end: m.EndRun | None = None

    def _tell(self, given: m.EngineInput) -> None:
        """Hand the engine an input, once all orders of the one before have been carried out."""
        self._inputs.append(given)
        if len(self._inputs) > 1:
            return
        while self._inputs:
            for command in self.engine.step(self._inputs[0], self._engine_time()):
                self._perform(command)
            self._inputs.pop(0)

    def _perform(self, command: m.EngineCommand) -> None:
        match command:
            case m.ArmHold(entry_id=entry_id, step=step, rank=rank):
                self._holds[entry_id] = (step, rank)
                self._breakpoints.arm(step, rank)
            case m.DisarmHold(entry_id=entry_id):
                step, rank = self._holds.pop(entry_id)
                if (step, rank) not in self._holds.values():
                    self._breakpoints.disarm(step, rank)
            case m.ReleaseHold(pid=pid):
                self._breakpoints.release(pid)
            case m.HoldWriting() | m.ReleaseWriting():
                self._hold_writing(command)
            case m.Fire():
                self._injector.fire(command)
            case m.Heal():
                self._injector.heal(command)
            case m.Judge(entry_id=entry_id, clauses=clauses):
                bind = self._checkers.bind
                judged = judge_checks(self.history, [bind(c.name, c.expected) for c in clauses])
                verdicts = tuple((each.text, each.verdict) for each in judged)
                self._tell(m.ClausesJudged(entry_id=entry_id, verdicts=verdicts))
            case m.WatchLog():
                self._watch_log(command)
            case m.WakeAt(at=at):
                self._wake_at(at)
            case m.RecordEvent(source=source, node=node, event=event):
                self._on_fact(source, node, event)
            case m.EndRun():
                if self._end is None:
                    self._end = command
                    self._finish(command)
            case _:
                assert_never(command)

    @abstractmethod
    def _engine_time(self) -> float:
        """Return the time for the engine."""

    @abstractmethod
    def _wake_at(self, at: float) -> None:
        """Tell the engine that time has passed at this time, and at no other."""

    @abstractmethod
    def _hold_writing(self, order: m.HoldWriting | m.ReleaseWriting) -> None:
        """Hold processes that write, or let them go on."""

    @abstractmethod
    def _watch_log(self, order: m.WatchLog) -> None:
        """Look for a pattern in what is printed."""

    @abstractmethod
    def _on_fact(self, source: str, node: str, event: Event) -> None:
        """Write an event into the history, and tell the engine."""

    @abstractmethod
    def _finish(self, end: m.EndRun) -> None:
        """End the run: it is said once."""
