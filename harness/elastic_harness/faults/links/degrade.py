"""Links that work badly, and connections that are lost while links are well."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import BeforeValidator, model_validator

from elastic_harness.faults.links.link_fault import LinkFault, SomeLinks
from elastic_harness.network.link_model import (
    BurstLoss,
    Distribution,
    LinkPolicy,
)
from elastic_harness.scenario.fields import Fraction, Rate, ScenarioModel, Seconds
from pytest_elastic.errors import UsageError

__all__ = ["Degrade", "ResetConnections"]


def _distribution(value: object) -> object:
    if isinstance(value, Distribution):
        return value
    known = [each.value for each in Distribution]
    if isinstance(value, str) and value in known:
        return Distribution(value)
    raise ValueError(f"{value!r} is no distribution: {', '.join(known)}")


class Bursts(ScenarioModel):
    """Loss in bursts (Gilbert and Elliott): how likely one begins, ends, and what it loses."""

    enter: Fraction
    leave: Fraction
    loss: Fraction = 1.0

    @model_validator(mode="after")
    def _lose_something(self) -> Bursts:
        if not self.enter or not self.loss:
            raise ValueError(
                "bursts that never begin, or lose nothing, are none: `enter` and `loss` are more "
                "than 0%"
            )
        return self


class Degrade(LinkFault, SomeLinks):
    """Links are slow, uneven or lossy, but they work.

    `node` (all links of these) or `from` and `to`; all links if nothing is said. `jitter` spreads
    around the latency by `distribution`: uniform, normal (the jitter is the standard deviation),
    pareto or exponential (only later). `loss`, `burst_loss` and `corrupt` (a wrong checksum, found
    by the receiver's kernel) are drawn for each 1 500 bytes, `duplicate` and `reorder` for each
    packet. `traffic` degrades one class only: store, rendezvous, liveness, collectives, or a port.
    Several of these on one link add up. Stands for a congested or long-distance network, a bad
    cable. Does not stand for: congestion that the job itself causes, corruption that checksums
    miss, RDMA fabrics.
    """

    name = "degrade"
    proof = (
        "the switch delayed, lost, corrupted, doubled or reordered packets by this policy, not by "
        "that of another fault on the link"
    )

    latency: Seconds = 0.0
    jitter: Seconds = 0.0
    distribution: Annotated[Distribution, BeforeValidator(_distribution)] = Distribution.UNIFORM
    loss: Fraction = 0.0
    burst_loss: Bursts | None = None
    duplicate: Fraction = 0.0
    reorder: Fraction = 0.0
    corrupt: Fraction = 0.0
    rate: Rate | None = None

    @model_validator(mode="after")
    def _does_something(self) -> Degrade:
        try:
            policy = self.policy()
        except UsageError as error:
            raise ValueError(error.message) from error
        if policy == LinkPolicy(distribution=policy.distribution):
            raise ValueError(
                "`degrade` needs one of latency, jitter, loss, burst_loss, duplicate, reorder,"
                " corrupt and rate"
            )
        if policy.distribution is not Distribution.UNIFORM and not self.jitter:
            raise ValueError("`distribution` is that of the `jitter`: say how much")
        return self

    def policy(self) -> LinkPolicy:
        burst = self.burst_loss
        return LinkPolicy(
            latency_s=self.latency,
            jitter_s=self.jitter,
            distribution=self.distribution,
            loss=self.loss,
            bursts=()
            if burst is None
            else (BurstLoss(enter=burst.enter, leave=burst.leave, loss=burst.loss),),
            duplicate=self.duplicate,
            reorder=self.reorder,
            corrupt=self.corrupt,
            rate_bytes_per_s=None if self.rate is None else self.rate / 8,
        )


class ResetConnections(LinkFault, SomeLinks):
    """TCP connections that are there are reset, both ends, at their next packet; new ones are not.

    `node` (all links of these) or `from` and `to`; all links if nothing is said. A connection that
    is silent is reset when it speaks, as long as this is in force. Stands for a firewall or NAT
    that forgot its connections, a load balancer that was restarted. Does not stand for: a peer
    that died (its port is still open), RDMA.
    """

    name = "reset"
    proof = "the switch reset connections by this order"
    shorthand: ClassVar[str | None] = "node"

    def policy(self) -> LinkPolicy:
        return LinkPolicy(resets=1)
