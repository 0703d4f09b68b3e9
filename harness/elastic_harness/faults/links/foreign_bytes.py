"""Strangers on a store's port: whatever a network sends there that is no client of the job."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Mapping
from random import Random
from typing import ClassVar, Final, Literal

from pydantic import Field

from elastic_harness.faults.context import (
    Evidence,
    FaultContext,
    FaultImpossible,
    HealOrdered,
    Steps,
    Until,
    Waits,
)
from elastic_harness.faults.fault import with_exclude
from elastic_harness.faults.links.store import StoreFault
from elastic_harness.scenario.engine.situation import Situation, Targets
from elastic_harness.scenario.fields import Select
from elastic_harness.scenario.selectors import parse_selector, resolve_nodes
from pytest_elastic.errors import ElasticError

__all__ = ["WORDS", "ForeignBytes"]

_TAKEN_S: Final = 15.0
# A store that closes on what it cannot read does so in milliseconds; torch's writes a back trace
# first, which takes a tenth of a second. What it has done by then is the evidence, and comes before
# the word that this is in force: what is told to come after it comes after both.
_REACTION_S: Final = 0.5
_MOST_CONNECTIONS: Final = 500
_NOISE_BYTES: Final = 3000

# What a client of torch's TCPStore says first (torch/csrc/distributed/c10d/TCPStoreBackend.hpp):
# the query VALIDATE and a magic number; then one query after another. SET is 1, and a text is its
# length in 8 bytes and itself. Numbers are in the machine's own order, which is little-endian.
_HELLO: Final = b"\x00" + struct.pack("<I", 0x3C85F7CE)
_SET: Final = b"\x01"


def _text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def _stale(random: Random) -> bytes:
    """Set what another run's nodes would: the state of torchrun's rendezvous, and our record."""
    run = f"stale-{random.randrange(10**6)}".encode()
    keys = (b"/torch.rendezvous." + run, b"/pytest-elastic/" + run + b"/coordinator")
    return _HELLO + b"".join(_SET + _text(key) + _text(random.randbytes(200)) for key in keys)


# By the value of `send`: what is said, given a source of chance.
WORDS: Final[Mapping[str, Callable[[Random], bytes]]] = {
    "random": lambda random: random.randbytes(_NOISE_BYTES),
    "http": lambda _: b"GET / HTTP/1.1\r\nHost: store\r\nAccept: */*\r\n\r\n",
    "torn": lambda _: _HELLO + _SET + _text(b"/key") + struct.pack("<Q", 1000) + b"half of a va",
    "huge": lambda _: _HELLO + _SET + struct.pack("<Q", 1 << 62),
    "stale": _stale,
    "silence": lambda _: b"",
}


class ForeignBytes(StoreFault):
    """Strangers connect from a node to a store's port and `send` what is no part of this job.

    `random`: noise. `http`: a request. `torn`: the beginning of a message of torch's store.
    `huge`: such a message that announces 2^62 bytes. `stale`: whole and valid messages of a run
    that this is not. `silence`: nothing. Each of the `connections` stays open until this is healed,
    unless the store closes it. Stands for a port scanner, a health check, a monitoring agent, a job
    with a wrong endpoint, a client that died in the middle of a word. Does not stand for: an
    attacker who knows the job's keys, a flood that fills the network.
    """

    name = "foreign_bytes"
    proof = (
        "a process listens there, and every connection of this fault was accepted and every byte "
        "acknowledged"
    )
    capability: ClassVar[str | None] = "node_sockets"
    # Nothing that strangers say is a reason to end.
    may_end_launchers: ClassVar[bool] = False
    is_healable: ClassVar[bool] = True

    send: Literal["random", "http", "torn", "huge", "stale", "silence"] = "random"
    node: Select = parse_selector("random")
    exclude: Select | None = None
    connections: int = Field(default=3, ge=1, le=_MOST_CONNECTIONS)

    def resolve(self, situation: Situation, *, stream: str) -> Targets:
        chosen = with_exclude(self.node, self.exclude)
        return Targets(nodes=resolve_nodes(chosen, situation, stream=stream))

    def inject(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        yield from self._holders(context)
        node, port = self._endpoint(context)
        words = WORDS[self.send](context.chance(id))
        for each in targets.nodes:
            context.strangers.send(id, each.name, (node, port), words, connections=self.connections)
        where = f"{node}:{port}"
        try:
            yield Until(
                condition=lambda: _is_settled(context, id),
                within_s=_TAKEN_S,
                otherwise=f"not all of what was sent to {where} was taken within {_TAKEN_S:g} s",
            )
            _check(context, id, where)
            yield from _wait_for_reaction(context, id)
        except HealOrdered:
            _check(context, id, where)
        return self._evidence(context, targets, id, where, len(words))

    def heal(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        context.strangers.send_away(id)
        yield from ()
        return "no stranger is left"

    def _evidence(
        self, context: FaultContext, targets: Targets, id: str, where: str, size: int
    ) -> Evidence:
        visits = context.strangers.visits(id)
        callers = ", ".join(node.name for node in targets.nodes)
        said = f"{size} bytes ({self.send}) on each" if size else "nothing said"
        kept = visits.wanted - visits.closed
        answered = f", {visits.answered} answered" if visits.answered else ""
        text = (
            f"{visits.taken} connections from {callers} to {where}, {said}: "
            f"{visits.closed} closed by the store, {kept} still open{answered}"
        )
        return Evidence(
            text=text,
            facts={
                "taken": visits.taken,
                "bytes": size,
                "closed": visits.closed,
                "answered": visits.answered,
            },
        )


def _is_settled(context: FaultContext, id: str) -> bool:
    visits = context.strangers.visits(id)
    return visits.taken == visits.wanted or bool(visits.refusal)


def _wait_for_reaction(context: FaultContext, id: str) -> Waits[None]:
    """Wait until the store has closed all connections; those that it keeps are evidence as well."""
    visits = context.strangers.visits
    with contextlib.suppress(ElasticError):
        yield Until(lambda: visits(id).closed == visits(id).wanted, _REACTION_S, "it keeps some")


def _check(context: FaultContext, id: str, where: str) -> None:
    """Raise FaultImpossible unless everything that was sent has been taken."""
    visits = context.strangers.visits(id)
    if visits.taken < visits.wanted:
        why = f" ({visits.refusal})" if visits.refusal else ""
        raise FaultImpossible(
            f"{where} took {visits.taken} of {visits.wanted} connections of strangers{why}"
        )
