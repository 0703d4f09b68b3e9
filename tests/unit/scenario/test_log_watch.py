"""Waiting for lines in logs: all of them are read, a piece at a time, however fast they grow."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TextIO

import pytest
from elastic_harness.cluster.facets import LogFile
from elastic_harness.cluster.local_logs import LocalLogs
from elastic_harness.scenario.stage.log_watch import FoundLine, LogWatch

from pytest_elastic.loop import Loop

PARTS_OF_A_SECOND = 0.3  # of many looks


def _first_word(_file: str, line: str) -> str:
    return line.partition(" ")[0]


class Watched:
    """A watch on a folder, with what it has reported."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.loop = Loop()
        self.found: list[FoundLine] = []
        self.watch = LogWatch(
            self.loop, LocalLogs(), str(folder), self.found.append, log_source_of=_first_word
        )
        self._open: dict[str, TextIO] = {}

    @property
    def seen(self) -> list[tuple[str, str, str, str]]:
        """What was reported."""
        return [(each.node, each.file, each.pattern, each.line) for each in self.found]

    @property
    def lines(self) -> list[str]:
        """The lines that were reported."""
        return [each.line for each in self.found]

    def log(self, node: str, text: str) -> None:
        """Append to a node's log, which stays open, as a process keeps it."""
        if node not in self._open:
            (self.folder / node).mkdir(exist_ok=True)
            path = self.folder / node / "launcher.log"
            self._open[node] = path.open("a", encoding="utf-8")
        self._open[node].write(text)
        self._open[node].flush()

    def end(self, node: str) -> None:
        """Close a node's log, as the end of its last process does."""
        self._open.pop(node).close()

    def ask(self, pattern: str, node: str | None = None) -> None:
        """Wait for a pattern, until what is there was read."""
        self.watch.watch(re.compile(pattern), node)
        self.until(lambda: not self.watch.unread)

    def until(self, is_so: Callable[[], bool], *, within_s: float = 30.0) -> None:
        """Serve the loop until something is so."""
        deadline = self.loop.now() + within_s
        while not is_so():
            assert self.loop.now() < deadline, "not read in time"
            self.loop.run_once(0.1)

    def serve(self) -> None:
        """Serve the loop until something was reported, or nothing is unread."""
        self.until(lambda: bool(self.found) or not self.watch.unread)

    def pass_time(self) -> None:
        """Let it look many times."""
        until = self.loop.now() + PARTS_OF_A_SECOND
        while self.loop.now() < until:
            self.loop.run_once(0.05)

    def close(self) -> None:
        """Stop, and close all files."""
        self.watch.close()
        self.loop.close()
        for log in self._open.values():
            log.close()


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    """Return a watch on an empty folder."""
    watched = Watched(tmp_path)
    yield watched
    watched.close()


def test_a_line_is_reported_with_its_node_file_and_pattern(watched: Watched) -> None:
    """Whichever file it is in, whether it was there before or comes later."""
    watched.log("n1", "one\nloss is nan\n")
    watched.ask("loss is")
    assert watched.seen == [("n1", "launcher.log", "loss is", "loss is nan")]
    assert (watched.found[0].source, watched.found[0].was_there) == ("loss", True)
    watched.found.clear()
    watched.log("n2", "loss is 0.5\n")
    watched.serve()
    assert watched.seen == [("n2", "launcher.log", "loss is", "loss is 0.5")]
    assert not watched.found[0].was_there


def test_a_line_is_reported_once_for_all_who_wait_for_it(watched: Watched) -> None:
    """For a node or for any, and however often it was asked for."""
    for node in (None, "n1", None):
        watched.ask("loss is", node)
    watched.ask("loss")
    watched.log("n1", "loss is nan\n")
    watched.log("n2", "loss is 0\n")
    watched.until(lambda: not watched.watch.unread)
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
    watched.ask("here", "n2")
    assert watched.seen == [("n2", "launcher.log", "here", "here")]


