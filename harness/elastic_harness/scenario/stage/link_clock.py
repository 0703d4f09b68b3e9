"""When links have delivered packets and dropped them, for the timeline page and nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping

from elastic_harness.cluster.cluster import Cluster
from elastic_harness.cluster.facets import NetworkCounters
from elastic_harness.future import Future
from elastic_harness.network.link_model import LinkCounters, Pair
from pytest_elastic.loop import Loop, Timer

__all__ = ["LINK_COUNTS", "LinkClock"]

LINK_COUNTS = "link-counts.jsonl"
# A person who looks for the moment of a cut needs no more; a look is a question to each node.
_LOOK_S = 0.5
# Two hours; what comes later is not on the page.
_MOST_MARKS = 15_000


class LinkClock:
    """Reads the counters of all links from time to time; `close` writes what has changed to a file.

    A line has the time, and what links have delivered and dropped since the run began, by
    `n1>n2`: `{"at": 7.5, "links": {"n1>n2": [120, 3]}}`.
    """

    def __init__(self, loop: Loop, cluster: Cluster, path: str) -> None:
        self._loop = loop
        self._cluster = cluster
        self._path = path
        self.looks = 0
        self._known: dict[Pair, tuple[int, int]] = {}
        self._marks: list[str] = []
        self._timer: Timer | None = None
        self._is_closed = False

    def start(self) -> None:
        """Begin to look, where links are counted."""
        if self._cluster.network is not None:
            self._cluster.network.counters().add_done_callback(self._on_counters)

    def note(self, links: Mapping[Pair, LinkCounters]) -> None:
        """Note what has changed since the last look."""
        self.looks += 1
        changed = {}
        for pair, link in links.items():
            counted = (link.delivered, sum(link.dropped.values()))
            if counted != self._known.get(pair, (0, 0)):
                self._known[pair] = counted
                changed[f"{pair[0]}>{pair[1]}"] = counted
        if len(self._marks) < _MOST_MARKS:
            mark = {"at": round(self._loop.now(), 3), "links": changed}
            self._marks.append(json.dumps(mark) + "\n")

    def close(self) -> None:
        """Look no more, and write the file. A disk that is full costs the page its links only."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        if not self._marks:
            return
        try:
            with open(self._path, "w", encoding="utf-8") as file:
                file.writelines(self._marks)
        except OSError:
            return

    def _on_counters(self, counted: Future[NetworkCounters]) -> None:
        if self._is_closed:
            return
        if counted.error is None:
            self.note(counted.result().links)
        self._timer = self._loop.call_at(self._loop.now() + _LOOK_S, self.start)
