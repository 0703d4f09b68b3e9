"""What a scenario says of a proxy."""

from __future__ import annotations

from pydantic import Field, model_validator

from elastic_harness.scenario.fields import ScenarioModel
from elastic_harness.toxiproxy.proxied import parse_upstream
from pytest_elastic.errors import UsageError

__all__ = ["ProxySpec"]


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
