"""One document, several scenarios: every combination of the values of its `matrix`."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterator
from typing import Any, TypeAlias

from elastic_harness.finding import AstPath, Finding, ScenarioError
from elastic_harness.scenario.reading.yaml_tree import Tree

__all__ = ["expand_matrix"]

# Each of them is a run, which takes time.
_MOST = 1000

Where: TypeAlias = tuple[int, int]  # line and column, from 0


def expand_matrix(tree: Tree) -> Iterator[Tree]:
    """Yield the document once for each combination of its matrix, named after the combination."""
    data = tree.data
    if not isinstance(data, dict) or "matrix" not in data:
        yield tree
        return
    matrix = data["matrix"]
    axes = list(matrix.items()) if isinstance(matrix, dict) else []
    if not axes or not all(isinstance(values, list) and values for _, values in axes):
        at = tree.value_at(("matrix",))
        message = "a matrix is keys with lists: `matrix: {seed: [1, 2]}`"
        raise ScenarioError([Finding(message, at=at)])
    if "id" in matrix:
        at = tree.key_at(("matrix", "id"))
        message = "ids are made of the matrix's values: `id` is none of its axes"
        raise ScenarioError([Finding(message, at=at)])
    if (count := math.prod(len(values) for _, values in axes)) > _MOST:
        at = tree.value_at(("matrix",))
        message = f"{count} scenarios are more than {_MOST}"
        raise ScenarioError([Finding(message, at=at)])
    for picked in itertools.product(*(enumerate(values) for _, values in axes)):
        chosen = {axis: pick for (axis, _), pick in zip(axes, picked, strict=True)}
        variant = copy.deepcopy({key: item for key, item in data.items() if key != "matrix"})
        keys, places = dict(tree.keys), dict(tree.values)
        for axis, (index, value) in chosen.items():
            _set(variant, axis, value, tree)
            _place(tree, axis, index, keys, places)
        label = ",".join(f"{axis}={_short(value)}" for axis, (_, value) in chosen.items())
        variant["id"] = f"{variant.get('id', '')}[{label}]"
        yield Tree(data=variant, path=tree.path, lines=tree.lines, keys=keys, values=places)


def _set(data: dict[str, Any], axis: str, value: object, tree: Tree) -> None:
    *parents, last = axis.split(".")
    place: Any = data
    for parent in parents:
        place = place.setdefault(parent, {}) if isinstance(place, dict) else None
    if not isinstance(place, dict):
        at = tree.key_at(("matrix", axis))
        raise ScenarioError([Finding(f"the matrix's {axis!r} leads nowhere", at=at)])
    place[last] = value


def _place(
    tree: Tree, axis: str, index: int, keys: dict[AstPath, Where], values: dict[AstPath, Where]
) -> None:
    """Let findings about what an axis has set point at the axis, and at the value chosen."""
    path: AstPath = tuple(axis.split("."))
    source: AstPath = ("matrix", axis, index)
    for table in (keys, values):
        for old in [each for each in table if each[: len(path)] == path]:
            del table[old]
    for length in range(1, len(path) + 1):
        # What was not there before it is there for the axis alone.
        keys.setdefault(path[:length], tree.keys[source[:2]])
        values.setdefault(path[:length], tree.values[source])
    for table, theirs in ((keys, tree.keys), (values, tree.values)):
        for inside, where in theirs.items():
            if len(inside) > len(source) and inside[: len(source)] == source:
                table[path + inside[len(source) :]] = where


def _short(value: object) -> str:
    text = str(value) if isinstance(value, (str, int, float)) else "…"
    return "".join(char if char.isalnum() or char in "._-" else "-" for char in text)
