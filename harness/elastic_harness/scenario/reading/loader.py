"""Scenario files: read, checked, and every mistake shown where it stands.

Imports pydantic and YAML: import it only when there is a scenario to read.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pydantic import BaseModel, ValidationError

from elastic_harness.finding import AstPath, Finding, Position, ScenarioError, did_you_mean
from elastic_harness.history.checkers.library import STANDARD
from elastic_harness.history.checkers.registry import Registry
from elastic_harness.scenario.actions import CHECK, CheckedScenario, PlannedAction
from elastic_harness.scenario.checks.launcher_options import check_options
from elastic_harness.scenario.checks.scenario_checks import check_scenario
from elastic_harness.scenario.job_spec import Observe, Rdzv
from elastic_harness.scenario.model import (
    ENTRY_KEYS,
    Entry,
    Eventually,
    Expect,
    Job,
    Nodes,
    Scenario,
    Storm,
)
from elastic_harness.scenario.planning.planned_clauses import clauses_in
from elastic_harness.scenario.reading.matrix import expand_matrix
from elastic_harness.scenario.reading.yaml_tree import Tree, parse_documents
from elastic_harness.scenario.triggers import (
    AtStep,
    Every,
    LogCondition,
    Progress,
    Stable,
)
from elastic_harness.scenario.validation import findings_of, first_message, keys_of, path_in
from pytest_elastic.errors import UsageError

if TYPE_CHECKING:
    from elastic_harness.faults.registry import FaultRegistry

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
    faults: FaultRegistry,
    *,
    checkers: Registry = STANDARD,
    folders: Sequence[str] = (),
) -> list[LoadedScenario]:
    """Read a scenario file: one scenario for each document, more where it has a `matrix`.

    `faults` and `checkers` are those that it may name. `folders` are shared with the nodes of its
    runs, beside the file's own folder and the one that the job runs in. Raises ScenarioError with
    all that is wrong.
    """
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        at = Position(path=path, line=1, column=1)
        raise ScenarioError([Finding(f"cannot be read: {error}", at=at)]) from error
    return load_text(text, path, faults, checkers=checkers, folders=folders)


def load_text(
    text: str,
    path: str,
    faults: FaultRegistry,
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
    findings: list[Finding] = []
    for tree in parse_documents(text, path):
        for variant in expand_matrix(tree):
            reader = _Reader(variant, faults, checkers, shared)
            scenario = reader.read()
            findings += [each for each in reader.findings if each not in findings]
            if scenario is not None:
                loaded.append(LoadedScenario(scenario=scenario, tree=variant))
    seen: dict[str, LoadedScenario] = {}
    for each in loaded:
        if each.scenario.id in seen:
            first = seen[each.scenario.id].locate(("id",))
            message = f"the id {each.scenario.id!r} is taken by the scenario in line {first.line}"
            findings.append(Finding(message, at=each.locate(("id",))))
        seen.setdefault(each.scenario.id, each)
    if findings:
        raise ScenarioError(sorted(findings, key=_place))
    return loaded


def _place(finding: Finding) -> tuple[int, int]:
    return (finding.at.line, finding.at.column) if finding.at else (0, 0)


def read_entry(data: Mapping[str, Any], faults: FaultRegistry) -> Entry:
    """Read a timeline entry that a Python test adds; raises UsageError."""
    unknown = [key for key in data if key not in ENTRY_KEYS and key not in faults.names]
    if unknown:
        raise UsageError(
            f"no action is called {unknown[0]!r}: "
            f"{did_you_mean(unknown[0], [*faults.names, *ENTRY_KEYS])}"
        )
    try:
        entry = Entry.model_validate(dict(data))
        faults.read(entry.action.name, entry.action.value)
    except ValidationError as error:
        names = [name for name in data if name in faults.names]
        known = [key for name in names for key in keys_of(faults.find(name))]
        raise UsageError(first_message(error, [*known, "lasting"])) from error
    return entry


def read_clause(data: Mapping[str, Any]) -> Eventually:
    """Read a clause that a Python test waits for; raises UsageError."""
    try:
        return Eventually.model_validate(dict(data))
    except ValidationError as error:
        raise UsageError(first_message(error, ["within"])) from error


def read_storm(data: Mapping[str, Any]) -> Storm:
    """Read a storm that a Python test asks for; raises UsageError."""
    try:
        return Storm.model_validate(dict(data))
    except ValidationError as error:
        raise UsageError(first_message(error, keys_of(Storm))) from error


# --- one document --------------------------------------------------------------------------


class _Reader:
    """Reads one document and gathers what is wrong with it."""

    def __init__(
        self,
        tree: Tree,
        faults: FaultRegistry,
        checkers: Registry,
        folders: Sequence[str],
    ) -> None:
        self._tree = tree
        self._faults = faults
        self._checkers = checkers
        self._folders = folders
        self.findings: list[Finding] = []

    def read(self) -> Scenario | None:
        data = self._tree.data
        if not isinstance(data, dict):
            message = "a scenario is keys with values: version, id, title, job, nodes …"
            self._add(Finding(message))
            return None
        self._check_actions(data)
        if self.findings:
            return None
        with self._errors_below():
            scenario = Scenario.model_validate(data)
            actions = self._read_actions(scenario)
        if self.findings:
            return None
        checked = CheckedScenario(spec=scenario, actions=actions, folders=self._folders)
        self._add(*check_scenario(checked, self._faults.recipes, checkers=self._checkers))
        self._check_clauses(checked)
        scenario = self._with_script(scenario)
        self._add(*check_options(scenario))
        return scenario

    def _check_actions(self, data: dict[str, Any]) -> None:
        """Find keys of timeline entries that are neither the entry's own nor an action."""
        timeline = data.get("timeline")
        known = [*ENTRY_KEYS, *self._faults.names]
        for index, entry in enumerate(timeline if isinstance(timeline, list) else ()):
            for key in entry if isinstance(entry, dict) else ():
                if key not in known:
                    path, hint = ("timeline", index, key), did_you_mean(key, known)
                    self._add(Finding(f"unknown key or action {key!r}", path, hint, is_key=True))

    def _read_actions(self, scenario: Scenario) -> list[PlannedAction]:
        actions: list[PlannedAction] = []
        for index, entry in enumerate(scenario.timeline):
            name = entry.action.name
            with self._errors_below("timeline", index, name):
                actions.append(self._faults.read(name, entry.action.value))
        return actions

    def _check_clauses(self, checked: CheckedScenario) -> None:
        """Find clauses that no checker knows, or not with this value."""
        for bucket, clause, path in clauses_in(checked.spec):
            if clause.name in self._faults.names:
                why = "is done, and nothing that holds: it stands in the timeline"
                self._add(Finding(f"`{clause.name}` {why}", path, is_key=True))
                continue
            is_off = bucket == "always" and clause.is_off
            with self._errors_below(*path, clause.name):
                self._checkers.find(clause.name).read(None if is_off else clause.expected)

    @contextmanager
    def _errors_below(self, *path: str | int) -> Iterator[None]:
        """Take what is wrong with a value as a finding about the place where it stands."""
        try:
            yield
        except ValidationError as error:
            self._add(*findings_of(error, self._tree.data, path, self._keys_around))
        except UsageError as error:
            self._add(Finding(error.message, path, error.hint or None, is_key=True))

    def _with_script(self, scenario: Scenario) -> Scenario:
        """Make the script's path absolute, seen from the scenario file."""
        script = scenario.job.script
        if script is None:
            return scenario
        folder = os.path.dirname(os.path.abspath(self._tree.path))
        absolute = os.path.normpath(os.path.join(folder, script))
        if not os.path.isfile(absolute):
            self._add(Finding(f"there is no script at {absolute}", ("job", "script")))
        job = scenario.job.model_copy(update={"script": absolute})
        return scenario.model_copy(update={"job": job})

    def _add(self, *findings: Finding) -> None:
        for each in findings:
            path = path_in(self._tree.data, each.path)
            at = self._tree.key_at(path) if each.is_key else self._tree.value_at(path)
            found = Finding(each.message, suggestion=each.suggestion, at=at)
            if found not in self.findings:
                self.findings.append(found)

    def _keys_around(self, path: AstPath) -> Collection[str]:
        """Return the keys that may stand at a place, as far as that is known."""
        names = [part for part in path if isinstance(part, str)]
        model: type[BaseModel] | None = _MODELS.get(names[-1] if names else "")
        if names[:1] == ["timeline"] and len(names) > 1 and names[1] in self._faults.names:
            model = self._faults.find(names[1])
        is_clause = names[:1] == ["expect"] and names[1:2] != ["eventually"]
        if (is_clause or names[1:2] == [CHECK]) and names[-1] in self._checkers.names:
            model = self._checkers.find(names[-1]).parameters
        if model is None:
            return ()
        return keys_of(model)


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
