"""Looking at the wire: not a fault, but an action of the timeline like one."""

from __future__ import annotations

import os
from typing import ClassVar

from elastic_harness.cluster.cluster import having
from elastic_harness.faults.context import (
    Evidence,
    FaultContext,
    FaultImpossible,
    Steps,
    Waits,
    wait_for_proof,
)
from elastic_harness.faults.links.link_fault import SomeLinks
from elastic_harness.scenario.engine.situation import Targets

__all__ = ["CapturePackets"]


class CapturePackets(SomeLinks):
    """What passes over links is written into a pcapng file of the run, until this is healed.

    `node` (all links of these) or `from` and `to`; all links if nothing is said. The file is
    `captures/ID.pcapng` in the run directory, an interface for each link, with what became of
    each packet as a comment; at most 256 bytes of each, and 64 MiB. On several machines it is
    `captures/ID.N.pcapng` for links that begin on machine N, by its clock. Stands for tcpdump on a
    node.
    Does not stand for: a look at what never leaves a node (loopback, shared memory).
    """

    name = "capture"
    layer = "network"
    proof = "the switch wrote packets into this capture's file"
    capability: ClassVar[str | None] = "network"
    is_healable: ClassVar[bool] = True
    disturbs: ClassVar[bool] = False
    shorthand: ClassVar[str | None] = "node"

    def inject(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        network = having(context.cluster.network, context.cluster.capabilities["network"])
        folder = os.path.join(context.directory, "captures")
        path = os.path.join(folder, f"{id.replace('#', '-')}.pcapng")
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError as error:
            raise FaultImpossible(f"cannot capture packets in {path}: {error.strerror}") from error
        files = list((yield from network.capture(id, targets.links, path)))

        def look() -> Waits[int]:
            return (yield from network.captured(id))

        packets = yield from wait_for_proof(context, look)
        if not packets:
            raise FaultImpossible("nothing was sent over these links")
        return Evidence(
            text=f"{packets} packets so far in {', '.join(files)}",
            facts={"packets": packets, "files": files},
        )

    def heal(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        network = having(context.cluster.network, context.cluster.capabilities["network"])
        yield from network.end_capture(id)
        return "nothing is written down any more"
