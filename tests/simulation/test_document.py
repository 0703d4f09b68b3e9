"""The commands of docs/simulation.md do what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from elastic_simulation.__main__ import main
from elastic_simulation.random_faults.plan import AIMED, KINDS, NAMED

PAGE = (Path(__file__).parents[2] / "docs" / "simulation.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\$ python -m elastic_simulation (.*)$", PAGE, re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_page_keeps_every_promise(command: str) -> None:
    """As it stands there."""
    assert main(command.split()) == 0


def test_the_page_names_every_kind_of_fault() -> None:
    """No more, no less."""
    named = re.findall(r"^\| ([a-z ,]+) \|", PAGE, re.MULTILINE)[1:]
    kinds = [kind for row in named for kind in row.split(", ")]
    assert sorted(kinds) == sorted((*KINDS, *AIMED, *NAMED))
