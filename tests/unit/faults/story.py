"""What an engine was told of a fault, in words."""

from __future__ import annotations

from collections.abc import Iterable

from elastic_harness.faults.evidence import Evidence
from elastic_harness.scenario.engine.messages import (
    EngineInput,
    FaultFailed,
    FaultInForce,
    FaultProved,
    FaultUndone,
)

__all__ = ["story_of"]


def story_of(told: Iterable[EngineInput]) -> list[str]:
    """Return a few words for each thing that was told."""
    words = []
    for each in told:
        match each:
            case FaultInForce(proof_needs_job=needs_job):
                words.append("in force, needs job" if needs_job else "in force")
            case FaultProved(evidence=evidence):
                words.append(f"proved: {Evidence.of(evidence).text}")
            case FaultFailed(reason=reason):
                words.append(f"failed: {reason}")
            case FaultUndone():
                words.append("undone")
            case _:
                raise AssertionError(each)
    return words
