"""What is noted from time to time for the timeline page, and for nothing else.

Programs print lines without times, straight into files: how large a file was at which moment says
when each line was there, at the latest. And what links had delivered and dropped at which moment
says when they were cut.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping

from elastic_harness.cluster.cluster import Cluster
from elastic_harness.cluster.facets import Logs, NetworkCounters
from elastic_harness.future import Future
from elastic_harness.network.link_model import LinkCounters, Pair
from pytest_elastic.loop import Loop, Timer

__all__ = ["LINK_COUNTS", "LOG_TIMES", "LinkClock", "LogClock"]

# Where a run keeps what was noted, in its own folder.
LINK_COUNTS = "link-counts.jsonl"
LOG_TIMES = "log-times.jsonl"

# A person who looks for the moment of a cut needs no more; a look is a question to each node.
_LOOK_AT_LINKS_S = 0.5
# Lines are shown two seconds around a cursor: a tenth of that is exact enough, and costs nothing.
_LOOK_AT_LOGS_S = 0.2
# Two hours of links, and of three logs that grow all the time; what comes later is not on the page.
_MOST_OF_LINKS = 15_000
_MOST_OF_LOGS = 100_000


class _Clock(ABC):
    """Looks every `look_s`, notes at most so many marks, and writes them when it is closed."""

    def __init__(self, loop: Loop, path: str, *, look_s: float, at_most: int) -> None:
        self._loop = loop
        self._path = path
        self._look_s = look_s
        self._at_most = at_most
        self._marks: list[str] = []
        self._timer: Timer | None = None
        self._is_closed = False

    @abstractmethod
    def start(self) -> None:
        """Look, and see to it that this is done again."""

    def _start_later(self) -> None:
        if not self._is_closed:
            self._timer = self._loop.call_at(self._loop.now() + self._look_s, self.start)

    def _mark(self, **values: object) -> None:
        if len(self._marks) < self._at_most:
            mark = {"at": round(self._loop.now(), 3), **values}
            self._marks.append(json.dumps(mark) + "\n")

    def close(self) -> None:
        """Look no more, and write the file. A disk that is full costs the page these times only."""
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


class LinkClock(_Clock):
    """What links have delivered and dropped since the run began, where links are counted.

    A line has the time, and the links that have changed, by `n1>n2`:
    `{"at": 7.5, "links": {"n1>n2": [120, 3]}}`.
    """

    def __init__(self, loop: Loop, cluster: Cluster, path: str) -> None:
        super().__init__(loop, path, look_s=_LOOK_AT_LINKS_S, at_most=_MOST_OF_LINKS)
        self._cluster = cluster
        self._known: dict[Pair, tuple[int, int]] = {}

    def start(self) -> None:
        if self._cluster.network is not None:
            self._cluster.network.counters().add_done_callback(self._on_counters)

    def note(self, links: Mapping[Pair, LinkCounters]) -> None:
        """Note what has changed since the last look."""
        changed = {}
        for pair, link in links.items():
            counted = (link.delivered, sum(link.dropped.values()))
            if counted != self._known.get(pair, (0, 0)):
                self._known[pair] = counted
                changed[f"{pair[0]}>{pair[1]}"] = counted
        self._mark(links=changed)

    def _on_counters(self, counted: Future[NetworkCounters]) -> None:
        if not self._is_closed and counted.error is None:
            self.note(counted.result().links)
        self._start_later()


class LogClock(_Clock):
    """How large each log below a folder is, a line for each time that one had grown."""

    def __init__(self, loop: Loop, logs: Logs, folder: str, path: str) -> None:
        super().__init__(loop, path, look_s=_LOOK_AT_LOGS_S, at_most=_MOST_OF_LOGS)
        self._logs = logs
        self._folder = folder
        self._sizes: dict[str, int] = {}

    def start(self) -> None:
        self._look()
        self._start_later()

    def close(self) -> None:
        self._look()
        super().close()

    def _look(self) -> None:
        for file in self._logs.list(self._folder):
            if file.size != self._sizes.get(file.path, 0):
                self._sizes[file.path] = file.size
                self._mark(file=os.path.relpath(file.path, self._folder), size=file.size)
