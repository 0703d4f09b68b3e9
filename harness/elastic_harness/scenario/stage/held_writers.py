"""Holds processes of a job in the middle of a write, until a fault has acted on them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from elastic_harness.cluster.disks.policy import DiskCounters, DiskPolicy
from elastic_harness.faults.context import FaultContext, Ticket
from elastic_harness.history.events import WriterHeld
from elastic_harness.scenario.triggers import WritingCondition
from pytest_elastic.errors import ElasticError
from pytest_elastic.events.model import Event
from pytest_elastic.loop import Loop

__all__ = ["HeldWriters"]

# A writer is held by the kernel from its write on; this is how late the harness may learn of it.
_LOOK_S = 0.01


class HeldWriters:
    """Covers a path of nodes with a layer that holds writers, and looks who is held.

    `on_fact(source, node, event)` gets a `WriterHeld` once for each order, `on_problem` what the
    cluster could not do.
    """

    def __init__(
        self,
        loop: Loop,
        context: FaultContext,
        on_fact: Callable[[str, str, Event], None],
        on_problem: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._context = context
        self._on_fact = on_fact
        self._on_problem = on_problem
        self._orders: set[tuple[str, str]] = set()

    def hold(self, entry_id: str, node: str, asked: WritingCondition) -> None:
        """Stop the next process that writes a matching file on a node."""
        self._orders.add((entry_id, node))
        policy = DiskPolicy(holds=asked.writing)
        owner = _owner(entry_id)
        ticket = self._context.resources.set_disk(owner, node, asked.path, policy)
        self._when_settled(ticket, node, partial(self._look, entry_id, node, asked))

    def release(self, entry_id: str, node: str, asked: WritingCondition) -> None:
        """Let those go on who are held; harmless when nobody is."""
        if (entry_id, node) in self._orders:
            self._orders.discard((entry_id, node))
            self._context.resources.set_disk(_owner(entry_id), node, asked.path, None)

    def close(self) -> None:
        """Look no more."""
        self._orders.clear()

    def _look(self, entry_id: str, node: str, asked: WritingCondition, _: None) -> None:
        def judge(counters: DiskCounters) -> None:
            if counters.by_owner.get(_owner(entry_id), {}).get("held", 0):
                held = WriterHeld(pattern=asked.writing, path=asked.path, file=counters.held_file)
                self._on_fact("cluster", node, held)
            elif (entry_id, node) in self._orders:
                again = partial(self._look, entry_id, node, asked, None)
                self._loop.call_at(self._loop.now() + _LOOK_S, again)

        if (entry_id, node) in self._orders:
            ticket = self._context.resources.count_disk(node, asked.path)
            self._when_settled(ticket, node, judge)

    # Tickets of several kinds are waited for.
    def _when_settled(self, ticket: Ticket[Any], node: str, go_on: Callable[[Any], None]) -> None:
        if not ticket.is_settled:
            again = partial(self._when_settled, ticket, node, go_on)
            self._loop.call_at(self._loop.now() + _LOOK_S, again)
            return
        try:
            answer = ticket.result()
        except ElasticError as problem:
            if self._context.is_node_up(node):  # else there is nobody to be held
                self._on_problem(f"writers cannot be held: {problem}")
            return
        go_on(answer)


def _owner(entry_id: str) -> str:
    return f"{entry_id}: writing"
