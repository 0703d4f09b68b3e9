"""How a fault is planted in the machines: a line of one that a change might get wrong."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar
from unittest import mock

from elastic_simulation.random_faults.plan import Options

__all__ = ["Patch", "Planted", "after", "before", "drawn", "nothing", "refuse"]

Patch = tuple[object, str, object]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """One fault: what is wrong, what is replaced by what, and which runs may find it.

    `breaks` is what the judge says then, as a regular expression: nothing else counts as found.
    `guards` are other rules that would catch it, taken away with it: the run that finds the fault
    must find nothing when they alone are missing.
    """

    what: str
    breaks: str
    patches: Sequence[Patch]
    guards: Sequence[Patch] = ()
    options: Options | None = None

    @contextlib.contextmanager
    def planted(self) -> Iterator[None]:
        """Have the fault for a while, and no guard against it."""
        with _replaced((*self.patches, *self.guards)):
            yield

    @contextlib.contextmanager
    def unguarded(self) -> Iterator[None]:
        """Have everything but what guards against the fault for a while."""
        with _replaced(self.guards):
            yield


@contextlib.contextmanager
def _replaced(patches: Sequence[Patch]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for owner, name, value in patches:
            stack.enter_context(mock.patch.object(owner, name, value))
        yield


def drawn(*kinds: str, nodes: int, quorum: str = "majority", is_brisk: bool = True) -> Options:
    """Return runs of a few kinds of faults, all of which may come: what finds a rare thing."""
    return Options(quorum=quorum, nodes=nodes, is_swarm=False, is_brisk=is_brisk, kinds=kinds)


def nothing(*_arguments: object, **_named: object) -> None:
    """Do nothing."""


def refuse(*_arguments: object, **_named: object) -> bool:
    """Say no."""
    return False


def before(method: Callable[..., _T], act: Callable[..., object]) -> Callable[..., _T]:
    """Return a method that does something wrong first."""

    def planted(self: object, *arguments: object, **named: object) -> _T:
        act(self, *arguments, **named)
        return method(self, *arguments, **named)

    return planted


def after(method: Callable[..., _T], act: Callable[..., object]) -> Callable[..., _T]:
    """Return a method that does something wrong afterwards."""

    def planted(self: object, *arguments: object, **named: object) -> _T:
        result = method(self, *arguments, **named)
        act(self, *arguments, **named)
        return result

    return planted
