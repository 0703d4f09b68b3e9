"""Where living workers stand, asked at the end of a run that hangs (see `cluster/stacks.py`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from elastic_harness.cluster.cluster import LiveCluster
from elastic_harness.cluster.process import ProcessRef
from elastic_harness.future import Future, Steps, gather
from elastic_harness.history.events import StackSeen, WorkerHello
from elastic_harness.history.stacks import parse_stacks, place_in_script

__all__ = ["StackOffer", "StackSource", "ask_for_stacks"]

_MAX_SOURCE = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class StackOffer:
    """What a probe has offered: a signal, the descriptor that is written to, its main thread."""

    fd: int
    signal: int
    main: int

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> StackOffer:
        """Return what a probe's line says; raises KeyError, TypeError or ValueError."""
        offer = cls(fd=int(said["fd"]), signal=int(said["signal"]), main=int(said["main"]))
        if offer.signal not in range(1, 65):
            raise ValueError(f"there is no signal {offer.signal}")
        return offer


@dataclass(frozen=True, slots=True)
class StackSource:
    """A worker that may be asked; one whose probe has offered nothing has no `offer`."""

    node: str
    worker: WorkerHello
    offer: StackOffer | None


def ask_for_stacks(
    cluster: LiveCluster, sources: Sequence[StackSource]
) -> Steps[list[tuple[str, StackSeen]]]:
    """Ask every worker; returns what each has said, with its node, in order of ranks.

    Takes a second at most, and no time without workers.
    """
    ordered = sorted(sources, key=lambda each: each.worker.rank)
    answers = yield from gather(_ask(cluster, each) for each in ordered)
    return [
        (source.node, _seen(source, text, reason))
        for source, (text, reason) in zip(ordered, answers, strict=True)
    ]


def _ask(cluster: LiveCluster, source: StackSource) -> Future[tuple[str, str]]:
    worker, offer = source.worker, source.offer
    process = ProcessRef(node=source.node, pid=worker.pid, start_time=worker.start_time)
    fd, signum = (offer.fd, offer.signal) if offer is not None else (-1, 1)
    return cluster.stacks(process, fd=fd, signum=signum)


def _seen(source: StackSource, text: str, reason: str) -> StackSeen:
    worker, offer = source.worker, source.offer
    main, others = parse_stacks(text, offer.main if offer is not None else 0)
    place = place_in_script(main)
    return StackSeen(
        pid=worker.pid,
        rank=worker.rank,
        frames=main,
        others=others,
        source=_source_of(worker.pid, place) if place else "",
        reason="" if main else reason or "what it wrote is no stack",
    )


def _source_of(pid: int, place: str) -> str:
    """Return the line of source at a place, as the worker's own root directory has it."""
    path, _, number = place.rpartition(" in ")[0].rpartition(":")
    for root in (f"/proc/{pid}/root", ""):
        try:
            with open(f"{root}{path}", encoding="utf-8", errors="replace") as file:
                for count, line in enumerate(file, start=1):
                    if count == int(number):
                        return line.strip()[:_MAX_SOURCE]
        except (OSError, ValueError):
            continue
    return ""