def test_a_line_that_is_not_ended_yet_is_waited_for(watched: Watched) -> None:
    """A line is written in pieces; it matches once, and as a whole."""
    watched.ask("who")
    watched.ask("^whole$")
    watched.log("n1", "who")
    watched.pass_time()
    assert watched.lines == []
    watched.log("n1", "le\n")
    watched.until(lambda: not watched.watch.unread)
    assert watched.lines == ["whole", "whole"]


def test_the_last_line_counts_without_a_newline_when_its_writer_is_gone(watched: Watched) -> None:
    """`FATAL` and the end of the process: nobody will end that line any more."""
    watched.ask("FATAL")
    watched.log("n1", "one\nFATAL")
    watched.pass_time()
    assert watched.lines == []
    watched.end("n1")
    watched.until(lambda: bool(watched.found))
    assert watched.lines == ["FATAL"]
    watched.log("n1", " of another process\n")
    watched.pass_time()
    watched.watch.catch_up()
    assert watched.lines == ["FATAL"], "reported once"


def test_the_last_line_counts_at_the_end_whoever_has_the_file_open(watched: Watched) -> None:
    """At the end of a run everything is ended, whatever is still about to be."""
    watched.ask("FATAL")
    watched.log("n1", "FATAL")
    assert watched.watch.output_read().unread == ()
    assert watched.lines == ["FATAL"]
    watched.watch.catch_up()
    assert watched.lines == ["FATAL"], "reported once"


def test_a_pattern_that_is_added_later_sees_what_was_written_before(watched: Watched) -> None:
    """Files are read again from the beginning, for that pattern only, also behind much output."""
    watched.log("n1", "early bird\n" + ("x" * 999 + "\n") * 3_000)
    watched.ask("bird")
    watched.ask("early")
    watched.log("n1", "early riser\n")
    watched.until(lambda: not watched.watch.unread)
    assert sorted((each.pattern, each.line, each.was_there) for each in watched.found) == [
        ("bird", "early bird", True),
        ("early", "early bird", True),
        ("early", "early riser", False),
    ]


def test_what_stands_at_the_end_of_much_output_is_found_soon(watched: Watched) -> None:
    """60 MB at once: at one piece each 50 ms it would take 12 s, in which a run may be over."""
    watched.log("n1", ("x" * 999 + "\n") * 60_000 + "the needle\n")
    began = watched.loop.now()
    watched.ask("needle")
    assert watched.lines == ["the needle"]
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
    """A history of a gigabyte of output would be one itself; how many are missing is said."""
    watched.log("n1", "x\n" * 1_000)
    watched.ask("x")
    assert len(watched.found) == 20
    assert watched.watch.output_read().left_out == {"x": 980}


def test_nobody_hides_anybody_elses_line(watched: Watched) -> None:
    """A launcher that says thirty times what a worker says once."""
    watched.log("n1", "launcher: saved\n" * 30 + "worker: saved\n")
    watched.ask("saved")
    assert watched.lines[-1] == "worker: saved"
    assert {each.source for each in watched.found} == {"launcher:", "worker:"}


def test_what_is_left_at_the_end_is_read_at_once(watched: Watched) -> None:
    """Nothing is written any more, and the run will soon be over."""
    watched.ask("needle")
    watched.log("n1", ("x" * 999 + "\n") * 2_000 + "the needle\n")
    watched.watch.catch_up()
    assert watched.lines == ["the needle"]
    assert watched.watch.unread == []


def test_a_file_that_shrinks_is_read_again_and_is_said_not_to_be_whole(watched: Watched) -> None:
    """What was written between the last look and the cut is nowhere any more."""
    watched.log("n1", "one\ntwo\nthr")
    watched.ask("o|thr")
    os.truncate(watched.folder / "n1" / "launcher.log", 0)
    watched.log("n1", "four\n")
    watched.until(lambda: "four" in watched.lines)
    assert watched.lines == ["one", "two", "thr", "four"]
    assert watched.watch.output_read().unread == (
        "n1/launcher.log (it shrank from 11 to 5 bytes while it was read)",
    )


