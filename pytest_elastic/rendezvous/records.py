"""What is written down where a job's coordinator is to be found, as text.

A *record* names a place. Usually the coordinator of a job decides there. Where a job has several
endpoints, it may be a *claim* instead: somebody wants to found the job, and has not yet (R12).
"""

from __future__ import annotations

import dataclasses
import functools
import json
import operator
from typing import cast

from pytest_elastic.channel import read_object
from pytest_elastic.credentials import Credentials
from pytest_elastic.rendezvous.founding_vocabulary import Claim, Record
from pytest_elastic.rendezvous.messages import Place
from pytest_elastic.rendezvous.model import Settings
from pytest_elastic.rendezvous.wire import BadMessage, read_dataclass

__all__ = ["as_text", "key_of", "read_place", "read_record", "why_unread"]

_PLACE = tuple(field.name for field in dataclasses.fields(Place))
_values_of = operator.attrgetter(*_PLACE)
# As much of a text that is nothing of ours is shown.
_SHOWN = 60
_ADVICE = "Give all nodes of the job the same token"


def key_of(settings: Settings) -> str:
    """Return the key under which the coordinator's place is published."""
    return f"pytest-elastic/{settings.run_id}/coordinator"


def read_place(value: str, run_id: str, credentials: Credentials | None) -> Place | None:
    """Return the place in a record; None if it is nothing of ours."""
    record = read_record(value, run_id, credentials)
    return record.place if record is not None else None


def read_record(value: str, run_id: str, credentials: Credentials | None) -> Record | None:
    """Return what was published; None if it is nothing of ours, or not signed where it has to be.

    An old record that is played again names a term that is over: nobody obeys that.
    """
    try:
        record, signature = _read(value)
    except (ValueError, TypeError, AttributeError, RecursionError, BadMessage):
        return None
    if record.place.term < 0 or not 0 <= record.place.port < 2**16:
        return None
    if credentials is not None:
        is_ours = credentials.has_signed(signature, *_signed_parts(record, run_id))
        return record if is_ours else None
    return record


def why_unread(value: str, where: str, credentials: Credentials | None) -> str:
    """Say why `read_record` took nothing from a text, and what to try; `where`: "at X", "there".

    Whether the token is another, or the record forged, nobody can know who has no other token.
    """
    record = read_record(value, "", None)
    if record is None or credentials is None:
        shown = f"{value[:_SHOWN]!r}{' and more' if len(value) > _SHOWN else ''}"
        return (
            f"what stands {where} names no coordinator of a job, it is {shown}. Give the job a "
            "--rdzv-endpoint of its own"
        )
    name = f"{record.place.name[:_SHOWN]!r}"
    _, signature = _read(value)
    if signature is None:
        return (
            f"the record of node {name} {where} is not signed, and this node was given a token "
            f"(--rdzv-token-file): the job has none, or somebody else wrote that. {_ADVICE}, "
            "or none"
        )
    return (
        f"the record of node {name} {where} is signed with another token than the one that this "
        f"node was given (--rdzv-token-file), or by somebody else. {_ADVICE}"
    )


@functools.lru_cache(maxsize=8)  # whoever looks who decides reads the same again and again
def _read(value: str) -> tuple[Record, object]:
    """Return what a text says, and its signature, if it has one."""
    fields = dict(read_object(value) or {})
    signature = fields.pop("signature", None)
    claim = fields.pop("claim", None)
    record = Record(
        place=cast("Place", read_dataclass(Place, fields, "place")),
        claim=None if claim is None else cast("Claim", read_dataclass(Claim, claim, "claim")),
    )
    return record, signature


def as_text(
    place: Place, run_id: str, credentials: Credentials | None, *, claim: Claim | None = None
) -> str:
    """Return a record as it is published."""
    fields: dict[str, object] = dict(zip(_PLACE, _values_of(place), strict=True))
    if claim is not None:
        fields["claim"] = dataclasses.asdict(claim)
    if credentials is not None:
        record = Record(place=place, claim=claim)
        fields["signature"] = credentials.sign(*_signed_parts(record, run_id))
    return json.dumps(fields)


def _signed_parts(record: Record, run_id: str) -> tuple[str, ...]:
    place = json.dumps(dataclasses.asdict(record.place), sort_keys=True)
    if record.claim is None:
        return ("place", run_id, place)
    return ("claim", run_id, json.dumps(dataclasses.asdict(record.claim), sort_keys=True), place)
