"""A clock that is wrong on one node."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, ClassVar, Final

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

from elastic_harness.cluster.cluster import having
from elastic_harness.cluster.node.faketime import faketime_environ, find_libfaketime
from elastic_harness.faults.context import (
    Evidence,
    FaultContext,
    FaultImpossible,
    Sleep,
    Steps,
    Waits,
    wait_for_proof,
)
from elastic_harness.faults.nodes.node import NodeFault, names_of
from elastic_harness.faults.workers.worker import ORDER_S, facts_of, order, wait_for_answer
from elastic_harness.scenario.engine.situation import Situation, Targets, WorkerRef
from elastic_harness.scenario.fields import format_duration, parse_duration
from pytest_elastic.errors import ElasticError

__all__ = ["ClockSkew"]

_SMALLEST_S: Final = 1.0
_LARGEST_S: Final = 10 * 365 * 86_400.0
# A process looks at the file of its clock once in 1 s, which libfaketime counts in whole seconds.
_RIGHT_S: Final = 3.0
_BETWEEN_QUESTIONS_S: Final = 0.1


def _parse_offset(value: object) -> float:
    if type(value) is float and _SMALLEST_S <= abs(value) <= _LARGEST_S:
        return value
    if isinstance(value, str) and (found := re.fullmatch(r"([+-]?)(.*)", value)):
        offset = parse_duration(found[2]) * (-1 if found[1] == "-" else 1)
        if _SMALLEST_S <= abs(offset) <= _LARGEST_S:
            return offset
    raise ValueError(
        f"{value!r} is no skew of a clock: write for example 20s or -2m, 1s or more and 10 years "
        "at most"
    )


def _format_offset(offset: float) -> str:
    return f"{'-' if offset < 0 else ''}{format_duration(abs(offset))}"


Offset = Annotated[
    float,
    BeforeValidator(_parse_offset),
    PlainSerializer(_format_offset),
    WithJsonSchema({"type": "string", "examples": ["20s", "-2m"]}),
]


class ClockSkew(NodeFault):
    """The time of day on a node is wrong: `by` so much, ahead, or behind with a minus sign.

    Launchers are then started by a command instead of a fork, with libfaketime, from the beginning
    of the run. Monotonic clocks and the times of files are right. Stands for a machine without
    network time, a guest that was suspended. Does not stand for: a clock that jumps while it is
    read, programs that are linked statically or ask the kernel without the C library.
    """

    name = "clock_skew"
    layer = "resource"
    may_end_launchers: ClassVar[bool] = False
    capability = "clock_skew"
    proof = (
        "a worker there was asked for the time, and it was wrong by as much as this and the other "
        "skews of the node together"
    )
    is_healable: ClassVar[bool] = True

    by: Offset

    def launch_environ(self, folder: str) -> Mapping[str, str]:
        library, _ = find_libfaketime()
        return {} if library is None else faketime_environ(library, os.path.join(folder, "clock"))

    def resolve(self, situation: Situation, *, stream: str) -> Targets:
        nodes = super().resolve(situation, stream=stream).nodes
        names = {node.name for node in nodes}
        return Targets(
            nodes=nodes, peers=tuple(each for each in situation.workers if each.node in names)
        )

    def inject(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        witnesses = []
        for node in targets.nodes:
            yield from context.clocks.set(id, node.name, self.by)
            there = (worker for worker in targets.peers if worker.node == node.name)
            if (witness := next(there, None)) is None:
                raise FaultImpossible(f"no worker runs on {node.name} that could tell its time")
            witnesses.append(witness)
        told: dict[WorkerRef, float] = {}

        def look() -> Waits[bool]:
            """Ask the witnesses; of several skews of a node the sum is what its processes see."""
            for witness in witnesses:
                told[witness] = yield from _ask_the_time(context, witness, id, within_s=ORDER_S)
            return all(
                abs(skew - context.clocks.offset(witness.node)) <= abs(self.by) / 2
                for witness, skew in told.items()
            )

        if not (yield from wait_for_proof(context, look)):
            found = ", ".join(
                f"{witness} is {skew:.1f} s off, and not {context.clocks.offset(witness.node):g} s"
                for witness, skew in told.items()
            )
            raise FaultImpossible(f"the time of {found}")
        wrong = (
            f"{witness} wrong by {_format_offset(context.clocks.offset(witness.node))}"
            for witness in witnesses
        )
        return Evidence(
            text=", ".join(wrong),
            facts={"by": self.by, "asked": facts_of(tuple(witnesses), {})},
        )

    def heal(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        for node in targets.nodes:
            yield from context.clocks.set(id, node.name, None)
        deadline = context.now() + _RIGHT_S
        for witness in targets.peers:
            # One that has ended, or takes no step, cannot be asked.
            with suppress(ElasticError):
                yield from self._wait_until_right(context, witness, id, deadline)
        return f"the clock of {names_of(targets.nodes)} is right"

    def _wait_until_right(
        self, context: FaultContext, witness: WorkerRef, id: str, deadline: float
    ) -> Waits[None]:
        """Ask a worker for the time until it no longer sees this skew."""
        while (left_s := deadline - context.now()) > 0:
            skew = yield from _ask_the_time(context, witness, id, within_s=left_s)
            if abs(skew - context.clocks.offset(witness.node)) <= abs(self.by) / 2:
                return
            yield Sleep(seconds=_BETWEEN_QUESTIONS_S)


def _ask_the_time(
    context: FaultContext, witness: WorkerRef, id: str, *, within_s: float
) -> Waits[float]:
    """Return by how many seconds the time of day that a worker sees is wrong."""
    order(context, (witness,), {"do": "act", "act": "tell_time"}, "tell the time", by=id)
    told = yield from wait_for_answer(
        context, witness, "tell_time", ("ended",), by=id, within_s=within_s
    )
    clock = having(context.cluster.clock, context.cluster.capabilities["clock_skew"])
    right = yield from clock.time_of_day(witness.node)
    return float(told) - right
