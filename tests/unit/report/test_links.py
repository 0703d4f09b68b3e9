"""Who could reach whom: what links were counted to deliver and drop, on the page."""

from __future__ import annotations

import json

from elastic_harness.report.noted_times import link_lines, reach, read_link_uses
from elastic_harness.report.timeline import timeline_html

from tests.unit.history.story import Story

START = 100.0
COUNTS: tuple[tuple[float, dict[str, tuple[int, int]]], ...] = (
    (100.0, {"n1>n2": (4, 0), "n2>n1": (4, 0), "n2>n10": (1, 0)}),
    (100.5, {"n1>n2": (10, 0), "n2>n1": (9, 0)}),
    (101.0, {"n1>n2": (10, 3)}),  # a cut: what is sent is dropped
    (101.5, {}),  # nobody tries
    (102.0, {"n1>n2": (10, 4)}),
    (102.5, {"n1>n2": (15, 5)}),
    (103.0, {"n2>n1": (9, 2)}),
)


def lines() -> list[str]:
    """Return a file of counts, with a line that was torn."""
    return [json.dumps({"at": at, "links": links}) for at, links in COUNTS] + ['{"at": 10']


def test_each_node_is_told_what_arrived_from_every_other_and_when_nothing_did() -> None:
    """A link is cut from the look before the first packet was dropped to that after the last."""
    names, rows = reach(read_link_uses(lines()), START)
    assert names == ["n1", "n2", "n10"]
    assert rows == [
        ("n1", ["", "15, 5 dropped, none from 0.5 s to 2.0 s", ""]),
        ("n2", ["9, 2 dropped, none from 2.5 s to the end", "", "1"]),
        ("n10", ["", "", ""]),
    ]


def test_a_look_at_the_links_stands_among_the_lines_of_logs() -> None:
    """With what was delivered and dropped since the look before."""
    told = [(line.at, line.text) for line in link_lines(read_link_uses(lines()))]
    assert told[1:3] == [(100.5, "n1 to n2: 6, n2 to n1: 5"), (101.0, "n1 to n2: 0 (3 dropped)")]


def test_the_page_has_the_table_where_links_were_counted() -> None:
    """Elsewhere it has no empty one."""
    history = Story(nodes=1).round(1, ["n1"]).steps(1, 1, 1).end().history
    assert "Who could reach whom" not in timeline_html(history)
    page = timeline_html(history, links=read_link_uses(lines()))
    assert "Who could reach whom" in page
    assert "15, 5 dropped, none from" in page
