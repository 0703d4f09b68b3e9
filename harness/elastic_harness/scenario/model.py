"""What a scenario says: the one tree that YAML files and Python tests are read into.

Everything here is a frozen value. What an entry *does* is kept as a name and plain data: which
names there are, and what belongs to them, a `FaultRegistry` knows.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import (
    Discriminator,
    Field,
    Tag,
    field_validator,
    model_serializer,
    model_validator,
)

from elastic_harness.finding import AstPath
from elastic_harness.scenario.fields import (
    Listed,
    Mark,
    ModuleName,
    Name,
    ScenarioId,
    ScenarioModel,
    Seconds,
    Text,
    Title,
    format_duration,
)
from elastic_harness.scenario.job_spec import RENDEZVOUS, Observe, ProxySpec, Rdzv
from elastic_harness.scenario.stage.log_source import ANY
from elastic_harness.scenario.triggers import (
    After,
    AtStep,
    Condition,
    EventCondition,
    Every,
    LogCondition,
    Until,
    When,
    WritingCondition,
)

__all__ = [
    "ENTRY_KEYS",
    "STORM_ID",
    "TRIGGER_KEYS",
    "Action",
    "Clause",
    "Entry",
    "Eventually",
    "Expect",
    "Job",
    "Nodes",
    "Scenario",
    "Storm",
    "Witness",
    "storm_id",
    "storm_of",
]

TRIGGER_KEYS: Final = ("at", "when", "after", "every")
# The id of a storm's first entry. If a Python test has given the storm a name, that comes first
# (`mine-storm`); the entries of its faults are numbered (`storm-1`, `mine-storm-1`).
STORM_ID: Final = "storm"
_OF_A_STORM: Final = re.compile(rf"((?:.+-)?{STORM_ID})(?:-\d+)?")
ENTRY_KEYS: Final = ("id", *TRIGGER_KEYS, "for", "until", "optional")


def storm_id(name: str) -> str:
    """Return the id of the first entry of the storm that a test has given this name."""
    return name if name == STORM_ID else f"{name}-{STORM_ID}"


def storm_of(id: str) -> str:
    """Return the id of a storm's first entry for that of any of its entries, "" for all others."""
    found = _OF_A_STORM.fullmatch(id)
    return found[1] if found else ""


