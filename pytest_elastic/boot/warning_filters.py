"""Filters of warnings that preloaded modules have added, out of force until a program has them.

The newest filter decides. In a fresh interpreter a module's own come when it is imported, before
those that the program has set until then.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, SupportsIndex

__all__ = ["Added", "HiddenFilters", "noted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """A filter, and which module has added it, in front of all others or behind them."""

    module: str
    filter: Any
    is_last: bool


class _Filters(list[Any]):
    """The filters there are; notes those that are added."""

    def __init__(self, filters: Sequence[Any], note: Callable[[Any, bool], None]) -> None:
        super().__init__(filters)
        self._note = note

    def insert(self, index: SupportsIndex, filter: Any) -> None:  # noqa: ANN401 (typeshed's tuples)
        self._note(filter, False)
        super().insert(index, filter)

    def append(self, filter: Any) -> None:  # noqa: ANN401
        self._note(filter, True)
        super().append(filter)


@contextlib.contextmanager
def noted(module: Callable[[], str]) -> Iterator[list[Added]]:
    """Note which filters are added, by the module that is told; none of them is left in force.

    What is added and taken back within `warnings.catch_warnings` is not noted.
    """
    before = list(warnings.filters)
    added: list[Added] = []

    def note(filter: Any, is_last: bool) -> None:  # noqa: ANN401, FBT001
        added.append(Added(module=module(), filter=filter, is_last=is_last))

    warnings.filters = _Filters(before, note)
    try:
        yield added
    finally:
        warnings.filters = before
        _tell_of_change()


class HiddenFilters:
    """Puts the filters of modules in force once a program has these."""

    def __init__(
        self,
        added: Sequence[Added],
        hidden_importer: Callable[[str], str],
        hidden: Container[str],
    ) -> None:
        """Put those in force that were not added for a module that is `hidden`, or part of one."""
        self._waiting = [(hidden_importer(each.module), each) for each in added]
        self.give_back(hidden)

    def give_back(self, hidden: Container[str]) -> None:
        """Put in force what was not added for the modules that are still hidden."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        for module, each in waiting:
            if module and module in hidden:
                self._waiting.append((module, each))
                continue
            filters: list[Any] = warnings.filters  # type: ignore[assignment]
            with contextlib.suppress(ValueError):
                filters.remove(each.filter)
            if each.is_last:
                filters.append(each.filter)
            else:
                filters.insert(0, each.filter)
        _tell_of_change()


def _tell_of_change() -> None:
    """Have warnings looked at anew that were shown once: what filters them may be another."""
    with contextlib.suppress(AttributeError):  # Python 3.14 does it with a lock held
        warnings._filters_mutated()  # type: ignore[attr-defined]  # noqa: SLF001
