"""The strangers of a played world: what was sent where, and what a store makes of it."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from elastic_harness.faults.links.visits import Visits
from elastic_harness.scenario.planning.seed import Seed

__all__ = ["PlayedStrangers", "Sent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What one node was to say, to whom, and on how many connections."""

    node: str
    at: tuple[str, int]
    words: bytes
    connections: int


class PlayedStrangers:
    """The part of a played world that strangers meet; a numb one takes nothing from them.

    `refuses` is what they meet with instead of somebody who listens, `hangs_up` tells whether the
    store closes on them.
    """

    numb: bool

    def __init__(self) -> None:
        self.strangers: dict[str, list[Sent]] = {}
        self.refuses = ""
        self.hangs_up = False

    def chance(self, name: str) -> Random:
        return Seed(value=1).stream(name)

    def send_strangers(
        self, owner: str, node: str, at: tuple[str, int], words: bytes, *, connections: int
    ) -> None:
        sent = Sent(node=node, at=at, words=words, connections=connections)
        self.strangers.setdefault(owner, []).append(sent)

    def visits(self, owner: str) -> Visits:
        wanted = sum(each.connections for each in self.strangers.get(owner, []))
        taken = 0 if self.numb or self.refuses else wanted
        closed = taken if self.hangs_up else 0
        return Visits(wanted=wanted, taken=taken, closed=closed, refusal=self.refuses)

    def send_strangers_away(self, owner: str) -> None:
        self.strangers.pop(owner, None)
