"""Proxies of the run: toxics for the bytes that go through them, and proxies that are off."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Final, Literal

from pydantic import Field, model_validator

from elastic_harness.faults.context import (
    IN_FORCE,
    Evidence,
    FaultContext,
    FaultImpossible,
    Steps,
    Waits,
    wait_for_proof,
)
from elastic_harness.faults.fault import Fault
from elastic_harness.finding import Finding, did_you_mean
from elastic_harness.scenario.actions import CheckedScenario
from elastic_harness.scenario.engine.situation import Situation, Targets
from elastic_harness.scenario.fields import Fraction, Rate, Seconds
from elastic_harness.toxiproxy.stream import Toxic
from elastic_harness.toxiproxy.toxics import TOXIC_TYPES, checked_attributes
from pytest_elastic.errors import UsageError

__all__ = ["AddToxic", "DisableProxy", "EnableProxy"]

_BITS_PER_KILOBYTE: Final = 8000
_MILLI, _MICRO = 1e3, 1e6


class _ProxyFault(Fault):
    """A fault of one of the run's proxies."""

    layer = "network"
    is_healable: ClassVar[bool] = True

    proxy: str

    def findings(self, scenario: CheckedScenario) -> Iterator[Finding]:
        known = scenario.spec.proxies
        if self.proxy not in known:
            yield Finding(
                f"the scenario has no proxy {self.proxy!r} (`proxies:`)",
                ("proxy",),
                suggestion=did_you_mean(self.proxy, known) if known else None,
            )

    def resolve(self, situation: Situation, *, stream: str) -> Targets:
        return Targets(proxies=(self.proxy,))


