"""Options of pytest's command line of which a shell completes the values."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["Offering"]


class Offering(argparse.Action):
    """An option that takes any text; `offered` are the values that a shell completes."""

    def __init__(
        self,
        option_strings: list[str],
        dest: str,
        *,
        offered: Callable[[], Iterable[str]],
        **of_every_option: Any,  # noqa: ANN401 (argparse's)
    ) -> None:
        super().__init__(option_strings, dest, **of_every_option)
        self._offered = offered

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        """Store it."""
        setattr(namespace, self.dest, values)

    def completer(self, prefix: str, **_: object) -> list[str]:
        """Return what could be meant; argcomplete asks for it by this name."""
        return [value for value in self._offered() if value.startswith(prefix)]
