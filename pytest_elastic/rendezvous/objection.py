"""What a greeting may show that speaks against going on as coordinator (R11.4, R11.5)."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_elastic.rendezvous.ballot import rank_of
from pytest_elastic.rendezvous.messages import Hello, Seal
from pytest_elastic.rendezvous.model import Settings

__all__ = ["Objection", "objection_in"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Objection:
    """Why a node cannot obey; `promised` a higher term, or of a `newest_round` that is not ours."""

    reason: str
    promised: int | None = None
    newest_round: int = 0


def objection_in(
    hello: Hello, *, settings: Settings, term: int, first_seal: Seal | None
) -> Objection | None:
    """Return what a greeting says against the coordinator of `term`, None for nothing.

    `first_seal` is what it goes on with, as long as nobody knows whether any round was committed:
    another first round may have been formed after it, of which nobody has to be in common with
    those who voted.
    """
    name, number = hello.node.name, hello.sealed_round
    if settings.has_succession and hello.term > term:
        reason = f"{name} has promised to obey term {hello.term}"
        return Objection(reason=reason, promised=hello.term)
    if first_seal is None or hello.sealed_term >= term:
        return None
    if (hello.sealed_term, number) > rank_of(first_seal):
        reason = f"{name} has acknowledged round {number}, and no voter has"
        return Objection(reason=reason, newest_round=number)
    return None
