"""What a scenario says of its job beside the program: where nodes meet, what is observed."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pydantic import Field, field_validator

from elastic_harness.scenario.fields import ScenarioModel, Text

__all__ = ["Observe", "Rdzv"]


class Rdzv(ScenarioModel):
    """How the nodes find each other. `store_host` is the node at the endpoint (n1 if not said)."""

    backend: str = "c10d"
    store_host: str | None = None
    conf: Mapping[str, Text] = Field(default_factory=dict)


class Observe(ScenarioModel):
    """Where facts come from that the probe cannot know.

    `step` is a regular expression with one group, on the workers' output: how many steps are done.
    """

    step: str | None = None

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
