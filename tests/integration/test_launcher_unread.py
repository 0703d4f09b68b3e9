"""A console that nobody reads any more: Ctrl-S at a terminal, a log shipper that is stuck.

Both of the agent's pipes are filled by the test, as by workers that print all the time.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.called_launcher import LEAN, LIMIT_S

# Saves when it is told to go, and says so on its own standard output, which is the agent's.
SAVES = """
import os, signal, sys, time
def save(*_):
    open("saved", "w").close()
    os._exit(0)
signal.signal(signal.SIGTERM, save)
open("up", "w").write("up")
time.sleep(600)
"""
FAILS_TWICE = """
import os, sys
if int(os.environ["TORCHELASTIC_RESTART_COUNT"]) < 2: sys.exit(3)
open("up", "w").write("up")
while not os.path.exists("done"): __import__("time").sleep(0.02)
"""


class Unread:
    """A launcher whose standard output and error are one pipe that is full from the beginning."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.folder = folder
        os.mkfifo(folder / "up")
        self.up = os.open(folder / "up", os.O_RDONLY | os.O_NONBLOCK)
        self.reading, writing = os.pipe()
        self.filled = fill(writing)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pytest_elastic", "run", *words],
            cwd=folder,
            env={**os.environ, **LEAN, "PYTEST_ELASTIC_EVENTS": f"file:{folder}/events"},
            stdin=subprocess.DEVNULL,
            stdout=writing,
            stderr=writing,
        )
        os.close(writing)

    def wait_for_worker(self) -> None:
        """Wait until a worker says that it is up."""
        ready, _, _ = select.select([self.up], [], [], LIMIT_S)
        assert ready, self.kinds()

    def kinds(self) -> list[str]:
        """Return the kinds of the events so far."""
        lines = (self.folder / "events").read_text().splitlines()
        return [json.loads(line)["kind"] for line in lines]

    def read(self) -> str:
        """Read to the end of the launcher what comes behind what its pipe was filled with."""
        data = b""
        while chunk := os.read(self.reading, 65536):
            data += chunk
        return data[self.filled :].decode()

    def end(self) -> None:
        """Kill it, if it still runs."""
        self.process.kill()
        self.process.wait(LIMIT_S)
        os.close(self.reading)
        os.close(self.up)


def fill(writing: int) -> int:
    """Fill a pipe, and return how many bytes that took; what is open blocks as it did."""
    os.set_blocking(writing, False)
    filled = 0
    try:
        while True:
            filled += os.write(writing, b"." * 4096)
    except BlockingIOError:
        pass
    os.set_blocking(writing, True)
    return filled


@pytest.fixture
def unread(tmp_path: Path) -> Iterator[list[Unread]]:
    """A list of launchers that are ended behind the test."""
    started: list[Unread] = []
    yield started
    for each in started:
        each.end()


@pytest.mark.parametrize("tee", [(), ("--tee=3",)], ids=["plain", "tee"])
def test_a_signal_reaches_the_workers_though_nobody_reads(
    tmp_path: Path, unread: list[Unread], tee: tuple[str, ...]
) -> None:
    """They save in time, and the launcher ends as it would."""
    (tmp_path / "saves.py").write_text(SAVES)
    unread.append(Unread(tmp_path, "--standalone", *tee, "saves.py"))
    unread[0].wait_for_worker()
    unread[0].process.send_signal(signal.SIGTERM)
    assert unread[0].process.wait(LIMIT_S) == 128 + signal.SIGTERM
    assert (tmp_path / "saved").exists()


def test_a_job_restarts_though_nobody_reads_and_what_was_said_is_there_for_who_does(
    tmp_path: Path, unread: list[Unread]
) -> None:
    """Once somebody reads again: all lines, in their order."""
    (tmp_path / "fails.py").write_text(FAILS_TWICE)
    unread.append(Unread(tmp_path, "--standalone", "--max-restarts=3", "fails.py"))
    unread[0].wait_for_worker()
    assert unread[0].kinds().count("round_ended") == 2
    (tmp_path / "done").touch()
    said = unread[0].read()
    assert unread[0].process.wait(LIMIT_S) == 0
    begun = [line for line in said.splitlines() if re.search(r"\] round \d: ", line)]
    ended = [line for line in said.splitlines() if re.search(r"\] round \d ended: ", line)]
    assert [re.findall(r"round (\d)", line)[0] for line in begun] == ["1", "2", "3"], said
    assert [re.findall(r"round (\d)", line)[0] for line in ended] == ["1", "2", "3"], said
