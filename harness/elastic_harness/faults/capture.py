"""Looking at the wire: not a fault, but an action of the timeline like one."""

from __future__ import annotations

from typing import ClassVar, Final

from pydantic import Field, model_validator

from elastic_harness.faults.context import (
    Evidence,
    FaultContext,
    FaultImpossible,
    HealOrdered,
    InForce,
    Settled,
    Sleep,
    Steps,
)
from elastic_harness.faults.link_fault import CLUSTER_S, PROOF_S, SomeLinks
from elastic_harness.scenario.fields import Select
from elastic_harness.scenario.situation import Targets

__all__ = ["CapturePackets"]

_LOOK_S: Final = 0.2


class CapturePackets(SomeLinks):
    """What passes over links is written into a pcapng file of the run, until this is healed.

    `node` (all links of these) or `from` and `to`; all links if nothing is said. The file is
    `captures/ID.pcapng` in the run directory, an interface for each link, with what became of
    each packet as a comment; at most 256 bytes of each, and 64 MiB. Stands for tcpdump on a node.
    Does not stand for: a look at what never leaves a node (loopback, shared memory).
    """

    name = "capture"
    layer = "network"
    proof = "the switch wrote packets into this capture's file"
    capability: ClassVar[str | None] = "network"
    is_healable: ClassVar[bool] = True
    disturbs: ClassVar[bool] = False
    shorthand: ClassVar[str | None] = "node"

    from_: Select | None = Field(default=None, alias="from")

    @model_validator(mode="after")
    def _ends_fit(self) -> CapturePackets:
        self.check_ends()
        return self

    def inject(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        started = context.capture(id, targets.links)
        yield Settled(ticket=started, within_s=CLUSTER_S, what="beginning a capture")
        path = started.result()
        yield InForce.NEEDS_JOB
        deadline = context.now() + PROOF_S
        while context.now() < deadline:
            try:
                yield Sleep(seconds=_LOOK_S)
            except HealOrdered:
                deadline = 0.0
            counted = context.captured(id)
            yield Settled(ticket=counted, within_s=CLUSTER_S, what="reading a capture")
            if (packets := counted.result()) > 0:
                return Evidence(
                    text=f"{packets} packets so far in {path}",
                    facts={"packets": packets, "file": path},
                )
        raise FaultImpossible("nothing was sent over these links")

    def heal(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        ended = context.end_capture(id)
        yield Settled(ticket=ended, within_s=CLUSTER_S, what="ending a capture")
        ended.result()
        return "nothing is written down any more"
