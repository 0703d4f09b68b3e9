"""Faults of the processes that serve stores, whichever they are under the launcher under test.

The process that serves a store is the one that listens at its port: under pytest-elastic that is a
process of its own; under torchrun the agent, which serves the workers with the same store, or
(TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1) leaves that to rank 0 once it makes its process group. For
faults of the whole node there is the selector `store host`.
"""

from __future__ import annotations

from typing import ClassVar, Final, Literal

from pydantic import Field, model_validator

from elastic_harness.cluster.cluster import having
from elastic_harness.cluster.process import ProcessRef
from elastic_harness.faults.context import (
    Evidence,
    FaultContext,
    FaultImpossible,
    HealOrdered,
    Proved,
    Steps,
    Until,
    Waits,
)
from elastic_harness.faults.fault import Fault
from elastic_harness.faults.workers.stall import run_by_turns, stop_and_see
from elastic_harness.faults.workers.worker import kill_each
from elastic_harness.scenario.engine.situation import Situation, Targets
from elastic_harness.scenario.fields import Fraction, Seconds
from elastic_harness.scenario.selectors import parse_selector, resolve_nodes

__all__ = ["FreezeStore", "KillStore", "SlowStore", "StoreFault"]

# No run takes longer.
_LONGEST_S: Final = 86_400.0


class StoreFault(Fault):
    """A fault of the process that serves a store: the rendezvous's or the workers' (`which`)."""

    layer = "store"
    may_end_launchers: ClassVar[bool] = True
    shorthand: ClassVar[str | None] = "which"
    capability: ClassVar[str | None] = "listeners"

    which: Literal["rendezvous", "workers"] = "rendezvous"

    def resolve(self, situation: Situation, *, stream: str) -> Targets:
        # Both launchers keep the workers' store on the node of rank 0.
        host = "store host" if self.which == "rendezvous" else "rank 0 host"
        return Targets(nodes=resolve_nodes(parse_selector(host), situation, stream=stream))

    def _endpoint(self, context: FaultContext) -> tuple[str, int]:
        """Return the node and port of the store; raises FaultImpossible while none was seen."""
        endpoint = context.launchers.store_endpoint(self.which)
        if endpoint is None:
            raise FaultImpossible(f"no store of the {self.which} has been seen yet")
        return endpoint

    def _holders(self, context: FaultContext) -> Waits[tuple[list[ProcessRef], str]]:
        """Return the processes that serve the store now, and where; raises FaultImpossible."""
        node, port = self._endpoint(context)
        if node not in context.cluster.nodes:
            raise FaultImpossible(f"{node}, which has the store of the {self.which}, is not up")
        sockets = having(context.cluster.sockets, context.cluster.capabilities["listeners"])
        holders = list((yield from sockets.listeners(node, port)))
        if not holders:
            raise FaultImpossible(f"no process listens at {node}:{port}")
        pids = ", ".join(str(each.pid) for each in holders)
        return holders, f"{pids} at {node}:{port}"


def _until_healed(context: FaultContext, processes: list[ProcessRef]) -> Steps:
    """Wait for the heal, or until no process is left to be continued."""
    try:
        for process in processes:
            yield Until(context.ends.of(process), _LONGEST_S, "it was stopped for a whole day")
    except HealOrdered:
        pass
    return ""


class KillStore(StoreFault):
    """The process that serves a store is killed (SIGKILL): the rendezvous's or the workers'.

    Stands for a crash of the store, a kill for memory on its host. Does not stand for: the end of
    its machine (that is `crash` or `power_cut` of `store host`). Under torchrun it is the agent.
    """

    name = "kill_store"
    proof = (
        "SIGKILL was delivered to the processes that listened at its port, and they have ended by "
        "it (where nothing tells how: they are gone)"
    )

    def inject(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        holders, where = yield from self._holders(context)
        yield from kill_each(context, {f"process {each.pid}": each for each in holders})
        return Evidence(
            text=f"gone: {where}",
            facts={"delivered": "SIGKILL", "pids": [each.pid for each in holders]},
        )


class FreezeStore(StoreFault):
    """The process that serves a store is stopped; its kernel goes on acknowledging packets.

    Stands for a host that swaps or is paused, a store stuck in a lock. Does not stand for: a
    network that loses its packets. A store client of torch waits for minutes then, whatever its
    timeout.
    """

    name = "freeze_store"
    proof = "state T, after this SIGSTOP and not before, of the processes that listen at its port"
    is_healable: ClassVar[bool] = True
    pauses: ClassVar[bool] = True

    def inject(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        holders, where = yield from self._holders(context)
        try:
            seen = yield from stop_and_see(context, holders, owner=id)
            facts = Evidence.of(seen).facts
            yield Proved(evidence=Evidence(text=f"state T: {where}", facts=facts))
            yield from _until_healed(context, holders)
        finally:
            # Those that were stopped are continued, wherever the store is by then.
            context.stops.release(id)
        return f"state T: {where}"

    def heal(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        yield from ()
        return "what was stopped goes on"


class SlowStore(FreezeStore):
    """The process that serves a store runs for only `share` of each `period`.

    Stands for a store host that is overloaded. Does not stand for: a slow network (that is
    `degrade`). Under torchrun the agent is slow with it.
    """

    name = "slow_store"
    proof = "seen running before, and stopped (state T) in, each of three turns"

    share: Fraction = 0.1
    period: Seconds = Field(default=0.2, ge=0.01, le=10.0)

    @model_validator(mode="after")
    def _is_slower(self) -> SlowStore:
        if not 0 < self.share < 1:
            raise ValueError("`share` is more than 0% (that is `freeze_store`) and less than 100%")
        return self

    def inject(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        holders, where = yield from self._holders(context)
        return (
            yield from run_by_turns(
                context,
                holders,
                owner=id,
                share=self.share,
                period_s=self.period,
                who=where,
            )
        )
