"""Where a job's leader is written down, so that nodes find it; and what a registry may ask for.

A registry is what the backends differ in: stores at one or several endpoints (`endpoint_registry`),
or a key that names one node at a time (`key_registry`: in etcd, in a file). All else is the
driver's. What is written down is text, signed with the token where the job has one; it is checked
field by field against the class that it is to be, as messages are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import msgspec

from pytest_elastic.channel import read_object
from pytest_elastic.credentials import Credentials
from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous.consensus.records import KnownJob
from pytest_elastic.rendezvous.consensus.replication import Recovered
from pytest_elastic.rendezvous.follower.follower import Follower
from pytest_elastic.rendezvous.messages import LeaderAddress
from pytest_elastic.rendezvous.model import Node
from pytest_elastic.rendezvous.settings import Settings
from pytest_elastic.rendezvous.vocabulary import Bootstrap, FollowerInput, LeaderInput, WriteRecord
from pytest_elastic.wire import kind_of

__all__ = ["NodeSide", "Registry", "as_text", "key_of", "read_text", "why_unread"]


class MachinesSide(Protocol):
    """The machines of a node, as a registry sees them."""

    @property
    def node(self) -> Node:
        """The node; where it is may change until it has joined, see `NodeSide.look_at_place`."""

    @property
    def known_job(self) -> KnownJob | None:
        """What the follower knows of the job that it is in."""

    def tell_follower(self, given: FollowerInput) -> None:
        """Hand the follower an input; `Start` is to be one of the first."""

    def tell_leader(self, given: LeaderInput) -> None:
        """Hand the leader an input, if one is here."""

    def lead(self, recovered: Recovered, reason: str) -> None:
        """Run the leader of a term here."""


class NodeSide(MachinesSide, Protocol):
    """What a registry may ask of the driver of its node; from inside the loop only."""

    @property
    def follower(self) -> Follower:
        """The follower of this node, to be looked at."""

    @property
    def leader(self) -> LeaderAddress | None:
        """Where the leader is, if it runs here."""

    def look_at_place(self, then: Callable[[], None]) -> None:
        """Find out where this node is for the others, unless it has joined; then go on.

        To be called before that is published, or told to a leader.
        """

    def bootstrap(self, given: Bootstrap, reason: str) -> None:
        """Let the follower stand for election as a host; `reason`: why this node is one."""

    def hear_of(self, leader: LeaderAddress, *, otherwise: Callable[[], None]) -> None:
        """Check an address that is said to be the leader's.

        It is a hint to dial: a leader gives way only to an agent that is there and says that it
        leads; `otherwise` is called if none does.
        """

    def notify(self, notice: ports.Notice) -> None:
        """Tell the agent."""


class Registry(Protocol):
    """Where the leader is found. Never blocks the loop."""

    def open(self, side: NodeSide) -> None:
        """Start the follower; before that, let it bootstrap, if this is the place for it."""

    def find(self, within_s: float) -> None:
        """Look for the leader; the follower is told `LeaderFound` or `LeaderNotFound` in time.

        Not asked while a leader is here.
        """

    def announce(self, known: Sequence[Node]) -> None:
        """Let others find the leader that began here, those of `known` first."""

    def remember(self) -> None:
        """Keep what this node knows of the job for its next agent; it is about to promise."""

    def write(self, written: WriteRecord) -> None:
        """Write a record down, where that decides it."""

    def end(self) -> None:
        """Note that no leader is here any more."""

    def close(self, on_closed: Callable[[], None]) -> None:
        """Give back what is held, and call back."""


T = TypeVar("T")

# As much of a text that is nothing of ours is shown.
_SHOWN = 60
_ADVICE = "Give all nodes of the job the same token"


def key_of(settings: Settings) -> str:
    """Return the key of an endpoint's store under which the leader's address is published."""
    return f"pytest-elastic/{settings.run_id}/coordinator"


def as_text(value: object, run_id: str, credentials: Credentials | None) -> str:
    """Return a value as it is written down."""
    fields = msgspec.to_builtins(value)
    text = json.dumps(fields, sort_keys=True)
    if credentials is None:
        return text
    signature = credentials.sign(kind_of(type(value)), run_id, text)
    return json.dumps({**fields, "signature": signature}, sort_keys=True)


def read_text(cls: type[T], text: str, run_id: str, credentials: Credentials | None) -> T | None:
    """Return the value that was written down.

    None if it is nothing of ours, or not signed where it has to be.
    """
    try:
        fields = dict(read_object(text) or {})
        signature = fields.pop("signature", None)
        value = msgspec.convert(fields, cls)
    except msgspec.ValidationError:
        return None
    if credentials is not None:
        signed = json.dumps(msgspec.to_builtins(value), sort_keys=True)
        if not credentials.has_signed(signature, kind_of(cls), run_id, signed):
            return None
    return value


def why_unread(text: str, where: str, credentials: Credentials | None) -> str:
    """Say why there is no leader's address in a text, and what to try; `where`: "at X", "there".

    A node that has one token cannot tell another job's token from a forged text.
    """
    is_signed = "signature" in (read_object(text) or {}) if text else False
    leader = read_text(m.LeaderAddress, text, "", None)
    if leader is None or credentials is None:
        shown = f"{text[:_SHOWN]!r}{' and more' if len(text) > _SHOWN else ''}"
        return (
            f"what stands {where} names no leader of a job, it is {shown}. Give the job a "
            "--rdzv-endpoint of its own"
        )
    name = f"{leader.name[:_SHOWN]!r}"
    if not is_signed:
        return (
            f"the record of node {name} {where} is not signed, and this node was given a token "
            f"(--rdzv-token-file): the job has none, or the record is not the job's. {_ADVICE}, "
            "or none"
        )
    return (
        f"the record of node {name} {where} is signed with another token than the one that this "
        f"node was given (--rdzv-token-file), or is forged. {_ADVICE}"
    )
