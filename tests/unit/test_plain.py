"""Dataclasses become JSON values as `dataclasses.asdict` makes them, without its copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum

from pytest_elastic.plain import as_object, field_names


class Colour(Enum):
    """A value that is no dataclass and no scalar."""

    RED = "red"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A value in a value."""

    name: str
    weight: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """Everything that a message may hold."""

    leaves: Sequence[Leaf] = ()
    by_name: Mapping[str, Leaf] = field(default_factory=dict)
    words: Sequence[str] = ()
    colour: Colour = Colour.RED
    is_old: bool = False


TREE = Tree(
    leaves=(Leaf(name="a"), Leaf(name="b", weight=0.5)),
    by_name={"c": Leaf(name="c")},
    words=["x", "y"],
)


def test_a_dataclass_is_written_as_asdict_writes_it() -> None:
    """Values within values, tuples as tuples and lists as lists, and the same order of fields."""
    assert as_object(TREE) == asdict(TREE)
    assert list(as_object(TREE)) == list(asdict(TREE))


def test_what_is_returned_can_be_changed_without_changing_the_value() -> None:
    """Mappings and lists are new ones."""
    fields = as_object(TREE)
    fields["words"].append("z")
    fields["by_name"].clear()
    assert TREE.words == ["x", "y"]
    assert "c" in TREE.by_name


def test_only_dataclasses_have_fields() -> None:
    """Any other class has none."""
    assert field_names(Leaf) == ("name", "weight")
    assert field_names(Colour) == ()
