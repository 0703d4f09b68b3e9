"""Messages of the Raft-shaped core as JSON objects: `encode` and `decode` are inverse."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytest_elastic.plain import as_object
from pytest_elastic.rendezvous import messages as shared
from pytest_elastic.rendezvous import ports, wire
from pytest_elastic.rendezvous.core import messages

__all__ = ["FORMAT", "decode", "encode"]

FORMAT = 2

_TYPE_OF: dict[str, type[Any]] = {
    wire.kind_of(cls): cls
    for cls in (
        messages.AppendRecord,
        messages.DialPeers,
        messages.Dismissed,
        messages.Heartbeat,
        messages.JoinAccepted,
        messages.JoinRefused,
        messages.JoinRequest,
        messages.LeaderAnnounced,
        messages.LeaderAnswer,
        messages.LeaderRequest,
        messages.LeaderResigned,
        messages.PeersDialled,
        messages.RecordAccepted,
        messages.RecordDecided,
        messages.Standby,
        messages.StopRound,
        messages.VoteAnswer,
        messages.VoteRequest,
        ports.DrainRequested,
        ports.GroupFailed,
        ports.GroupSucceeded,
        ports.PeerDraining,
        ports.StoreFailed,
        ports.StoreOpened,
        ports.WorkersGone,
        shared.ProbeAnswer,
        shared.ProbeRequest,
    )
}
_KIND_OF: dict[type[Any], str] = {cls: kind for kind, cls in _TYPE_OF.items()}


def encode(message: object) -> dict[str, Any]:
    """Return the message as a JSON object with its `format` and its `kind`."""
    kind = _KIND_OF.get(type(message))
    assert kind is not None, f"{type(message).__name__} is not a message"
    return {"format": FORMAT, "kind": kind, **as_object(message)}


def decode(fields: Mapping[str, Any]) -> object:
    """Return the message that a JSON object stands for; raises BadMessage for anything else."""
    values = wire.of_format(fields, FORMAT)
    kind = values.pop("kind", None)
    message_type = _TYPE_OF.get(kind) if isinstance(kind, str) else None
    if message_type is None:
        raise wire.BadMessage(f"cannot read a message of the unknown kind {kind!r:.80}")
    return wire.read_dataclass(message_type, values, str(kind))
