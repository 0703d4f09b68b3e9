"""What a release says of itself: one version, a dated section, fragments that have a type."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.version import Version

import pytest_elastic

ROOT = Path(__file__).parents[2]
FRAGMENTS = sorted(path for path in (ROOT / "changelog.d").iterdir() if path.name != "README.md")


def test_the_version_is_the_same_everywhere() -> None:
    """In the metadata, in the package, and in the newest section of the changelog, with a date."""
    declared = re.search(r'(?m)^version = "(.*)"$', (ROOT / "pyproject.toml").read_text("utf-8"))
    newest = re.search(
        r"(?m)^## (\S+) \(\d{4}-\d\d-\d\d\)$", (ROOT / "CHANGELOG.md").read_text("utf-8")
    )
    assert declared is not None
    assert declared[1] == pytest_elastic.__version__
    assert newest is not None
    # Between releases the version may be ahead, as 0.2.0.dev0 is.
    assert Version(newest[1]) <= Version(declared[1])
    assert Version(declared[1]).is_devrelease or newest[1] == declared[1]


@pytest.mark.parametrize(
    "path", [*FRAGMENTS, ROOT / "changelog.d" / "README.md"], ids=lambda path: path.name
)
def test_a_fragment_has_a_known_type_and_a_text(path: Path) -> None:
    """`<short-slug>.<type>.md`, with the types that changelog.d/README.md lists."""
    types = re.findall(
        r"(?m)^\| `(\w+)` \|", (ROOT / "changelog.d" / "README.md").read_text("utf-8")
    )
    assert types == ["added", "changed", "fixed", "removed", "deprecated", "security"]
    assert path.read_text("utf-8").strip()
    assert path.name == "README.md" or re.fullmatch(
        rf"[a-z0-9-]+\.({'|'.join(types)})\.md", path.name
    )


def test_the_description_on_a_package_index_links_nothing_of_the_repository() -> None:
    """There is no such file beside it; all that stands before the list of pages is there."""
    build = [sys.executable, "-m", "hatchling", "metadata"]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    text = json.loads(done.stdout)["readme"]["text"]
    assert re.findall(r"\]\((?!https?:)[^)]*\)", text) == []
    assert "@pytest.mark.ranks(4)" in text
    assert "the check-up, recipes by what you fear" in text
