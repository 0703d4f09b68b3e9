"""YAML 1.2 with positions: plain data, and where in the text each part of it stands.

PyYAML's C composer gives nodes with marks; the resolver is the core schema of YAML 1.2, so that
`on`, `yes` and `12:30` are text. Keys are text and unique, and no tag makes anything but data.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import yaml
from yaml.resolver import BaseResolver

from elastic_harness.finding import AstPath, Finding, Position, ScenarioError

__all__ = ["Tree", "dump", "parse_documents"]

# Aliases of aliases can make a small file into a huge tree.
_MAX_NODES: Final = 100_000
_TAG: Final = "tag:yaml.org,2002:"


class YamlFloat(float):
    """A number as it stands in a file: without a unit, where one is expected."""


@dataclass(slots=True)
class Tree:
    """One document. `keys` and `values` are positions by path; a list's item has no key."""

    data: Any
    path: str
    lines: list[str]
    keys: dict[AstPath, tuple[int, int]] = field(default_factory=dict)
    values: dict[AstPath, tuple[int, int]] = field(default_factory=dict)

    def value_at(self, path: AstPath) -> Position:
        """Return where a value stands, or the nearest thing around it that is written down."""
        return self._nearest(path, self.values)

    def key_at(self, path: AstPath) -> Position:
        """Return where a key stands, or the value, or the nearest thing around it."""
        return self._nearest(path, {**self.values, **self.keys})

    def _nearest(self, path: AstPath, table: dict[AstPath, tuple[int, int]]) -> Position:
        for length in range(len(path), -1, -1):
            if (found := table.get(path[:length])) is not None:
                return position(self.path, self.lines, *found)
        return position(self.path, self.lines, 0, 0)


def position(path: str, lines: list[str], line: int, column: int) -> Position:
    """Return the position for a line and a column counted from 0."""
    if lines and line >= len(lines):  # behind the last line: show its end
        line, column = len(lines) - 1, len(lines[-1])
    text = lines[line] if lines else ""
    return Position(path=path, line=line + 1, column=column + 1, text=text)


def parse_documents(text: str, path: str) -> list[Tree]:
    """Return the documents of a file; raises ScenarioError for what is not YAML, or is empty."""
    lines = text.splitlines()
    try:
        trees = list(_documents(text, path, lines))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        if mark and mark.line >= len(lines):  # at the end of the file: show where it began
            mark = error.context_mark or mark
        where = (mark.line, mark.column) if mark else (0, 0)
        what = error.problem or error.context or "it cannot be read"
        around = f" ({error.context})" if error.context and error.problem else ""
        raise _error(path, lines, where, f"this is not YAML: {what}{around}") from error
    except yaml.YAMLError as error:
        raise _error(path, lines, (0, 0), f"this is not YAML: {error}") from error
    if not trees:
        raise _error(path, lines, (0, 0), "there is no scenario here: the file is empty")
    return trees


def _documents(text: str, path: str, lines: list[str]) -> Iterator[Tree]:
    loader = _Loader(text)
    try:
        while loader.check_node():
            node = loader.get_node()
            assert node is not None, "check_node said that there is one"
            start = node.start_mark
            if _is_null(node):
                where = (start.line, start.column)
                raise _error(path, lines, where, "there is no scenario here: the document is empty")
            tree = Tree(data=None, path=path, lines=lines)
            tree.data = _Reader(tree).read(node, ())
            yield tree
    finally:
        loader.dispose()


def _is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == f"{_TAG}null"


def _error(
    path: str, lines: list[str], where: tuple[int, int], message: str, hint: str | None = None
) -> ScenarioError:
    return ScenarioError([Finding(message, suggestion=hint, at=position(path, lines, *where))])


class _CoreResolver(BaseResolver):
    """The core schema of YAML 1.2.2, section 10.3."""


_CORE: Final = {
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    "int": (r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    "float": (
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
}
for _name, (_pattern, _first) in _CORE.items():
    _CoreResolver.add_implicit_resolver(f"{_TAG}{_name}", re.compile(rf"(?:{_pattern})\Z"), _first)

if yaml.__with_libyaml__:
    from yaml._yaml import CParser

    class _Loader(CParser, _CoreResolver):
        """Composes nodes in C."""

        def __init__(self, text: str) -> None:
            CParser.__init__(self, text)
            _CoreResolver.__init__(self)

else:  # a PyYAML built without libyaml: the same, slower
    from yaml.composer import Composer
    from yaml.parser import Parser
    from yaml.reader import Reader
    from yaml.scanner import Scanner

    class _Loader(Reader, Scanner, Parser, Composer, _CoreResolver):  # type: ignore[no-redef]
        def __init__(self, text: str) -> None:
            Reader.__init__(self, text)
            Scanner.__init__(self)
            Parser.__init__(self)
            Composer.__init__(self)
            _CoreResolver.__init__(self)


class _Reader:
    """Makes plain data of nodes, and notes where everything stands."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._open: list[int] = []
        self._count = 0

    def read(self, node: yaml.Node, path: AstPath) -> object:
        self._count += 1
        mark = node.start_mark
        self._tree.values[path] = (mark.line, mark.column)
        if self._count > _MAX_NODES:
            raise self._error(node, "this grows without end: too many aliases of aliases")
        if id(node) in self._open:
            raise self._error(node, "this contains itself")
        self._open.append(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, path)
            if isinstance(node, yaml.SequenceNode):
                return [self.read(item, (*path, index)) for index, item in enumerate(node.value)]
            assert isinstance(node, yaml.ScalarNode), "there are three kinds of node"
            return self._scalar(node)
        finally:
            self._open.pop()

    def _mapping(self, node: yaml.MappingNode, path: AstPath) -> dict[str, object]:
        data: dict[str, object] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag != f"{_TAG}str":
                raise self._error(key_node, "a key must be text", "put it in quotes")
            key = str(key_node.value)
            if key in data:
                raise self._error(key_node, f"the key {key!r} stands here twice")
            here = (*path, key)
            self._tree.keys[here] = (key_node.start_mark.line, key_node.start_mark.column)
            data[key] = self.read(value_node, here)
        return data

    def _scalar(self, node: yaml.ScalarNode) -> object:
        text = str(node.value)
        match node.tag.removeprefix(_TAG):
            case "str":
                return text
            case "null":
                return None
            case "bool":
                return text.lower() == "true"
            case "int":
                return int(text, 0) if text.startswith(("0o", "0x")) else int(text)
            case "float":
                return YamlFloat(_float(text))
            case _:
                raise self._error(node, f"the tag {node.tag} is not known here", "leave it out")

    def _error(self, node: yaml.Node, message: str, hint: str | None = None) -> ScenarioError:
        mark = node.start_mark
        return _error(self._tree.path, self._tree.lines, (mark.line, mark.column), message, hint)


def _float(text: str) -> float:
    lower = text.lower()
    if lower.endswith(".inf"):
        return -math.inf if lower.startswith("-") else math.inf
    return math.nan if lower == ".nan" else float(text)


def dump(value: object) -> str:
    """Return plain values as YAML; a collection that holds no other one stands on one line."""
    text: str = yaml.dump(
        value,
        Dumper=_WithoutAliases,
        sort_keys=False,
        default_flow_style=None,
        allow_unicode=True,
        width=1000,
    )
    return text


class _WithoutAliases(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:
        return True
