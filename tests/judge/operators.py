"""How a judge's source is changed: operators of cosmic-ray that fit, and what judges can get wrong.

A judge is wrong if it says another verdict, leaves out a condition or takes a boundary for its
neighbour. What is only worded otherwise (an f-string), a type, or a dataclass's looks is left
alone: no verdict depends on it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import parso
from cosmic_ray.operators.provider import OperatorProvider

__all__ = ["Mutant", "mutants_of"]

# Neither cosmic-ray nor parso has types.
Node: TypeAlias = Any

_OF_COSMIC_RAY = (
    *(f"ReplaceComparisonOperator_{pair}" for pair in (
        "Eq_NotEq", "NotEq_Eq", "Lt_LtE", "LtE_Lt", "Gt_GtE", "GtE_Gt", "Lt_Gt", "LtE_GtE",
        "Gt_Lt", "GtE_LtE", "Is_IsNot", "IsNot_Is",
    )),
    *(f"ReplaceBinaryOperator_{pair}" for pair in (
        "Add_Sub", "Sub_Add", "Mul_Div", "FloorDiv_Mul", "BitAnd_BitOr",
    )),
    "ReplaceAndWithOr", "ReplaceOrWithAnd", "ReplaceTrueWithFalse", "ReplaceFalseWithTrue",
    "NumberReplacer", "ReplaceBreakWithContinue", "ReplaceContinueWithBreak",
    "ZeroIterationForLoop",
)  # fmt: skip
_EXCHANGED = {
    "valid": ("invalid", "unknown"),
    "invalid": ("valid", "unknown"),
    "unknown": ("valid", "invalid"),
    "min": ("max",),
    "max": ("min",),
    "any": ("all",),
    "all": ("any",),
    "first": ("last",),
    "last": ("first",),
}
_LEFT_ALONE = frozenset({"fstring", "assert_stmt", "import_from", "import_name"})


class Operator(Protocol):
    """What cosmic-ray's visitor asks of an operator."""

    def mutation_positions(self, node: Node) -> Iterator[object]:
        """Yield once for each change that it can make to a node."""

    def mutate(self, node: Node, index: int) -> Node:
        """Return the node with one of these changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A file's source with one change in it: `old` and `new` are the lines that differ."""

    operator: str
    line: int
    old: str
    new: str
    source: str


