"""Things that scenarios name: faults, checkers, launchers; ours, and those that users add."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import ClassVar, Generic, Protocol, TypeVar

from elastic_harness.finding import did_you_mean
from pytest_elastic.errors import UsageError

__all__ = ["Registry"]


class _Named(Protocol):
    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=_Named)


class Registry(Generic[T]):
    """Things of one kind by their names, in order of registration."""

    kind: ClassVar[str]

    def __init__(self, known: Iterable[T] = ()) -> None:
        self._known: dict[str, T] = {}
        for each in known:
            self.add(each)

    def __iter__(self) -> Iterator[T]:
        return iter(self._known.values())

    @property
    def names(self) -> tuple[str, ...]:
        """All names, in order of registration."""
        return tuple(self._known)

    def add(self, new: T) -> None:
        """Make it known under its name; raises UsageError if that is taken."""
        if new.name in self._known:
            raise UsageError(f"a {self.kind} is called {new.name!r} already: choose another name")
        self._known[new.name] = new

    def find(self, name: str) -> T:
        """Return what has this name; raises UsageError with what was probably meant."""
        if name not in self._known:
            hint = did_you_mean(name, self.names)
            raise UsageError(f"no {self.kind} is called {name!r}: {hint}")
        return self._known[name]
