"""What is wrong with a scenario before it runs: a finding says what, where, and what was meant.

Faults and checkers return findings about their own use (`Fault.findings`, `Parameters.findings`);
the reader of a scenario adds the rest, and raises all of them as one `ScenarioError`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pytest_elastic.errors import UsageError

__all__ = ["AstPath", "Finding", "Position", "ScenarioError", "did_you_mean"]

# The way to a part of a document: keys and indices from its top.
AstPath = tuple[str | int, ...]

_MAX_SHOWN: Final = 8
# What other tools call it.
_OTHER_WORDS: Final = {
    "timeout": ("limit", "within", "limit_s"),
    "duration": ("for", "lasting"),
    "max": ("at_most",),
    "node": ("nodes",),
    "workers": ("nproc_per_node", "nproc"),
}


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


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that can never work.

    `path` leads to it, from the value of the fault or checker that returns it, and from the top of
    the scenario elsewhere; `is_key` means the key there rather than its value. `suggestion` is what
    was probably meant. `at` is the place in the file, once that is known.
    """

    message: str
    path: AstPath = ()
    suggestion: str | None = None
    is_key: bool = False
    at: Position | None = None

    def below(self, *path: str | int) -> Finding:
        """Return the same with a path that begins further up."""
        return replace(self, path=(*path, *self.path))

    def __str__(self) -> str:
        hint = f" ({self.suggestion})" if self.suggestion else ""
        excerpt = self.at.excerpt() if self.at else ""
        where = f"{self.at}: " if self.at else ""
        return f"{where}{self.message}{hint}" + (f"\n{excerpt}" if excerpt else "")


class ScenarioError(UsageError):
    """A scenario file says something that cannot be.

    `findings` has everything that was found, in the order of the file; `path`, `line`, `column` and
    `suggestion` are the first one's.
    """

    def __init__(self, findings: Sequence[Finding]) -> None:
        assert findings, "an error has a finding"
        self.findings = tuple(findings)
        first = self.findings[0]
        at = first.at or Position(path="", line=1, column=1)
        self.path, self.line, self.column = at.path, at.line, at.column
        self.suggestion = first.suggestion
        shown = [str(each) for each in self.findings[:_MAX_SHOWN]]
        if (more := len(self.findings) - _MAX_SHOWN) > 0:
            shown.append(f"and {more} more")
        super().__init__("\n".join(shown))


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a hint that names the closest known word, or all of them when none is close."""
    names = sorted(known)
    for other in _OTHER_WORDS.get(word, ()):
        if other in names:
            return f"did you mean {other!r}?"
    for name in names:
        if word.startswith(f"{name}_"):
            return f"did you mean '{name}: {word.removeprefix(f'{name}_')}'?"
        if len(word) > 3 and name.startswith(f"{word}_"):
            return f"did you mean {name!r}?"
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(names) or 'none'}"
