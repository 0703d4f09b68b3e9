"""Nodes, records and settings for tests: nodes are called like their incarnations."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from pytest_elastic.rendezvous.consensus.records import Configuration, Record, Term, founding_record
from pytest_elastic.rendezvous.messages import LeaderAddress, RecordDecided
from pytest_elastic.rendezvous.model import Node
from pytest_elastic.rendezvous.settings import Settings

__all__ = [
    "FOUNDING",
    "SETTINGS",
    "decided",
    "entries",
    "leader_address",
    "record_of",
    "settings_with",
]


def entries(*names: str) -> tuple[Node, ...]:
    """Return roster lines."""
    return tuple(Node(name=n, incarnation=n, address=n, slots=1, port=1) for n in names)


FOUNDING = founding_record(entries("n1"))


def record_of(
    number: int,
    *names: str,
    counter: int = 1,
    node: str = "n1",
    round_: int | None = None,
    voters: Sequence[str] | None = None,
) -> Record:
    """Return the record of a round of these nodes, which `node` proposed under a term of its own.

    The round has the record's number, unless it is given.
    """
    term = Term(counter, node)
    return Record(
        term=term,
        origin=term,
        number=number,
        round=number if round_ is None else round_,
        roster=entries(*names),
        configuration=Configuration(
            voters=tuple(names if voters is None else voters), tie_breaker=node
        ),
        max_restarts=3,
    )


def decided(record: Record, *, is_started: bool = True) -> RecordDecided:
    """Return the word that a record is decided, and where its store is if its round is started."""
    store = ("n1", 1) if is_started else ("", 0)
    return RecordDecided(
        term=record.term, number=record.number, store_address=store[0], store_port=store[1]
    )


def leader_address(
    name: str, counter: int, *, port: int = 1, is_founding: bool = False
) -> LeaderAddress:
    """Return where the leader of a term is."""
    return LeaderAddress(
        term=Term(counter, name),
        name=name,
        incarnation=name,
        address=name,
        port=port,
        is_founding=is_founding,
    )


SETTINGS = Settings(run_id="r", min_nodes=1, max_nodes=9, max_restarts=3, quorum="majority")


def settings_with(quorum: str) -> Settings:
    """Return the same settings with another quorum."""
    return replace(SETTINGS, quorum=quorum)
