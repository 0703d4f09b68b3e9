"""What sets a timeline entry off, and what a clause of `eventually` waits for: one vocabulary.

`at` and `when`, `until`, `after` and `every` of SCENARIOS are read here; a condition is the same
value whether it triggers a fault or is waited for.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PlainSerializer,
    Tag,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from elastic_harness.scenario.fields import (
    Name,
    ScenarioModel,
    Seconds,
    format_duration,
    parse_duration,
)
from elastic_harness.scenario.stage.log_source import parse_log_source

__all__ = [
    "CONDITION_KEYS",
    "AfterEntry",
    "AtStep",
    "Condition",
    "EventCondition",
    "Every",
    "LogCondition",
    "Progress",
    "ProgressCondition",
    "RoundCondition",
    "Stable",
    "StableCondition",
    "Until",
    "When",
    "WorldSizeCondition",
    "WritingCondition",
    "parse_after",
]

_AFTER: Final = re.compile(r"([A-Za-z][\w-]*)(\.healed)?(?: ?\+ ?(\S.*))?")


class AtStep(ScenarioModel):
    """When a rank has completed a global step; the rank is held there until the fault has fired.

    `round` is the world's ordinal, from 1; without it, the first time that the step is seen.
    """

    step: int = Field(ge=1)
    rank: int = Field(default=0, ge=0)
    round: int | None = Field(default=None, ge=1)


class EventCondition(ScenarioModel):
    """An event of the history, by kind; other keys are fields of the event that must be equal."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    event: str
    node: str | None = None
    count: int = Field(default=1, ge=1)

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of the event that are asked for."""
        return dict(self.model_extra or {})

    def __str__(self) -> str:
        asked = {**({"node": self.node} if self.node else {}), **self.fields}
        text = ", ".join(f"{key}: {value}" for key, value in asked.items())
        times = f" {self.count} times" if self.count > 1 else ""
        return f"event {self.event}{f' with {text}' if text else ''}{times}"


class Stable(ScenarioModel):
    """A world of this size, all of whose ranks have completed this many steps in it."""

    world_size: int = Field(ge=1)
    steps: int = Field(ge=1)


class StableCondition(ScenarioModel):
    """The job runs, undisturbed, in a world of the given size."""

    stable: Stable

    def __str__(self) -> str:
        return f"{self.stable.steps} steps in a world of {self.stable.world_size}"


class LogCondition(ScenarioModel):
    """A line of output matches a regular expression.

    `by` says whose: worker, `rank 1`, launcher, or any. Without it, any line will do that the
    launcher does not mark as its own.
    """

    log: str
    node: str | None = None
    by: Annotated[str, AfterValidator(parse_log_source)] | None = None

    @field_validator("log")
    @classmethod
    def _compiles(cls, value: str) -> str:
        if not value:
            raise ValueError("an empty pattern matches every line: say which")
        try:
            re.compile(value)
        except re.error as error:
            raise ValueError(f"{value!r} is not a regular expression: {error}") from error
        return value

    def __str__(self) -> str:
        by = f" by {self.by}" if self.by else ""
        return f"log line /{self.log}/{by}{f' on {self.node}' if self.node else ''}"


class RoundCondition(ScenarioModel):
    """The job's n-th world (from 1) has formed."""

    round: int = Field(ge=1)

    def __str__(self) -> str:
        return f"round {self.round}"


class WorldSizeCondition(ScenarioModel):
    """The job makes progress in a world of this size."""

    world_size: int = Field(ge=1)

    def __str__(self) -> str:
        return f"a world of {self.world_size}"


class Progress(ScenarioModel):
    """How much progress."""

    steps: int = Field(ge=1)

    @model_validator(mode="before")
    @classmethod
    def _from_number(cls, value: object) -> object:
        is_number = isinstance(value, int) and not isinstance(value, bool)
        return {"steps": value} if is_number else value


class ProgressCondition(ScenarioModel):
    """Every rank of one world completes this many steps that begin from now on."""

    progress: Progress

    def __str__(self) -> str:
        return f"progress of {self.progress.steps} steps"


class WritingCondition(ScenarioModel):
    """A process of the job is in the middle of writing a file, and is held until the fault acts.

    `writing` matches files below the checkpoint directory, or below `path` (a folder in it, or an
    absolute path): `*.pt`, `**/step-*` (`*` also stands for folders). With `step`, only from when
    some rank has completed that global step. `node` says on which node; on any, if it is not named.
    """

    writing: str = Field(min_length=1)
    step: int | None = Field(default=None, ge=1)
    node: str | None = None
    path: str | None = None

    def __str__(self) -> str:
        since = f" from step {self.step} on" if self.step else ""
        return f"writing {self.writing}{since}{f' on {self.node}' if self.node else ''}"


CONDITION_KEYS: Final = ("event", "stable", "log", "round", "world_size", "progress")


def _condition_kind(value: object) -> str | None:
    """Tell conditions apart by their key; `event` goes first: it may have a `round` of its own."""
    keys = value if isinstance(value, dict) else getattr(value, "__dict__", {})
    return next((kind for kind in CONDITION_KEYS if kind in keys), None)


Condition = Annotated[
    Annotated[EventCondition, Tag("event")]
    | Annotated[StableCondition, Tag("stable")]
    | Annotated[LogCondition, Tag("log")]
    | Annotated[RoundCondition, Tag("round")]
    | Annotated[WorldSizeCondition, Tag("world_size")]
    | Annotated[ProgressCondition, Tag("progress")],
    Discriminator(
        _condition_kind,
        custom_error_type="condition_kind",
        custom_error_message=f"a condition has one of the keys {', '.join(CONDITION_KEYS)}",
    ),
]


def _when_kind(value: object) -> str:
    keys = value if isinstance(value, dict) else getattr(value, "__dict__", {})
    return "writing" if "writing" in keys else "condition"


# What an entry may wait for: to hold a process in the middle of a write takes an entry.
When = Annotated[
    Annotated[WritingCondition, Tag("writing")] | Annotated[Condition, Tag("condition")],
    Discriminator(_when_kind),
]


class AfterEntry(ScenarioModel):
    """Some time after another entry has taken effect, or has been healed."""

    id: Name
    healed: bool = False
    delay_s: float = 0.0

    def __str__(self) -> str:
        delay = f" + {format_duration(self.delay_s)}" if self.delay_s else ""
        return f"{self.id}{'.healed' if self.healed else ''}{delay}"


def parse_after(value: object) -> object:
    """Read "crash", "crash + 3s" and "deaf.healed + 500ms"."""
    if not isinstance(value, str):
        return value
    found = _AFTER.fullmatch(value.strip())
    if found is None:
        raise ValueError(f"{value!r} names no entry: write for example `crash` or `crash + 3s`")
    delay_s = parse_duration(found[3]) if found[3] else 0.0
    return AfterEntry(id=found[1], healed=found[2] is not None, delay_s=delay_s)


After = Annotated[
    AfterEntry,
    BeforeValidator(parse_after),
    PlainSerializer(str),
    WithJsonSchema({"type": "string", "pattern": _AFTER.pattern, "examples": ["crash + 3s"]}),
]


class Every(ScenarioModel):
    """Again and again, at random: the time between two is exponential with this mean."""

    mtbf: Seconds = Field(gt=0)
    max: int = Field(ge=1, le=10_000)


def _until_kind(value: object) -> str:
    return "end" if isinstance(value, str) else "condition"


# When a fault is healed by itself: when a condition holds, or not before everything is over.
Until = Annotated[
    Annotated[Literal["end"], Tag("end")] | Annotated[Condition, Tag("condition")],
    Discriminator(_until_kind),
]