class WorkingCopy(ScenarioModel):
    """What is left out of a copy of the folder that a job is started in: paths relative to it."""

    leave_out: Listed[Text] = ()

    @field_validator("leave_out")
    @classmethod
    def _are_below_it(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for path in value:
            if os.path.isabs(path) or os.path.normpath(path).split("/")[0] in (".", ".."):
                raise ValueError(
                    f"{path!r} is no file or folder of the working folder: such as checkpoints"
                )
        return value


class Job(ScenarioModel):
    """What is launched on every node: exactly one of `script`, `module` and `command`.

    `script` is relative to the scenario file. `launcher` pins a launcher under test, `options` are
    further options for it. With `working_copy`, each run works in a copy of the folder it is
    started in, but for what that leaves out, and `ELASTIC_CHECKPOINT_DIR` is its folder
    `checkpoints`.
    """

    script: str | None = None
    module: ModuleName | None = None
    command: Annotated[Listed[Text], Field(min_length=1)] | None = None
    args: Listed[Text] = ()
    env: Mapping[str, Text] = Field(default_factory=dict)
    nproc_per_node: int = Field(default=1, ge=1, le=1024)
    max_restarts: int = Field(default=0, ge=0)
    launcher: str | None = None
    options: Listed[Text] = ()
    working_copy: WorkingCopy | None = None
    rdzv: Rdzv = Rdzv()
    observe: Observe = Observe()

    @field_validator("working_copy", mode="before")
    @classmethod
    def _from_flag(cls, value: object) -> object:
        if value is not None and not isinstance(value, bool | dict | WorkingCopy):
            raise ValueError(f"true, false, or {{leave_out: [...]}} is expected, found {value!r}")
        return ({} if value else None) if isinstance(value, bool) else value

    @field_validator("args", "options")
    @classmethod
    def _are_words(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for word in value:
            if re.match(r"--[\w-]+ ", word):
                raise ValueError(
                    f"{word!r} is one word for the program "
                    f"(did you mean [{', '.join(word.split())}]?)"
                )
        return value

    @model_validator(mode="after")
    def _one_program(self) -> Job:
        given = [key for key in ("script", "module", "command") if getattr(self, key) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none of them"
            raise ValueError(f"a job has exactly one of script, module and command: found {found}")
        if self.command is not None and not self.command[0]:
            raise ValueError("the first word of `command` is the program: it is empty")
        return self


class Nodes(ScenarioModel):
    """How many nodes start (`max`, if nothing is said), and how few and many a job may run on.

    Each is on a machine with these `labels`, and has these `resources` there for itself (numbers,
    in Ray's words).
    """

    initial: int = Field(ge=1, le=250)
    min: int = Field(ge=1)
    max: int = Field(ge=1, le=250)
    resources: Mapping[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]] = Field(
        default_factory=dict
    )
    labels: Mapping[str, str] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _from_number(cls, value: object) -> object:
        if isinstance(value, int) and not isinstance(value, bool):
            return {"initial": value, "min": value, "max": value}
        if isinstance(value, str) and (found := re.fullmatch(r"(\d+):(\d+)", value)):
            value = {"min": int(found[1]), "max": int(found[2])}  # as on a command line
        if not isinstance(value, (dict, Nodes)):
            is_quoted = isinstance(value, str) and value.isdecimal()
            hint = f" (did you mean {value}?)" if is_quoted else ""
            given = "nothing" if value is None else repr(value)
            raise ValueError(  # noqa: TRY004 (pydantic reports a ValueError)
                f"a number, MIN:MAX or {{initial, min, max}} is expected, found {given}{hint}"
            )
        if isinstance(value, dict) and "initial" in value:
            return {"min": value["initial"], "max": value["initial"], **value}
        if isinstance(value, dict) and "max" in value:
            return {"initial": value["max"], **value}
        return value

    @model_validator(mode="after")
    def _in_order(self) -> Nodes:
        if not self.min <= self.max:
            raise ValueError(f"{self.min} to {self.max} nodes are impossible: min <= max expected")
        return self


class Action(ScenarioModel):
    """What an entry does: a name of the catalog and its plain value."""

    name: str
    value: Any = None


class Entry(ScenarioModel):
    """One line of the timeline: exactly one trigger and exactly one action."""

    id: Name | None = None
    at: (
        Annotated[
            Annotated[Seconds, Tag("time")] | Annotated[AtStep, Tag("step")],
            Discriminator(lambda v: "step" if isinstance(v, (dict, AtStep)) else "time"),
        ]
        | None
    ) = None
    when: When | None = None
    after: After | None = None
    every: Every | None = None
    for_s: Seconds | None = Field(default=None, alias="for")
    until: Until | None = None
    optional: bool = False
    action: Action

    @model_validator(mode="before")
    @classmethod
    def _split_off_action(cls, value: object) -> object:
        """Move the one key that is no key of an entry into `action`."""
        if not isinstance(value, dict) or "action" in value:
            return value
        names = [key for key in value if key not in ENTRY_KEYS]
        if len(names) != 1:
            found = " and ".join(f"`{name}`" for name in names) or "none"
            raise ValueError(f"an entry has exactly one action: found {found}")
        known = {key: item for key, item in value.items() if key in ENTRY_KEYS}
        return {**known, "action": {"name": names[0], "value": value[names[0]]}}

    @model_validator(mode="after")
    def _one_trigger(self) -> Entry:
        given = [key for key in TRIGGER_KEYS if getattr(self, key) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise ValueError(
                f"an entry has exactly one trigger ({', '.join(TRIGGER_KEYS)}): found {found}"
            )
        if self.for_s == 0:
            raise ValueError("`for` is how long the fault lasts: more than 0s is expected")
        if self.for_s is not None and self.until is not None:
            raise ValueError("`for` and `until` both say when the fault ends: keep one of them")
        return self

    @model_serializer(mode="wrap")
    def _as_written(self, handler: Callable[[Any], Any]) -> dict[str, Any]:
        """Write the entry as it is read: the action under its own name."""
        data = {key: item for key, item in handler(self).items() if item is not None}
        action = data.pop("action")
        if "for_s" in data:
            data["for"] = data.pop("for_s")
        if not data["optional"]:
            del data["optional"]
        return {**data, action["name"]: action["value"]}


class Storm(ScenarioModel):
    """Faults drawn by chance, from one seed (the run's, if none is given here).

    `faults` are kinds (worker, agent, node, network, proxy, store, resource, disk, clock) or names
    of faults; `max` is how many there are at most. They come `over` a time that begins with the
    job's first step, or, with `steps`, each at a drawn step up to that one. `exclude` are nodes
    that are not hit as nodes.
    """

    seed: int | None = None
    faults: Annotated[Listed[str], Field(min_length=1)] = ("worker", "node", "network")
    max: int = Field(default=5, ge=1, le=100)
    over: Seconds = Field(default=10.0, gt=0)
    steps: int | None = Field(default=None, ge=2)
    exclude: Listed[str] = ("store host",)


class Eventually(ScenarioModel):
    """Something that must come to hold `within` a time, counted from the start or from `after`."""

    condition: Condition
    within: Seconds = Field(gt=0)
    after: After | None = None

    @model_validator(mode="before")
    @classmethod
    def _split_off_condition(cls, value: object) -> object:
        if not isinstance(value, dict) or "condition" in value:
            return value
        own = {key: value[key] for key in ("within", "after") if key in value}
        return {**own, "condition": {k: v for k, v in value.items() if k not in own}}

    @model_serializer(mode="wrap")
    def _as_written(self, handler: Callable[[Any], Any]) -> dict[str, Any]:
        data = {key: item for key, item in handler(self).items() if item is not None}
        condition = data.pop("condition")
        return {**{k: v for k, v in condition.items() if v is not None}, **data}

    def __str__(self) -> str:
        after = f" after {self.after}" if self.after else ""
        return f"{self.condition} within {format_duration(self.within)}{after}"


class Clause(ScenarioModel):
    """A named clause that a checker judges, with what is expected: `restarts: 1`, `split_brain`.

    `within` is the time a clause of `finally` has, counted from the automatic heal.
    """

    name: str
    expected: Any = True
    within: Seconds | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_short_form(cls, value: object) -> object:
        if isinstance(value, str):
            return {"name": value}
        if not isinstance(value, dict) or "name" in value:
            return value
        names = [key for key in value if key != "within"]
        if len(names) != 1:
            raise ValueError(f"a clause is one name and what is expected: found {len(names)} names")
        own = {"within": value["within"]} if "within" in value else {}
        return {"name": names[0], "expected": value[names[0]], **own}

    @model_serializer(mode="wrap")
    def _as_written(self, handler: Callable[[Any], Any]) -> dict[str, Any]:
        data = handler(self)
        own = {"within": data["within"]} if self.within is not None else {}
        return {data["name"]: data["expected"], **own}

    @property
    def is_off(self) -> bool:
        """Tell whether a default invariant is switched off by name (`- one_world: off`)."""
        return self.expected is False or self.expected == "off"

    def __str__(self) -> str:
        return self.name if self.expected is True else f"{self.name}: {self.expected}"


def _witness_kind(value: object) -> str:
    if isinstance(value, dict) and ("event" in value or "log" in value):
        return "condition"
    return "condition" if isinstance(value, (EventCondition, LogCondition)) else "clause"


# What must be seen, or never be seen: an event or log line (the engine sees to it), or a clause
# that a checker knows.
Witness = Annotated[
    Annotated[Condition, Tag("condition")] | Annotated[Clause, Tag("clause")],
    Discriminator(_witness_kind),
]


class Expect(ScenarioModel):
    """What must hold. `always` adds to (or, with `off`, takes from) the invariants that are on."""

    always: Listed[Clause] = ()
    never: Listed[Witness] = ()
    sometimes: Listed[Witness] = ()
    eventually: Listed[Eventually] = ()
    finally_: Listed[Clause] = Field(default=(), alias="finally")


class Scenario(ScenarioModel):
    """One scenario file's document, or what a Python test has built instead."""

    version: Literal[1]
    id: ScenarioId
    title: Title
    job: Job
    nodes: Nodes
    seed: int | None = None
    requires: Listed[str] = ()
    limit: Annotated[Seconds, Field(gt=0)] = 60.0
    timeline: Listed[Entry] = ()
    storm: Storm | None = None
    proxies: Mapping[Name, ProxySpec] = Field(default_factory=dict)
    expect: Expect = Expect()
    marks: Listed[Mark] = ()

    @model_validator(mode="before")
    @classmethod
    def _without_extensions(cls, value: object) -> object:
        """Leave out `x-…` keys: they are the author's own."""
        if not isinstance(value, dict):
            return value
        return {k: v for k, v in value.items() if not (isinstance(k, str) and k.startswith("x-"))}

    @model_validator(mode="after")
    def _no_proxy_for_several_endpoints(self) -> Scenario:
        through = [name for name, spec in self.proxies.items() if spec.upstream == RENDEZVOUS]
        if through and self.job.rdzv.endpoints:
            raise ValueError(
                f"proxy {through[0]!r} leads to the rendezvous, which has several endpoints here: "
                "proxies lead to one"
            )
        return self

    @property
    def store_host(self) -> str:
        """The node at the rendezvous endpoint, or at the first of several."""
        return self.endpoint_hosts[0]

    @property
    def endpoint_hosts(self) -> tuple[str, ...]:
        """The nodes at the rendezvous endpoints: one as a rule."""
        rdzv = self.job.rdzv
        return rdzv.endpoints or (rdzv.store_host or "n1",)

    @property
    def conditions(self) -> tuple[tuple[AstPath, Condition | WritingCondition], ...]:
        """Every condition that something waits for, or that is to be seen, with its place."""
        found: list[tuple[AstPath, Condition | WritingCondition | None]] = []
        for index, entry in enumerate(self.timeline):
            until = entry.until if not isinstance(entry.until, str) else None
            found.append((("timeline", index, "when"), entry.when))
            found.append((("timeline", index, "until"), until))
        for index, each in enumerate(self.expect.eventually):
            found.append((("expect", "eventually", index), each.condition))
        for bucket in ("sometimes", "never"):
            for index, witness in enumerate(getattr(self.expect, bucket)):
                if not isinstance(witness, Clause):
                    found.append((("expect", bucket, index), witness))
        return tuple((path, each) for path, each in found if each is not None)

    @property
    def tells_workers_apart(self) -> bool:
        """Tell whether some condition asks for lines of workers, or of one of them."""
        return any(
            isinstance(each, LogCondition) and each.by not in {None, ANY}
            for _, each in self.conditions
        )

    @property
    def initial_nodes(self) -> tuple[str, ...]:
        """The names of the nodes that the run starts with."""
        return tuple(f"n{i}" for i in range(1, self.nodes.initial + 1))
