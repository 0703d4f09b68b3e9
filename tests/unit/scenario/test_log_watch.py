"""Waiting for lines in logs: all of them are read, a piece at a time, however fast they grow."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from elastic_harness.scenario.log_watch import LogWatch

from pytest_elastic.loop import Loop


class Watched:
    """A watch on a folder, with what it has reported."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.loop = Loop()
        self.seen: list[tuple[str, str, str, str]] = []
        self.watch = LogWatch(self.loop, str(folder), lambda *line: self.seen.append(line))

    def log(self, node: str, text: str) -> None:
        """Append to a node's log."""
        (self.folder / node).mkdir(exist_ok=True)
        with open(self.folder / node / "launcher.log", "a", encoding="utf-8") as log:
            log.write(text)

    def serve(self, *, within_s: float = 30.0) -> None:
        """Serve the loop until something was reported, or nothing is unread."""
        deadline = self.loop.now() + within_s
        while not self.seen and self.watch.unread:
            assert self.loop.now() < deadline, "not read in time"
            self.loop.run_once(0.1)


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    """Return a watch on an empty folder."""
    watched = Watched(tmp_path)
    yield watched
    watched.watch.close()
    watched.loop.close()


def test_a_line_is_reported_with_its_node_file_and_pattern(watched: Watched) -> None:
    """Whichever file it is in, whether it was there before or comes later."""
    watched.log("n1", "one\nloss is nan\n")
    watched.watch.watch(re.compile("loss is"), None)
    assert watched.seen == [("n1", "launcher.log", "loss is", "loss is nan")]
    watched.seen.clear()
    watched.log("n2", "loss is 0.5\n")
    watched.serve()
    assert watched.seen == [("n2", "launcher.log", "loss is", "loss is 0.5")]


def test_a_line_is_reported_once_for_all_who_wait_for_it(watched: Watched) -> None:
    """For a node or for any, and however often it was asked for."""
    for node in (None, "n1", None):
        watched.watch.watch(re.compile("loss is"), node)
    watched.watch.watch(re.compile("loss"), None)
    watched.log("n1", "loss is nan\n")
    watched.log("n2", "loss is 0\n")
    watched.serve()
    assert sorted(watched.seen) == [
        ("n1", "launcher.log", "loss", "loss is nan"),
        ("n1", "launcher.log", "loss is", "loss is nan"),
        ("n2", "launcher.log", "loss", "loss is 0"),
        ("n2", "launcher.log", "loss is", "loss is 0"),
    ]


def test_a_pattern_may_be_for_one_node(watched: Watched) -> None:
    """And says nothing of the others."""
    watched.log("n1", "here\n")
    watched.log("n2", "here\n")
    watched.watch.watch(re.compile("here"), "n2")
    assert watched.seen == [("n2", "launcher.log", "here", "here")]


def test_a_line_that_is_not_ended_yet_is_waited_for(watched: Watched) -> None:
    """A line is written in pieces; it matches as a whole."""
    watched.watch.watch(re.compile("^whole$"), None)
    watched.log("n1", "who")
    watched.serve()
    assert watched.seen == []
    watched.log("n1", "le\n")
    watched.serve()
    assert [text for *_, text in watched.seen] == ["whole"]


def test_what_stands_at_the_end_of_much_output_is_found_soon(watched: Watched) -> None:
    """60 MB at once: at one piece each 50 ms it would take 12 s, in which a run may be over."""
    watched.log("n1", ("x" * 999 + "\n") * 60_000 + "the needle\n")
    began = watched.loop.now()
    watched.watch.watch(re.compile("needle"), None)
    watched.serve()
    assert [text for *_, text in watched.seen] == ["the needle"]
    assert watched.loop.now() - began < 10.0


def test_what_is_unread_is_known(watched: Watched) -> None:
    """A run that ends before its output was read must not say that something was never seen."""
    watched.log("n1", "x" * 1_000_000)
    assert watched.watch.unread == [], "nobody waits for anything"
    watched.watch.watch(re.compile("needle"), None)
    assert watched.watch.unread == ["n1/launcher.log"]
    watched.serve()
    assert watched.watch.unread == []


def test_a_pattern_that_every_line_matches_does_not_report_every_line(watched: Watched) -> None:
    """A history of a gigabyte of output would be one itself."""
    watched.log("n1", "x\n" * 1_000)
    watched.watch.watch(re.compile("x"), None)
    assert 1 <= len(watched.seen) <= 20


def test_what_is_left_at_the_end_is_read_at_once(watched: Watched) -> None:
    """Nothing is written any more, and the run will soon be over."""
    watched.watch.watch(re.compile("needle"), None)
    watched.log("n1", ("x" * 999 + "\n") * 2_000 + "the needle\n")
    watched.watch.catch_up()
    assert [text for *_, text in watched.seen] == ["the needle"]
    assert watched.watch.unread == []
