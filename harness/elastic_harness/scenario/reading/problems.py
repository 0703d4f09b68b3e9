"""What is wrong with a scenario file, and where: `file:line:column: message`, the line, a caret."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pytest_elastic.errors import UsageError

__all__ = ["Position", "Problem", "ScenarioError"]

_MAX_SHOWN: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """A place in a scenario file. `line` and `column` count from 1; `text` is the whole line."""

    path: str
    line: int
    column: int
    text: str = ""

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column}"

    def excerpt(self) -> str:
        """Return the line with a caret below the column."""
        if not self.text.strip():
            return ""
        caret = "".join("\t" if char == "\t" else " " for char in self.text[: self.column - 1])
        return f"    {self.text}\n    {caret}^"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong. `suggestion` is what was probably meant."""

    at: Position
    message: str
    suggestion: str | None = None

    def __str__(self) -> str:
        hint = f" ({self.suggestion})" if self.suggestion else ""
        excerpt = self.at.excerpt()
        return f"{self.at}: {self.message}{hint}" + (f"\n{excerpt}" if excerpt else "")


class ScenarioError(UsageError):
    """A scenario file says something that cannot be.

    `problems` has everything that was found, in the order of the file; `path`, `line`, `column` and
    `suggestion` are the first one's.
    """

    def __init__(self, problems: Sequence[Problem]) -> None:
        assert problems, "an error has a problem"
        self.problems = tuple(problems)
        first = self.problems[0]
        self.path = first.at.path
        self.line = first.at.line
        self.column = first.at.column
        self.suggestion = first.suggestion
        shown = [str(problem) for problem in self.problems[:_MAX_SHOWN]]
        if (more := len(self.problems) - _MAX_SHOWN) > 0:
            shown.append(f"and {more} more")
        super().__init__("\n".join(shown))
