"""What tests of preloaded processes call: a function as console scripts name it, and a role."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence

from pytest_elastic.boot.role import Program


def report(arguments: Sequence[str]) -> int:
    """Print what a program can know of how it was started."""
    print("argv0", sys.argv[0])  # noqa: T201 (it is read by a test)
    print("arguments", *arguments)  # noqa: T201
    print("main", sys.modules["__main__"].__name__, hasattr(sys.modules["__main__"], "__file__"))  # noqa: T201
    print("folder", os.getcwd())  # noqa: T201
    return 7


class Hello:
    """A role that ends as a program."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._arguments = arguments

    def run(self) -> Program:
        """Become a program that prints its name and arguments, if a broken pipe is outlived."""
        reading, writing = os.pipe()
        os.close(reading)
        with contextlib.suppress(BrokenPipeError):
            os.write(writing, b"nobody reads this")
        os.close(writing)
        code = "import sys; print(__name__, *sys.argv[1:])"
        return Program(argv=["-c", code, *self._arguments], environ=dict(os.environ))


def make_role(arguments: Sequence[str]) -> Hello:
    """Return the role for a command line."""
    return Hello(arguments)
