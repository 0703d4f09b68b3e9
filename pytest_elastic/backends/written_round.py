"""What a coordinator has written down, as text in etcd or in a file: a round, or how a job ended.

With a token it is signed, as the coordinator's place is: who can write there can take the record
away, but not make one up. An old one that is played again is of this job; what members know of a
later round, and of restarts used since, they say themselves when they come. An old end names its
term, and is nothing to nodes that have found a later coordinator.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from pytest_elastic.channel import read_object
from pytest_elastic.credentials import Credentials
from pytest_elastic.rendezvous.messages import Commit, JobEnding, Seal
from pytest_elastic.rendezvous.wire import BadMessage, decode, encode

__all__ = ["WrittenRound", "end_as_text", "read_end", "read_round"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenRound:
    """A committed round, and the name of the node that decided it."""

    coordinator: str
    seal: Seal
    commit: Commit

    def as_text(self, run_id: str, credentials: Credentials | None) -> str:
        """Return it as it is written down."""
        fields = {
            "coordinator": self.coordinator,
            "seal": encode(self.seal),
            "commit": encode(self.commit),
        }
        if credentials is not None:
            fields["signature"] = credentials.sign(*_signed_parts(fields, run_id))
        return json.dumps(fields)


def read_round(text: str, run_id: str, credentials: Credentials | None) -> WrittenRound | None:
    """Return what was written; None if it is nothing of ours, or not signed where it has to be."""
    try:
        fields = dict(read_object(text) or {})
        signature = fields.pop("signature", None)
        seal, commit = decode(fields["seal"]), decode(fields["commit"])
        parts = _signed_parts(fields, run_id)
        if credentials is not None and not credentials.has_signed(signature, *parts):
            return None
        if isinstance(seal, Seal) and isinstance(commit, Commit):
            return WrittenRound(coordinator=str(fields["coordinator"]), seal=seal, commit=commit)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, BadMessage):
        pass
    return None


def end_as_text(ending: JobEnding, run_id: str, credentials: Credentials | None) -> str:
    """Return how a job ends, as it is written down."""
    fields: dict[str, object] = {"ending": encode(ending)}
    if credentials is not None:
        fields["signature"] = credentials.sign(*_signed_parts(fields, run_id, "end"))
    return json.dumps(fields)


def read_end(text: str, run_id: str, credentials: Credentials | None) -> JobEnding | None:
    """Return how a job ended; None if it is nothing of ours, or not signed where it has to be."""
    try:
        fields = dict(read_object(text) or {})
        signature = fields.pop("signature", None)
        ending = decode(fields["ending"])
        parts = _signed_parts(fields, run_id, "end")
        if credentials is not None and not credentials.has_signed(signature, *parts):
            return None
        if isinstance(ending, JobEnding):
            return ending
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, BadMessage):
        pass
    return None


def _signed_parts(fields: object, run_id: str, what: str = "round") -> tuple[str, ...]:
    return (what, run_id, json.dumps(fields, sort_keys=True))
