"""Holds processes of a job in the middle of a write, until a fault has acted on them."""

from __future__ import annotations

from collections.abc import Callable

from elastic_harness.cluster.disks.policy import DiskPolicy
from elastic_harness.faults.context import FaultContext
from elastic_harness.future import Sleep, Steps, run
from elastic_harness.history.events import WriterHeld
from elastic_harness.scenario.triggers import WritingCondition
from pytest_elastic.errors import ElasticError
from pytest_elastic.events.model import Event
from pytest_elastic.loop import Loop

__all__ = ["HeldWriters"]

# A writer is held by the kernel from its write on; this is how late the harness may learn of it.
_LOOK_S = 0.01


class HeldWriters:
    """Covers a path of nodes with a layer that holds writers, and looks which are held.

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
        run(self._loop, self._hold(entry_id, node, asked))

    def _hold(self, entry_id: str, node: str, asked: WritingCondition) -> Steps[None]:
        owner = _owner(entry_id)
        disks = self._context.disks
        try:
            yield from disks.set(owner, node, asked.path, DiskPolicy(holds=asked.writing))
            while (entry_id, node) in self._orders:
                counters = yield from disks.count(node, asked.path)
                if counters.by_owner.get(owner, {}).get("held", 0):
                    file = counters.held_file
                    held = WriterHeld(pattern=asked.writing, path=asked.path, file=file)
                    self._on_fact("cluster", node, held)
                    return
                yield Sleep(seconds=_LOOK_S)
        except ElasticError as problem:
            if node in self._context.cluster.nodes:  # else there is no writer to be held
                self._on_problem(f"writers cannot be held: {problem}")

    def release(self, entry_id: str, node: str, asked: WritingCondition) -> None:
        """Let held writers go on; harmless if there are none."""
        if (entry_id, node) in self._orders:
            self._orders.discard((entry_id, node))
            self._context.disks.set(_owner(entry_id), node, asked.path, None)

    def close(self) -> None:
        """Look no more."""
        self._orders.clear()


def _owner(entry_id: str) -> str:
    return f"{entry_id}: writing"
