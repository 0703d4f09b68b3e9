"""What can go wrong, sorted by whose doing it was.

ElasticError
├── UsageError          you asked for the impossible (exit code 2)
├── WorkerFailed        your program failed (exit code 1)
├── RendezvousError     the nodes could not agree, or the job lost its quorum (exit code 3)
│   └── StoreUnreachable    the rendezvous endpoint did not answer
└── InternalError       our fault: please report it (exit code 70)

A message names the act, the thing, what was found, what was expected and what to try. Details that
a program may want are attributes, so that no program has to parse the text.
"""

from __future__ import annotations

__all__ = [
    "ElasticError",
    "InternalError",
    "RendezvousError",
    "StoreUnreachable",
    "Unavailable",
    "UsageError",
    "WorkerFailed",
]


class ElasticError(Exception):
    """Any error this project raises on purpose.

    `exit_code` is what a command ends with when the error reaches its outermost loop.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\n{self.hint}"


class UsageError(ElasticError):
    """The user asked for something that cannot be had: a wrong option, file or combination."""

    exit_code = 2


class WorkerFailed(ElasticError):
    """The user's program failed, and the restart budget is used up."""

    exit_code = 1


class RendezvousError(ElasticError):
    """The nodes could not form, or could not keep, a round."""

    exit_code = 3


class StoreUnreachable(RendezvousError):
    """The rendezvous endpoint could not be reached, or does not speak the store's protocol."""


class Unavailable(ElasticError):
    """What this machine has does not answer: nothing that another command line would change."""

    exit_code = 3


class InternalError(ElasticError):
    """A promise of our own code was broken."""

    exit_code = 70

    def __init__(self, message: str) -> None:
        super().__init__(message, hint="This is a bug in pytest-elastic: please report it.")
