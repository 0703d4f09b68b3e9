"""The tables of docs/faults.md, made from the registry.

`python -m tests.unit.faults.page` writes them into the page; a test compares.
"""

from __future__ import annotations

import inspect
from pathlib import Path

from elastic_harness.faults.built_in import BUILT_IN
from elastic_harness.faults.fault import LAYERS, Fault
from elastic_harness.faults.recipes import NOT_DRAWN, RECIPES
from pydantic_core import PydanticUndefined

__all__ = ["BEGIN", "END", "PAGE", "as_markdown", "parts_of"]

PAGE = Path(__file__).parents[3] / "docs" / "faults.md"
BEGIN = "<!-- tests.unit.faults.page: begin -->"
END = "<!-- tests.unit.faults.page: end -->"

_HEAD = "| fault | what happens | parameters | needs | proven by | heals | does not stand for |"
_RULE = "|---|---|---|---|---|---|---|"


def parts_of(fault: type[Fault]) -> tuple[str, str]:
    """Return the first sentence of a fault's docstring, and what it does not stand for."""
    text = " ".join(inspect.cleandoc(fault.__doc__ or "").split())
    first = text.partition(". ")[0].rstrip(".")
    _, _, after = text.partition("Does not stand for")
    return first, after.lstrip(": ").partition(". ")[0].rstrip(".")


def as_markdown() -> str:
    """Return a table for each layer."""
    blocks = []
    for layer in LAYERS:
        rows = [_row(fault) for fault in BUILT_IN if fault.layer == layer]
        blocks.append("\n".join([f"### {layer}", "", _HEAD, _RULE, *rows]))
    return "\n\n".join([*blocks, _drawn()])


def _drawn() -> str:
    """Return what storms draw, by the words that ask for it, and what they do not."""
    rows = []
    for kind in dict.fromkeys(recipe.kind for recipe in RECIPES):
        mine = [recipe for recipe in RECIPES if recipe.kind == kind]
        faults = ", ".join(f"`{name}`" for name in dict.fromkeys(each.fault for each in mine))
        needs = ", ".join(dict.fromkeys(each.needs for each in mine if each.needs)) or "nothing"
        rows.append(f"| `{kind}` | {faults} | {needs} |")
    reasons = [
        f"| {', '.join(f'`{name}`' for name, other in NOT_DRAWN.items() if other == why)} | {why} |"
        for why in dict.fromkeys(NOT_DRAWN.values())
    ]
    head = ["### by chance", "", "| `faults:` | storms draw | needs |", "|---|---|---|", *rows]
    return "\n".join([*head, "", "| never drawn | because |", "|---|---|", *reasons])


def _row(fault: type[Fault]) -> str:
    first, not_for = parts_of(fault)
    needs = fault.capability or fault.sometimes_needs or "nothing"
    heals = "yes" if fault.is_healable else "no"
    cells = [f"`{fault.name}`", first, _parameters(fault), needs, fault.proof, heals, not_for]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _parameters(fault: type[Fault]) -> str:
    """Return the fields with their defaults; the first is what may stand alone."""
    names = list(fault.model_fields)
    if fault.shorthand in names:
        names = [fault.shorthand, *(name for name in names if name != fault.shorthand)]
    shown = []
    for name in names:
        field = fault.model_fields[name]
        text = field.alias or name
        if field.default not in (PydanticUndefined, None):
            text += f"={_plain(fault, name)}"
        shown.append(f"`{text}`")
    return " ".join(shown)


def _plain(fault: type[Fault], name: str) -> str:
    """Return a default as a scenario would write it."""
    made = fault.model_construct()
    dumped = made.model_dump(mode="json", include={name}, warnings=False)
    return str(dumped[name])


def main() -> None:
    """Write the tables into the page."""
    text = PAGE.read_text(encoding="utf-8")
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n\n{as_markdown()}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