def test_a_file_that_is_replaced_is_said_not_to_be_whole(watched: Watched) -> None:
    """As rotation does: what was still written to the old one was not read."""
    watched.log("n1", "one\n")
    watched.ask(".")
    log = watched.folder / "n1" / "launcher.log"
    log.rename(log.with_suffix(".old"))
    watched.end("n1")
    watched.log("n1", "two, in another\n")
    watched.until(lambda: len(watched.found) == 2)
    assert watched.lines == ["one", "two, in another"]
    (unread,) = watched.watch.unread
    assert unread == "n1/launcher.log (it was replaced by another file while it was read)"
    os.unlink(log)
    assert watched.watch.unread == ["n1/launcher.log (No such file or directory)"]


def test_what_cannot_be_read_counts_as_unread() -> None:
    """A file and a folder of somebody else's, and what is no file at all."""
    folder = Path(tempfile.mkdtemp())
    watched = Watched(folder)
    user = os.geteuid()
    try:
        watched.log("n1", "needle\n")
        (folder / "n1" / "launcher.log").chmod(0)
        (folder / "n2" / "kept").mkdir(parents=True)
        (folder / "n2" / "kept").chmod(0)
        os.mkfifo(folder / "n2" / "pipe.log")
        folder.chmod(0o755)
        if user == 0:
            os.seteuid(65534)  # root can read everything
        watched.watch.watch(re.compile("needle"), None)
        assert watched.watch.output_read().unread == (
            "n1/launcher.log (Permission denied)",
            "n2/kept (Permission denied)",
            "n2/pipe.log (it is no regular file)",
        )
        assert watched.found == []
    finally:
        os.seteuid(user)
        watched.close()
        (folder / "n2" / "kept").chmod(0o700)
        shutil.rmtree(folder)


def test_links_are_not_followed_out_of_the_folder(watched: Watched, tmp_path: Path) -> None:
    """A line has one place; what stands elsewhere was not read, and that is said."""
    outside = tmp_path / "outside.txt"
    outside.write_text("needle\n")
    watched.log("n1", "needle\n")
    node = watched.folder / "n1"
    (node / "same.log").symlink_to(node / "launcher.log")
    (node / "elsewhere.log").symlink_to(outside)
    (node / "gone.log").symlink_to("/nowhere/at.log")
    watched.watch.watch(re.compile("needle"), None)
    assert watched.watch.output_read().unread == (
        f"n1/elsewhere.log (a link to {outside})",
        "n1/gone.log (a link to /nowhere/at.log)",
    )
    assert watched.seen == [("n1", "launcher.log", "needle", "needle")]


class LogsElsewhere:
    """`Logs` of another machine, of which this much has arrived here."""

    def __init__(self, texts: dict[str, str], *, ended: bool) -> None:
        self.texts = texts
        self.ended = ended

    def list(self, folder: str) -> Sequence[LogFile]:
        return [LogFile(path=path, size=len(text)) for path, text in self.texts.items()]

    def read(self, path: str, offset: int, size: int) -> bytes:
        return self.texts[path].encode()[offset : offset + size]

    def is_complete(self, path: str, size: int) -> bool:
        return self.ended


def test_logs_need_not_be_files_of_this_machine() -> None:
    """What the cluster has fetched counts, and so does its word that a last line is complete."""
    loop, found = Loop(), list[FoundLine]()
    logs = LogsElsewhere({"/logs/n1/launcher.log": "loss is nan\nloss is"}, ended=False)
    watch = LogWatch(loop, logs, "/logs", found.append, log_source_of=_first_word)
    watch.watch(re.compile("loss"), None)
    loop.run_once(1.0)
    assert [each.line for each in found] == ["loss is nan"]
    logs.ended = True
    while len(found) < 2:
        loop.run_once(1.0)
    assert [each.line for each in found] == ["loss is nan", "loss is"]
    watch.close()
    loop.close()