class _Elsewhere:
    """An operator of cosmic-ray, save where a change says nothing of a verdict."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator

    def mutation_positions(self, node: Node) -> Iterator[object]:
        # A star is one of cosmic-ray's binary operators wherever it stands.
        is_star = node.type == "operator" and node.value == "*" and node.parent.type != "term"
        if not is_star and not _is_left_alone(node):
            yield from self._operator.mutation_positions(node)

    def mutate(self, node: Node, index: int) -> Node:
        return self._operator.mutate(node, index)


class _Exchange:
    """One verdict, or one choice among values, is exchanged for another."""

    def mutation_positions(self, node: Node) -> Iterator[object]:
        if node.type != "name" or not _is_called(node):
            return
        # What is recorded once is the first and the last.
        if _word(node.get_next_leaf().get_next_leaf()) in ("RunStarted", "RunEnded", "RunClosed"):
            return
        yield from _EXCHANGED.get(node.value, ())

    def mutate(self, node: Node, index: int) -> Node:
        node.value = _EXCHANGED[node.value][index]
        return node


class _Membership:
    """`in` and `not in` are exchanged."""

    def mutation_positions(self, node: Node) -> Iterator[object]:
        if node.type == "comparison":
            yield from (each for each in node.children[1::2] if _word(each) in ("in", "not in"))

    def mutate(self, node: Node, index: int) -> Node:
        places = [
            place
            for place, each in enumerate(node.children)
            if place % 2 and _word(each) in ("in", "not in")
        ]
        place = places[index]
        other = " not in" if _word(node.children[place]) == "in" else " in"
        node.children[place] = parso.parse(other).children[0]
        return node


class _Negate:
    """A condition is turned round: of an `if`, an `elif`, a `while`, a choice, a comprehension."""

    def mutation_positions(self, node: Node) -> Iterator[object]:
        yield from _conditions(node)

    def mutate(self, node: Node, index: int) -> Node:
        place = _conditions(node)[index]
        code = node.children[place].get_code()
        node.children[place] = parso.parse(f" (not ({code.strip()}))")
        return node


class _NoNot:
    """A `not`, or a minus sign, is left out."""

    def mutation_positions(self, node: Node) -> Iterator[object]:
        if node.type == "not_test" or (node.type == "factor" and node.children[0].value == "-"):
            yield node

    def mutate(self, node: Node, index: int) -> Node:
        return parso.parse(f" {node.children[1].get_code()}").children[0]


class _LeaveOut:
    """One part of `a and b`, `a or b`, `a | b` or `a - b` is left out."""

    def mutation_positions(self, node: Node) -> Iterator[object]:
        if node.type in ("and_test", "or_test", "expr"):
            yield from node.children[::2]
        elif node.type == "arith_expr" and "+" not in [_word(each) for each in node.children[1::2]]:
            yield from node.children[2::2]

    def mutate(self, node: Node, index: int) -> Node:
        if node.type == "arith_expr":
            del node.children[2 * index + 1 : 2 * index + 3]
        elif index:
            del node.children[2 * index - 1 : 2 * index + 1]
        else:
            node.children[:2] = [parso.parse(" ").children[0]]
        return node


class _NoReturn:
    """An early return is left out."""

    def mutation_positions(self, node: Node) -> Iterator[object]:
        is_early = node.type == "return_stmt" and node.parent.parent.type == "suite"
        if is_early and node.parent.parent.parent.type in ("if_stmt", "for_stmt", "while_stmt"):
            yield node

    def mutate(self, node: Node, index: int) -> Node:
        return parso.parse(f"{node.get_first_leaf().prefix}pass")


_OWN: tuple[tuple[str, Operator], ...] = (
    ("Exchange", _Elsewhere(_Exchange())),
    ("LeaveOut", _Elsewhere(_LeaveOut())),
    ("Membership", _Elsewhere(_Membership())),
    ("Negate", _Elsewhere(_Negate())),
    ("NoNot", _Elsewhere(_NoNot())),
    ("NoReturn", _NoReturn()),
)


def mutants_of(source: str) -> list[Mutant]:
    """Return every mutant of a source that can be compiled, in the order of its lines."""
    provider = OperatorProvider()
    operators = [(name, _Elsewhere(provider[name]())) for name in _OF_COSMIC_RAY]
    root = parso.parse(source)
    found: dict[str, Mutant] = {}
    for node in list(_nodes(root)):
        for name, operator in (*operators, *_OWN):
            for index in range(len(list(operator.mutation_positions(node)))):
                changed = _changed(root, node, operator, index)
                if changed != source and _compiles(changed):
                    found.setdefault(changed, _mutant(name, source, changed))
    assert root.get_code() == source, "an operator has changed more than it said"
    return sorted(found.values(), key=lambda mutant: (mutant.line, mutant.operator, mutant.new))


def _changed(root: Node, node: Node, operator: Operator, index: int) -> str:
    """Return the source with one change; the tree is as before when this returns."""
    own = {name: getattr(node, name) for name in ("children", "value") if hasattr(node, name)}
    own = {name: list(each) if name == "children" else each for name, each in own.items()}
    siblings: list[Node] = node.parent.children if node.parent is not None else [node]
    place = siblings.index(node)
    other = operator.mutate(node, index)
    if other is not node:
        siblings[place] = other
    changed = str(root.get_code())
    if other is not node:
        siblings[place] = node
    for name, value in own.items():
        setattr(node, name, value)
    assert siblings[place] is node, "an operator has changed what is around it"
    return changed


def _nodes(node: Node) -> Iterator[Node]:
    yield node
    for child in getattr(node, "children", ()):
        yield from _nodes(child)


def _mutant(operator: str, source: str, changed: str) -> Mutant:
    old, new = source.splitlines(), changed.splitlines()
    start = next(n for n, (a, b) in enumerate(zip(old, new, strict=False)) if a != b)
    end = 0
    while end < min(len(old), len(new)) - start - 1 and old[-1 - end] == new[-1 - end]:
        end += 1
    return Mutant(
        operator=operator,
        line=start + 1,
        old="\n".join(old[start : len(old) - end]),
        new="\n".join(new[start : len(new) - end]),
        source=changed,
    )


def _compiles(source: str) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


def _is_left_alone(node: Node) -> bool:
    while node is not None:
        parent = node.parent
        if node.type in _LEFT_ALONE:
            return True
        if parent is not None and parent.type in ("annassign", "tfpdef", "funcdef"):
            # The type follows a colon or an arrow; the value after `=` counts.
            place = parent.children.index(node)
            if place and _word(parent.children[place - 1]) in (":", "->") and node.type != "suite":
                return True
        if node.type == "decorator" and "dataclass" in node.get_code():
            return True
        node = parent
    return False


def _is_called(node: Node) -> bool:
    following = node.get_next_leaf()
    return following is not None and following.value == "("


def _word(node: Node) -> str:
    return " ".join(node.get_code().split())


def _conditions(node: Node) -> list[int]:
    if node.type == "if_stmt":
        words = [getattr(each, "value", "") for each in node.children]
        return [place + 1 for place, word in enumerate(words) if word in ("if", "elif")]
    if node.type == "while_stmt":
        return [1]
    if node.type in ("ternary", "test"):
        return [2]
    if node.type in ("comp_if", "sync_comp_if"):
        return [1]
    return []
