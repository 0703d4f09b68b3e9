"""The values of all options, merged: command line over environment over default.

Each is text, and remembers where it came from, so that an error message about it names what the
user wrote.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from pytest_elastic.cli.option_table import OPTIONS, Option
from pytest_elastic.config import name_as_given
from pytest_elastic.errors import UsageError

__all__ = ["Values", "merge"]

# More nodes, restarts or ranks than any user means.
_MAX_NUMBER = 999_999_999


@dataclass(frozen=True, slots=True)
class Values:
    """The merged values of all options, as text, and their origins."""

    by_dest: Mapping[str, str | None]
    origins: Mapping[str, str]

    def text(self, dest: str) -> str:
        value = self.by_dest[dest]
        assert value is not None, f"option {dest} has neither value nor default"
        return value

    def optional(self, dest: str) -> str | None:
        return self.by_dest[dest]

    def is_set(self, dest: str) -> bool:
        return self.by_dest[dest] == "1"

    def number(self, dest: str) -> int:
        text = self.text(dest)
        try:
            number = int(text)
        except ValueError:
            number = -1
        if not 0 <= number <= _MAX_NUMBER:
            raise UsageError(f"{self.name(dest)}={text}: expected a whole number of at least 0")
        return number

    def label(self, dest: str) -> str:
        """Return a name that goes into variables, folders and lines of a log."""
        text = self.text(dest)
        if not text.isprintable():
            raise UsageError(
                f"{self.name(dest)}={text!r}: expected a name in one line, of characters that can "
                "be printed"
            )
        return text

    def name(self, dest: str) -> str:
        """Return what the user wrote to give the value: the option or the variable."""
        return name_as_given(dest, self.origins)

    @contextmanager
    def blamed(self, dest: str) -> Iterator[None]:
        """Have error messages about an option name what the user wrote."""
        try:
            yield
        except UsageError as error:
            raise UsageError(self.as_given(dest, error.message), hint=error.hint) from error

    def as_given(self, dest: str, message: str) -> str:
        """Return a message about an option with the name by which the user gave it."""
        return message.replace("--" + dest.replace("_", "-"), self.name(dest), 1)


def merge(arguments: argparse.Namespace, environ: Mapping[str, str]) -> Values:
    """Return the values of a parsed command line, of `PET_` variables, and of the table."""
    by_dest: dict[str, str | None] = {}
    origins: dict[str, str] = {}
    for option in OPTIONS:
        given = getattr(arguments, option.dest)
        variable = environ.get(option.variable)
        if isinstance(given, list):
            # argparse's reading of `--option=--`.
            raise UsageError(f"{option.flags[-1]}=-- has no value: expected {option.metavar}")
        if given is not None:
            by_dest[option.dest] = "1" if given is True else given
            origins[option.dest] = "command line"
        elif variable is not None:
            by_dest[option.dest] = _from_variable(option, variable)
            origins[option.dest] = f"environment {option.variable}"
        else:
            by_dest[option.dest] = option.default
            origins[option.dest] = "default"
    return Values(by_dest, origins)


def _from_variable(option: Option, text: str) -> str:
    if option.is_flag:
        if not re.fullmatch(r"\s*\d{1,9}\s*", text):
            raise UsageError(f"{option.variable}={text}: expected 0 or 1")
        return "1" if int(text) else "0"
    if option.choices and text not in option.choices:
        raise UsageError(f"{option.variable}={text}: expected one of {', '.join(option.choices)}")
    return text
