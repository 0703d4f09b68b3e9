"""Where a job's coordinator is written down, so that nodes find it; and who says which it is.

A registry is what the backends differ in: a store that one node hosts at the endpoint
(`endpoint_registry`), or a key that names one node at a time (`backends.granted_registry`: in etcd,
in a file). Everything else about a rendezvous is the same, and is the driver's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.heritage import Heritage
from pytest_elastic.rendezvous.mandate import Mandate
from pytest_elastic.rendezvous.mark import Mark
from pytest_elastic.rendezvous.member import MemberMachine
from pytest_elastic.rendezvous.messages import Place
from pytest_elastic.rendezvous.model import Node, RosterEntry

__all__ = ["NodeSide", "Registry"]


class NodeSide(Protocol):
    """What a registry may ask of the driver of its node; from inside the loop only."""

    @property
    def node(self) -> Node:
        """The node; where it is may change until it has joined, see `look_at_place`."""

    def look_at_place(self, then: Callable[[], None]) -> None:
        """Find out where this node is for the others, unless it has joined; then go on.

        To be called before that is published, or told to a coordinator.
        """

    @property
    def has_acknowledged(self) -> bool:
        """Whether this node was in a sealed round, so that there is a job."""

    @property
    def member(self) -> MemberMachine:
        """The member of this node, to be looked at."""

    def tell_member(self, given: v.MemberInput) -> None:
        """Hand the member an input; the first one is `Start`."""

    def tell_coordinator(self, given: v.CoordinatorInput) -> None:
        """Hand the coordinator an input, if one is here."""

    def coordinate(
        self,
        term: int,
        reason: str,
        *,
        heritage: Heritage | None = None,
        mandate: Mandate | None = None,
        mark: Mark | None = None,
    ) -> None:
        """Run the coordinator of a term here; without a mandate, what the settings ask for.

        `mark`: what was left here by whoever hosted the endpoint before (R12).
        """

    def hear_of(self, place: Place, *, otherwise: Callable[[], None]) -> None:
        """Have a place looked at that somebody says is the coordinator's.

        It is a hint to dial: a coordinator gives way only to an agent that is there and says that
        it decides; `otherwise` is called if none does.
        """

    def perform(self, command: v.CoordinatorCommand) -> None:
        """Do what the coordinator has decided."""

    def notify(self, notice: ports.Notice) -> None:
        """Tell the agent."""


class Registry(Protocol):
    """Where the coordinator is found. Never blocks the loop."""

    def open(self, side: NodeSide) -> None:
        """Start the member; before that, the coordinator, if this is the place for it."""

    def find(self, within_s: float) -> None:
        """Look for the coordinator, or be it if there is none and this is how one is named.

        The member is told `CoordinatorFound` or `CoordinatorNotFound` in time. Not asked while a
        coordinator is here.
        """

    def announce(self, place: Place, members: Sequence[RosterEntry]) -> None:
        """Let others know that this node was elected, the members of the last round first (R11)."""

    def remember(self) -> None:
        """Keep what this node knows of the job for its next agent; it is about to promise."""

    def pass_on(self, command: v.CoordinatorCommand) -> None:
        """Have a command performed: now, or once what it says is written down; in order."""

    def end(self) -> None:
        """Take note that no coordinator is here any more."""

    def close(self, *, is_over: bool, on_closed: Callable[[], None]) -> None:
        """Give back what is held, and call back; `is_over`: the job has ended."""
