"""One node's side of the rendezvous: find the coordinator, keep the lease, do what is decided."""

from __future__ import annotations

from pytest_elastic.rendezvous.model import Node, Settings
from pytest_elastic.rendezvous.vocabulary import MemberCommand, MemberInput

__all__ = ["MemberMachine"]


class MemberMachine:
    """Decides for one agent; see `vocabulary` for how it is driven."""

    def __init__(self, *, node: Node, settings: Settings) -> None:
        self.node = node
        self.settings = settings

    def step(self, input: MemberInput, now: float) -> tuple[MemberCommand, ...]:
        """Take one input in; return what is to be done, in order."""
        raise NotImplementedError

    def wake_at(self) -> float | None:
        """Return when `TimePassed` is wanted, or None."""
        raise NotImplementedError
