"""The side of the rendezvous that decides: who is in, when a round is sealed, when the job ends."""

from __future__ import annotations

from pytest_elastic.rendezvous.model import Node, Settings
from pytest_elastic.rendezvous.vocabulary import CoordinatorCommand, CoordinatorInput

__all__ = ["CoordinatorMachine"]


class CoordinatorMachine:
    """Decides for the whole job; see `vocabulary` for how it is driven.

    `node` is the node it runs on, whose member needs no lease; `now` is when it starts.
    """

    def __init__(self, *, settings: Settings, node: Node, term: int, now: float) -> None:
        self.settings = settings
        self.node = node
        self.term = term
        self._started_at = now

    def step(self, input: CoordinatorInput, now: float) -> tuple[CoordinatorCommand, ...]:
        """Take one input in; return what is to be done, in order."""
        raise NotImplementedError

    def wake_at(self) -> float | None:
        """Return when `TimePassed` is wanted, or None."""
        raise NotImplementedError
