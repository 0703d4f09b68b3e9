"""Loggers that preloaded modules have made, out of a program's sight until it has their modules.

`logging.config` switches off all loggers that are there but not named, and a fresh interpreter has
torch's only when torch is imported. A logger is the same object afterwards: modules hold it.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging

__all__ = ["HiddenLoggers"]


class HiddenLoggers:
    """Makes loggers for `logging`, which asks for each that it does not know: hidden ones, too."""

    def __init__(self, made_for: Mapping[str, str]) -> None:
        """Hide those that were made for a hidden module; `made_for` tells for which."""
        import logging

        self._logging = logging
        self._manager = manager = logging.root.manager
        # Loggers remember for which levels they are on; hidden ones do not hear of a change.
        logging.disable(manager.disable)
        # New texts lie together: a child writes into those that it gives back.
        self._loggers = {
            name.encode().decode(): logger
            for name, logger in manager.loggerDict.items()
            if isinstance(logger, logging.Logger)
        }
        self._made_for: dict[str, str] = {}
        manager.loggerDict.clear()
        manager.loggerClass = self._make  # type: ignore[assignment]  # it is only called
        for name in list(self._loggers):
            if module := made_for.get(name):
                self._made_for[name] = module
            else:
                logging.getLogger(name)  # which finds its parents anew

    def give_back(self, hidden: Container[str]) -> None:
        """Let the program see what was not made for the modules that are still hidden."""
        for name, module in list(self._made_for.items()):
            if module not in hidden and self._made_for.pop(name, ""):  # else another thread does
                self._logging.getLogger(name)

    def leave(self) -> None:
        """Make no loggers any more: all have been given back."""
        if self._manager.loggerClass == self._make:
            self._manager.loggerClass = None

    def _make(self, name: str) -> logging.Logger:
        return self._loggers.pop(name, None) or self._logging.getLoggerClass()(name)
