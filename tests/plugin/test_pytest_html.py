"""What the report of pytest-html has of runs; the real plugin writes it."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.plugin.place import Place, scenario


def links_in(report: Path) -> dict[str, list[tuple[str, str]]]:
    """Return the links that a report shows with each test, by the end of the test's name."""
    found = re.search(r'data-jsonblob="([^"]*)"', report.read_text())
    assert found is not None
    tests = json.loads(html.unescape(found[1]))["tests"]
    return {
        name.rpartition("::")[2]: [
            (extra["name"], extra["content"])
            for row in rows
            for extra in row["extras"]
            if extra["format_type"] == "url"
        ]
        for name, rows in tests.items()
    }


@pytest.mark.parametrize("more", [(), ("-n", "1")], ids=["alone", "xdist"])
def test_a_kept_run_is_linked_from_the_report(place: Place, more: tuple[str, ...]) -> None:
    """A failed test's row leads to its timeline and to all runs; a passing one's has no link."""
    place.add_scripts()
    place.add("good.elastic.yaml", scenario("good"))
    place.add("bad one.elastic.yaml", scenario("bad", script="exits_3.py"))
    called = place.pytest("--html=out/report.html", *more)
    assert called.code == 1, called.out
    links = links_in(place.folder / "out" / "report.html")
    assert links["good"] == []
    assert [name for name, _ in links["bad"]] == ["timeline", "all runs"]
    for _, link in links["bad"]:
        assert (place.folder / "out" / unquote(link)).is_file(), link