class AddToxic(_ProxyFault):
    """Connections through one of the run's `proxies` are harmed as a toxic of Toxiproxy harms them.

    `type` is latency (`latency`, `jitter`), bandwidth (`rate`), slow_close (`delay`), timeout
    (`timeout`: bytes are lost, and after so long without any the connection is closed; 0s: never),
    slicer (`average_size`, `size_variation`, `delay`), limit_data (`bytes`), reset_peer
    (`timeout`) or noop. `stream` is the direction, downstream (to the client) or upstream;
    `toxicity` is the share of connections that are harmed. Stands for a slow, broken or
    overloaded service and for load balancers and proxies in front of it. Does not stand for: what
    happens to packets (`degrade` does), connections that do not go through the proxy: only the
    rendezvous does by itself, everything else must be told to.
    """

    name = "toxic"
    proof = (
        "connections that this toxic harms had bytes in its direction (slow_close: an end; "
        "limit_data: enough to reach its limit; slicer: more at once than a slice)"
    )

    type: Literal[
        "latency",
        "bandwidth",
        "slow_close",
        "timeout",
        "slicer",
        "limit_data",
        "reset_peer",
        "noop",
    ]
    stream: Literal["downstream", "upstream"] = "downstream"
    toxicity: Fraction = 1.0
    latency: Seconds | None = None
    jitter: Seconds | None = None
    rate: Rate | None = None
    delay: Seconds | None = None
    timeout: Seconds | None = None
    average_size: int | None = Field(default=None, ge=1)
    size_variation: int | None = Field(default=None, ge=0)
    bytes: int | None = Field(default=None, ge=0)

    @model_validator(mode="after")
    def _fits(self) -> AddToxic:
        if self.toxicity == 0.0:
            raise ValueError("a toxicity of 0% has no effect")
        wanted = {"latency": "latency", "bandwidth": "rate", "slow_close": "delay"}
        wanted["limit_data"] = "bytes"
        key = wanted.get(self.type)
        if key is not None and getattr(self, key) is None:
            raise ValueError(f"toxic `{self.type}` needs `{key}`")
        for name, rounded in self._attributes().items():
            if getattr(self, name) and not rounded:
                raise ValueError(f"`{name}` is rounded to 0: {self._smallest(name)} is the least")
        if self.type in ("latency", "slow_close") and not any(
            (self.latency, self.jitter, self.delay)
        ):
            raise ValueError(f"a toxic `{self.type}` of 0s has no effect")
        try:
            checked_attributes(self.type, self._attributes(), all_of_them=True)
        except UsageError as error:
            raise ValueError(error.message) from error
        return self

    def inject(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        toxic = self._toxic(id)
        yield from context.proxies.add_toxic(id, self.proxy, toxic)

        def look() -> Waits[int]:
            yield from ()
            return context.proxies.toxic_met(self.proxy, toxic.name, toxic.direction)

        met = yield from wait_for_proof(context, look)
        if not met:
            where = f"through the proxy '{self.proxy}' {self.stream}"
            raise FaultImpossible(f"nothing went {where} that the toxic harms")
        return Evidence(
            text=f"{met} reads of connections through '{self.proxy}' met the toxic",
            facts={"met": met, "proxy": self.proxy},
        )

    def heal(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        yield from context.proxies.remove_toxics(id)
        return "the toxic is gone"

    def _toxic(self, id: str) -> Toxic:
        complete = dict.fromkeys(TOXIC_TYPES[self.type].attributes, 0)
        return Toxic(
            name=id.replace("#", "-"),
            type=self.type,
            stream=self.stream,
            toxicity=self.toxicity,
            attributes={
                **complete,
                **checked_attributes(self.type, self._attributes(), all_of_them=True),
            },
        )

    def _attributes(self) -> dict[str, float]:
        """Return what was said, in the units of Toxiproxy."""
        unit = _MICRO if self.type == "slicer" else _MILLI
        said: dict[str, float | None] = {
            "latency": _in(self.latency, _MILLI),
            "jitter": _in(self.jitter, _MILLI),
            "rate": _in(self.rate, 1 / _BITS_PER_KILOBYTE),
            "delay": _in(self.delay, unit),
            "timeout": _in(self.timeout, _MILLI),
            "average_size": self.average_size,
            "size_variation": self.size_variation,
            "bytes": self.bytes,
        }
        return {name: value for name, value in said.items() if value is not None}

    def _smallest(self, name: str) -> str:
        if name == "rate":
            return f"{_BITS_PER_KILOBYTE / 1000:g}kbit"
        return "0.001ms" if self.type == "slicer" else "1ms"


class _ProxySwitch(_ProxyFault):
    """A proxy of the run that is switched on or off."""

    shorthand: ClassVar[str | None] = "proxy"
    _on: ClassVar[bool]

    def inject(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        if context.proxies.is_on(self.proxy) is self._on:
            is_so = "accepts connections" if self._on else "is off"
            raise FaultImpossible(f"the proxy '{self.proxy}' {is_so} already")
        yield from context.proxies.switch(id, self.proxy, enabled=self._on)
        yield IN_FORCE
        if context.proxies.is_on(self.proxy) is not self._on:
            raise FaultImpossible(f"another fault has switched the proxy '{self.proxy}'")
        return Evidence(
            text=f"the proxy '{self.proxy}' {'listens' if self._on else 'refuses connections'}",
            facts={"proxy": self.proxy, "enabled": self._on},
        )

    def heal(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        yield from context.proxies.unswitch(id)
        return f"the proxy '{self.proxy}' as before"


class DisableProxy(_ProxySwitch):
    """One of the run's `proxies` closes its connections and refuses new ones, until it heals.

    Of several that switch one proxy the last holds. Stands for a service that is down, or restarts.
    Does not stand for: a service that loses what it was told (that behind the proxy runs on), a
    host that is silent (toxic `timeout`, or `partition` from the gateway).
    """

    name = "disable_proxy"
    proof = "it was on before, and nothing listens at its port now (not: that a client connected)"
    _on: ClassVar[bool] = False


class EnableProxy(_ProxySwitch):
    """One of the run's `proxies` that was off (`enabled: false`) accepts connections.

    Stands for a service that is there late. Does not stand for: one that answers, but is not ready.
    """

    name = "enable_proxy"
    proof = "it was off before, and listens (not: that a client connected)"
    _on: ClassVar[bool] = True


def _in(value: float | None, units: float) -> int | None:
    return None if value is None else round(value * units)
