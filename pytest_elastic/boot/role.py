"""What a warm process may be, one after the other.

A warm interpreter is plain `python` held inside site initialisation by our `sitecustomize`. There
it plays *roles*: cluster server, node, keeper. A role that forks returns, in the child, what the
child is to be; the trampoline `play` runs that next, on a clean stack. So a child never carries its
parents' frames, context managers or `finally` clauses, and the last role of all, a `Program`, is
left to CPython itself, which starts it natively as if it had been named on the command line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pytest_elastic.boot.hidden import Late

__all__ = ["Program", "Role", "play"]


class Role(Protocol):
    """One thing a process can be for a while."""

    def run(self) -> Role | Program:
        """Play the role. Returns only in a forked child, with what the child is to be next.

        The process that ends its role ends by `os._exit` (or raises SystemExit to end normally).
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A command line for CPython to run natively in this process.

    `argv` is everything behind the interpreter: `["train.py", "--steps=3"]`, `["-m", "pkg"]`,
    `["-u", "-c", "print(1)"]`. `environ` replaces the environment, `cwd` the working directory
    (None keeps it). Standard streams are descriptors 0 to 2 as they are when `run` returns. `late`
    is told of variables that it sets after what is preloaded has read them.
    """

    argv: Sequence[str]
    environ: Mapping[str, str]
    cwd: str | None = None
    late: Late | None = None


def play(role: Role | Program) -> Program:
    """Run roles until one of them is a program, and return that."""
    while not isinstance(role, Program):
        role = role.run()
    return role
