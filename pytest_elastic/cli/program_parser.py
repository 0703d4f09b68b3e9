"""A command line that ends with a program and its own arguments, which are not ours to read."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any

__all__ = ["ProgramParser"]

_NUMBER = re.compile(r"-\d*\.?\d+")


class ProgramParser(argparse.ArgumentParser):
    """Reads options up to the first word that is none, the program; all that follows is the rest.

    argparse itself looks at every word, and refuses `train.py --n=3` where `--n` could be short for
    two of our options (before Python 3.12).
    """

    def read(self, words: Sequence[str], *, rest: str) -> argparse.Namespace:
        """Return what `parse_args` does; the argument named `rest` is what follows the program.

        Without a first `--` behind it, as argparse does where none was in front of it.
        """
        end = self._end_of_own(words)
        found = self.parse_args(words[:end])
        is_said = words[end : end + 1] == ["--"] and "--" not in words[:end]
        setattr(found, rest, list(words[end + is_said :]))
        return found

    def _get_option_tuples(self, option_string: str) -> list[Any]:
        """Return the options that a word is short for: one in two spellings is one."""
        found: list[Any] = super()._get_option_tuples(option_string)
        return list({id(each[0]): each for each in found}.values())

    def _end_of_own(self, words: Sequence[str]) -> int:
        """Return where the rest begins: behind the program."""
        is_value = False
        for index, word in enumerate(words):
            if is_value:
                is_value = False
            elif word == "--":
                return index + 2
            elif not word.startswith("-") or word == "-" or _NUMBER.fullmatch(word):
                return index + 1
            else:
                is_value = self._takes_next(word)
        return len(words)

    def _takes_next(self, option: str) -> bool:
        """Tell whether the word behind an option is its value."""
        known = self._option_string_actions
        meant = {known[option]} if option in known else set()
        if not meant and option.startswith("--"):
            meant = {action for name, action in known.items() if name.startswith(option)}
        return len(meant) == 1 and meant.pop().nargs is None
