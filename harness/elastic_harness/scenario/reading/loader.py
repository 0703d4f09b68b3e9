"""Scenario files: read, checked, and every mistake shown where it stands.

Imports pydantic and YAML: import it only when there is a scenario to read.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from elastic_harness.history.checkers.library import STANDARD
from elastic_harness.history.checkers.registry import Registry
from elastic_harness.history.parameters import did_you_mean
from elastic_harness.scenario.checks.finding import Finding
from elastic_harness.scenario.checks.package_checks import check_packages
from elastic_harness.scenario.checks.scenario_checks import check_scenario
from elastic_harness.scenario.checks.token_files import check_token_files
from elastic_harness.scenario.engine.timeline import CHECK_ACTION, OWN_ACTIONS
from elastic_harness.scenario.job_spec import Observe, Rdzv
from elastic_harness.scenario.model import (
    ENTRY_KEYS,
    ActionCatalog,
    Clause,
    Entry,
    Eventually,
    Expect,
    Job,
    Nodes,
    PlannedAction,
    Scenario,
    Storm,
    read_check,
)
from elastic_harness.scenario.reading.complaints import explain, misspelt
from elastic_harness.scenario.reading.matrix import expand_matrix
from elastic_harness.scenario.reading.problems import Position, Problem, ScenarioError
from elastic_harness.scenario.reading.yaml_tree import AstPath, Tree, parse_documents
from elastic_harness.scenario.triggers import (
    CONDITION_KEYS,
    AtStep,
    Every,
    LogCondition,
    Progress,
    Stable,
)
from pytest_elastic.errors import UsageError

__all__ = [
    "SUFFIX",
    "LoadedScenario",
    "load_file",
    "load_text",
    "read_clause",
    "read_entry",
    "read_storm",
]

SUFFIX: Final = ".elastic.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedScenario:
    """A scenario with the text it was read from."""

    scenario: Scenario
    tree: Tree

    def locate(self, path: AstPath = ()) -> Position:
        """Return where a part of the scenario stands: `("expect", "eventually", 0)`."""
        return self.tree.value_at(path)


def load_file(
    path: str,
    catalog: ActionCatalog,
    *,
    checkers: Registry = STANDARD,
    folders: Sequence[str] = (),
) -> list[LoadedScenario]:
    """Read a scenario file: one scenario for each document, more where it has a `matrix`.

    `catalog` has the faults and `checkers` the checkers that it may name. `folders` are shared with
    the nodes of its runs, beside the file's own folder and the one that the job runs in. Raises
    ScenarioError with all that is wrong.
    """
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        at = Position(path=path, line=1, column=1)
        raise ScenarioError([Problem(at=at, message=f"cannot be read: {error}")]) from error
    return load_text(text, path, catalog, checkers=checkers, folders=folders)


def load_text(
    text: str,
    path: str,
    catalog: ActionCatalog,
    *,
    checkers: Registry = STANDARD,
    folders: Sequence[str] = (),
) -> list[LoadedScenario]:
    """Read scenarios from text; `path` is for messages, and scripts are relative to its folder.

    For the rest, and for what it raises, see `load_file`.
    """
    own = (os.getcwd(), os.path.dirname(os.path.abspath(path)), tempfile.gettempdir())
    shared = tuple(dict.fromkeys((*own, *folders)))
    loaded: list[LoadedScenario] = []
    problems: list[Problem] = []
    for tree in parse_documents(text, path):
        for variant in expand_matrix(tree):
            reader = _Reader(variant, catalog, checkers, shared)
            scenario = reader.read()
            problems += [each for each in reader.problems if each not in problems]
            if scenario is not None:
                loaded.append(LoadedScenario(scenario=scenario, tree=variant))
    seen: dict[str, LoadedScenario] = {}
    for each in loaded:
        if each.scenario.id in seen:
            first = seen[each.scenario.id].locate(("id",))
            message = f"the id {each.scenario.id!r} is taken by the scenario in line {first.line}"
            problems.append(Problem(at=each.locate(("id",)), message=message))
        seen.setdefault(each.scenario.id, each)
    if problems:
        raise ScenarioError(sorted(problems, key=lambda each: (each.at.line, each.at.column)))
    return loaded


def read_entry(data: Mapping[str, Any], catalog: ActionCatalog) -> Entry:
    """Read a timeline entry that a Python test adds; raises UsageError."""
    unknown = [key for key in data if key not in ENTRY_KEYS and key not in catalog.names()]
    if unknown:
        raise UsageError(
            f"no action is called {unknown[0]!r}: "
            f"{did_you_mean(unknown[0], [*catalog.names(), *ENTRY_KEYS])}"
        )
    try:
        entry = Entry.model_validate(dict(data))
        if entry.action.name == CHECK_ACTION:
            read_check(entry.action.value)
        elif entry.action.name not in OWN_ACTIONS:
            catalog.parse(entry.action.name, entry.action.value)
    except ValidationError as error:
        raise UsageError(_first_message(error)) from error
    return entry


def read_clause(data: Mapping[str, Any]) -> Eventually:
    """Read a clause that a Python test waits for; raises UsageError."""
    try:
        return Eventually.model_validate(dict(data))
    except ValidationError as error:
        raise UsageError(_first_message(error)) from error


def read_storm(data: Mapping[str, Any]) -> Storm:
    """Read a storm that a Python test asks for; raises UsageError."""
    try:
        return Storm.model_validate(dict(data))
    except ValidationError as error:
        raise UsageError(_first_message(error)) from error


def _first_message(error: ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        meant = did_you_mean(str(first["loc"][-1]), ("lasting", "within"))
        return f"unknown key {where!r}" + (f" ({meant})" if meant.startswith("did") else "")
    message, hint = explain(first["type"], first["msg"], first["input"])
    message = f"{message} ({hint})" if hint else message
    return f"{where}: {message}" if where else message


# --- one document --------------------------------------------------------------------------


class _Reader:
    """Reads one document and gathers what is wrong with it."""

    def __init__(
        self,
        tree: Tree,
        catalog: ActionCatalog,
        checkers: Registry,
        folders: Sequence[str],
    ) -> None:
        self._tree = tree
        self._catalog = catalog
        self._checkers = checkers
        self._folders = folders
        self.problems: list[Problem] = []

    def read(self) -> Scenario | None:
        data = self._tree.data
        if not isinstance(data, dict):
            self._complain((), "a scenario is keys with values: version, id, title, job, nodes …")
            return None
        self._check_actions(data)
        if self.problems:
            return None
        try:
            scenario = Scenario.model_validate(data)
        except ValidationError as error:
            self._translate(error, ())
            return None
        actions = self._parse_actions(scenario)
        if self.problems:
            return None
        recipes = self._catalog.recipes
        found = check_scenario(
            scenario, actions, recipes, folders=self._folders, checkers=self._checkers
        )
        for finding in found:
            self._found(finding)
        self._check_clauses(scenario)
        for finding in (*check_packages(scenario), *check_token_files(scenario.job)):
            self._found(finding)
        return self._with_script(scenario)

    def _check_actions(self, data: dict[str, Any]) -> None:
        """Find keys of timeline entries that are neither the entry's own nor an action."""
        timeline = data.get("timeline")
        known = [*ENTRY_KEYS, *self._catalog.names()]
        for index, entry in enumerate(timeline if isinstance(timeline, list) else ()):
            for key in entry if isinstance(entry, dict) else ():
                if key not in known:
                    self._complain(
                        ("timeline", index, key),
                        f"unknown key or action {key!r}",
                        did_you_mean(key, known),
                        is_key=True,
                    )

    def _parse_actions(self, scenario: Scenario) -> list[PlannedAction | None]:
        actions: list[PlannedAction | None] = []
        for index, entry in enumerate(scenario.timeline):
            name = entry.action.name
            try:
                if name in OWN_ACTIONS:
                    actions.append(None)
                    if name == CHECK_ACTION:
                        read_check(entry.action.value)
                    continue
                actions.append(self._catalog.parse(name, entry.action.value))
            except ValidationError as error:
                self._translate(error, ("timeline", index, name))
            except UsageError as error:
                self._complain(("timeline", index, name), error.message)
        return actions

    def _check_clauses(self, scenario: Scenario) -> None:
        for index, entry in enumerate(scenario.timeline):
            if entry.action.name == CHECK_ACTION:
                for clause in read_check(entry.action.value):
                    self._check_one("check", clause, ("timeline", index, CHECK_ACTION))
        expect = scenario.expect
        for bucket in ("always", "never", "sometimes", "finally"):
            clauses = expect.finally_ if bucket == "finally" else getattr(expect, bucket)
            for index, clause in enumerate(clauses):
                if isinstance(clause, Clause):
                    self._check_one(bucket, clause, ("expect", bucket, index))

    def _check_one(self, bucket: str, clause: Clause, path: AstPath) -> None:
        """Find a clause that no checker knows, or not with this value."""
        if clause.name in self._catalog.names():
            message = f"`{clause.name}` is done, and nothing that holds: it stands in the timeline"
            self._complain(path, message, is_key=True)
            return
        is_bare = clause.expected is True or (bucket == "always" and clause.is_off)
        try:
            self._checkers.bind(clause.name, None if is_bare else clause.expected)
        except UsageError as error:
            if (*path, clause.name) in self._tree.keys:
                path = (*path, clause.name)
            self._complain(path, error.message, error.hint, is_key=True)

    def _with_script(self, scenario: Scenario) -> Scenario:
        """Make the script's path absolute, seen from the scenario file."""
        script = scenario.job.script
        if script is None:
            return scenario
        folder = os.path.dirname(os.path.abspath(self._tree.path))
        absolute = os.path.normpath(os.path.join(folder, script))
        if not os.path.isfile(absolute):
            self._complain(("job", "script"), f"there is no script at {absolute}")
        job = scenario.job.model_copy(update={"script": absolute})
        return scenario.model_copy(update={"job": job})

    def _found(self, finding: Finding) -> None:
        self._complain(finding.path, finding.message, finding.suggestion, is_key=finding.is_key)

    def _complain(
        self, path: AstPath, message: str, suggestion: str | None = None, *, is_key: bool = False
    ) -> None:
        at = self._tree.key_at(path) if is_key else self._tree.value_at(path)
        problem = Problem(at=at, message=message, suggestion=suggestion)
        if problem not in self.problems:
            self.problems.append(problem)

    # --- pydantic's errors ---------------------------------------------------------------------

    def _translate(self, error: ValidationError, prefix: AstPath) -> None:
        guessed: list[str | None] = []
        seen: list[AstPath] = []
        # Unknown keys first: a misspelt key is also a missing one, and that need not be said.
        for each in sorted(error.errors(), key=lambda each: each["type"] != "extra_forbidden"):
            path = self._path_of(prefix, each["loc"])
            if path in seen and each["type"] not in {"extra_forbidden", "missing"}:
                continue  # what another kind of value would have had to be
            seen.append(path)
            match each["type"]:
                case "extra_forbidden":
                    key = str(path[-1])
                    known = self._keys_around(path[:-1])
                    hint = did_you_mean(key, known) if known else None
                    guessed.append(hint)
                    self._complain(path, f"unknown key {key!r}", hint, is_key=True)
                case "missing":
                    key = str(each["loc"][-1])
                    if f"did you mean {key!r}?" not in guessed:
                        self._complain(path, f"`{key}` is missing here", is_key=True)
                case "condition_kind":
                    self._complain(path, each["msg"], misspelt(each["input"], CONDITION_KEYS))
                case _:
                    self._complain(path, *explain(each["type"], each["msg"], each["input"]))

    def _path_of(self, prefix: AstPath, loc: tuple[int | str, ...]) -> AstPath:
        """Return the path in the file: pydantic adds tags of unions, which nobody has written."""
        path = prefix
        data: Any = self._tree.data
        for part in prefix:
            data = _child(data, part)
        for part, following in zip(loc, (*loc[1:], None), strict=False):
            child = _child(data, part)
            # A condition's tag is the name of one of its keys.
            is_tag = not isinstance(child, (dict, list)) and _child(data, following) is not _NOTHING
            if child is _NOTHING or is_tag:
                continue
            path, data = (*path, part), child
        return path

    def _keys_around(self, path: AstPath) -> list[str]:
        """Return the keys that may stand at a place, as far as that is known."""
        names = [part for part in path if isinstance(part, str)]
        if names[:1] == ["timeline"] and len(names) > 1 and names[1] in self._catalog.names():
            schema = self._catalog.schema(names[1])
            return sorted(_properties(schema))
        model = _MODELS.get(names[-1] if names else "")
        return [] if model is None else _keys_of(model)


_NOTHING: Final = object()

_MODELS: Final[Mapping[str, type[BaseModel]]] = {
    "": Scenario,
    "job": Job,
    "rdzv": Rdzv,
    "observe": Observe,
    "nodes": Nodes,
    "expect": Expect,
    "storm": Storm,
    "at": AtStep,
    "every": Every,
    "stable": Stable,
    "progress": Progress,
    "when": LogCondition,
    "until": LogCondition,
}


def _child(data: object, part: int | str | None) -> object:
    if isinstance(data, dict):
        return data.get(part, _NOTHING)
    if isinstance(data, list) and isinstance(part, int) and part < len(data):
        return data[part]
    return _NOTHING


def _keys_of(model: type[BaseModel]) -> list[str]:
    return [each.alias or name for name, each in model.model_fields.items()]


def _properties(schema: Mapping[str, Any]) -> set[str]:
    keys = set(schema.get("properties", ()))
    for other in schema.get("anyOf", ()):
        keys |= set(other.get("properties", ()))
    return keys
