"""What a scenario says of its job beside the program: meeting, proxies, what is observed."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pydantic import Field, field_validator, model_validator

from elastic_harness.scenario.fields import Listed, ScenarioModel, Text
from pytest_elastic.errors import UsageError

__all__ = [
    "RENDEZVOUS",
    "Observe",
    "ProxySpec",
    "Rdzv",
    "Upstream",
    "environ_name",
    "parse_upstream",
]

# The upstream of a proxy that is the job's rendezvous endpoint.
RENDEZVOUS = "rendezvous"
_ADDRESS = re.compile(r"(?P<host>[^\s:/]+|\[[0-9A-Fa-f:]+\]):(?P<port>\d{1,5})")


class Rdzv(ScenarioModel):
    """How the nodes find each other.

    `store_host` is the node at the endpoint (n1 if not said); `endpoints` are the nodes at each of
    several, in the order in which launchers are given them.
    """

    backend: str = "c10d"
    store_host: str | None = None
    endpoints: Listed[str] = ()
    conf: Mapping[str, Text] = Field(default_factory=dict)

    @field_validator("endpoints")
    @classmethod
    def _are_several(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(value) == 1:
            raise ValueError(f"one endpoint is `store_host: {value[0]}`; two or more are expected")
        for number, name in enumerate(value):
            if name in value[:number]:
                raise ValueError(f"{name} is named twice: each endpoint is on a node of its own")
        return value

    @model_validator(mode="after")
    def _one_or_several(self) -> Rdzv:
        if self.endpoints and self.store_host is not None:
            raise ValueError(
                "`store_host` is the node at the only endpoint, `endpoints` those at several: "
                "give one of the two"
            )
        if self.endpoints and self.backend != "c10d":
            raise ValueError(f"nodes meet at several `endpoints` with c10d, not {self.backend}")
        return self


class Observe(ScenarioModel):
    """Where facts come from that the probe cannot know.

    `step` is a regular expression with one group, on the workers' output: how many steps are done.
    """

    step: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _is_no_text(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        raise ValueError(f"what is {value!r} to show? (did you mean {{step: '{value}'}}?)")

    @field_validator("step")
    @classmethod
    def _has_a_group(cls, value: str | None) -> str | None:
        if value is None:
            return None
        try:
            groups = re.compile(value).groups
        except re.error as error:
            raise ValueError(f"{value!r} is not a regular expression: {error}") from error
        if groups != 1:
            raise ValueError(
                f"{value!r} has {groups} groups: one is expected, around the number of steps, as "
                r"in `step (\d+) loss`"
            )
        return value


class ProxySpec(ScenarioModel):
    """What a job reaches through a proxy at the gateway, at a port that is free or `listen`.

    `upstream` is `rendezvous` (the job's endpoint), NODE:PORT, or HOST:PORT on the host's side.
    One that is not `enabled` refuses connections until a fault `enable_proxy` fires.
    """

    upstream: str
    listen: int = Field(default=0, ge=0, le=65535)
    enabled: bool = True

    @model_validator(mode="before")
    @classmethod
    def _from_upstream(cls, value: object) -> object:
        return {"upstream": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _leads_somewhere(self) -> ProxySpec:
        try:
            parse_upstream(self.upstream, ())
        except UsageError as error:
            raise ValueError(error.message) from error
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """What a proxy connects to. `node` is "" on the host's side; the endpoint has neither part."""

    node: str = ""
    address: str = ""
    port: int = 0

    @property
    def is_rendezvous(self) -> bool:
        """Tell whether it is the job's rendezvous endpoint."""
        return not self.port


def parse_upstream(text: str, nodes: Collection[str]) -> Upstream:
    """Return what a text means, given the names of the nodes; raises UsageError."""
    if text == RENDEZVOUS:
        return Upstream()
    found = _ADDRESS.fullmatch(text)
    if found is None or not 1 <= int(found["port"]) <= 65535:
        raise UsageError(
            f"a proxy cannot lead to {text!r}: '{RENDEZVOUS}', HOST:PORT or NODE:PORT is expected"
        )
    host, port = found["host"], int(found["port"])
    if host in nodes:
        return Upstream(node=host, port=port)
    return Upstream(address=text, port=port)


def environ_name(proxy: str) -> str:
    """Return the variable in which a job finds a proxy's `host:port`."""
    return f"ELASTIC_PROXY_{proxy.upper().replace('-', '_')}"
