"""The site shows every page and every command; `tox -e docs` builds it and follows its links."""

from __future__ import annotations

import re
from typing import Any

import yaml

from tests.house.test_documents import ROOT, subcommands

SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
COMMAND_LINE = ROOT / "docs" / "reference" / "command-line.md"


def pages_in(nav: Any) -> list[str]:  # noqa: ANN401 (as YAML gives it)
    """Return the paths that a navigation names, in its order."""
    if isinstance(nav, str):
        return [nav]
    parts = nav.values() if isinstance(nav, dict) else nav
    return [path for part in parts for path in pages_in(part)]


def test_every_page_is_in_the_navigation_once() -> None:
    """A page that cannot be reached is not read."""
    folders = (
        *("docs", "docs/frameworks", "docs/reference"),
        *("examples", "examples/broken", "scenarios"),
    )
    there = {str(path.relative_to(ROOT)) for each in folders for path in (ROOT / each).glob("*.md")}
    listed = pages_in(SITE["nav"])
    assert len(listed) == len(set(listed))
    assert there - set(listed) == set()
    assert [path for path in listed if not (ROOT / path).is_file()] == []


def test_every_command_is_in_the_reference() -> None:
    """And only those that there are."""
    shown = re.findall(r"output of: pytest-elastic ([\w-]+) --help", COMMAND_LINE.read_text())
    assert sorted(shown) == sorted(name for name in subcommands() if not name.startswith("-"))
