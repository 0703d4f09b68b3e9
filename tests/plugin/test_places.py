"""A run's place among all pytest processes of a user: so many at a time, and none is ever lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import pytest

from pytest_elastic.plugin.hub import take_place

ROOT = Path(__file__).parents[2]

HOLDS = """
import sys, time
from pytest_elastic.plugin.hub import take_place
place = take_place(sys.argv[1], 1)
print("taken", flush=True)
time.sleep(600)
"""


@pytest.fixture
def name() -> str:
    """Return a name of this test's own: real runs beside it have others."""
    return f"test-{uuid.uuid4()}"


def test_whoever_comes_late_waits_until_a_place_is_given_back(name: str) -> None:
    """Two places, three that want one; the third is woken by the first to leave."""
    first, second = take_place(name, 2), take_place(name, 2)
    third_has_one = threading.Event()

    def wait() -> None:
        with take_place(name, 2):
            third_has_one.set()

    third = threading.Thread(target=wait)
    third.start()
    assert not third_has_one.wait(0.3), "there are two places"
    second.close()
    assert third_has_one.wait(10)
    third.join(10)
    first.close()
    with take_place(name, 1):
        pass


def test_the_place_of_a_killed_process_is_free_again(name: str) -> None:
    """Nothing has to be cleaned up after it, and nothing of it is in a file system."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDS, name], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert holder.stdout is not None, "it was started with a pipe"
    assert holder.stdout.readline() == "taken\n"
    has_it = threading.Event()

    def wait() -> None:
        with take_place(name, 1):
            has_it.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert not has_it.wait(0.2)
    os.kill(holder.pid, signal.SIGKILL)
    assert has_it.wait(10)
    waiting.join(10)
    holder.communicate()
