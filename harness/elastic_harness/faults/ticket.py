"""The answer to an operation that takes a while, for faults, which never wait by themselves."""

from __future__ import annotations

from typing import Generic, TypeVar

from pytest_elastic.errors import ElasticError

__all__ = ["FaultImpossible", "Ticket"]

T = TypeVar("T")


class FaultImpossible(ElasticError):
    """A fault could not be injected, or did not do what it is for."""


class Ticket(Generic[T]):
    """The answer to an operation that takes a while. `settle` fits the cluster's `on_done`."""

    def __init__(self) -> None:
        self._outcome: list[T | ElasticError] = []

    def settle(self, outcome: T | ElasticError) -> None:
        """Give the answer; the first one holds."""
        if not self._outcome:
            self._outcome.append(outcome)

    @property
    def is_settled(self) -> bool:
        """Tell whether the answer is there."""
        return bool(self._outcome)

    def result(self) -> T:
        """Return the answer, or raise it if it is an error; only once it is settled."""
        assert self._outcome, "a ticket is read after it was settled"
        outcome = self._outcome[0]
        if isinstance(outcome, ElasticError):
            raise FaultImpossible(outcome.message) from outcome
        return outcome
