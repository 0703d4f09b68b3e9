from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from elastic_harness.cluster.local_reporters import LocalReporters
from elastic_harness.history.events import (
    ParametersHashed,
    ResumeObserved,
    StepCompleted,
    WorkerHello,
    WorkerRaised,
)
from elastic_harness.observe.observer import PROBE_FOLDER, Observer, probe_environ
from elastic_harness.observe.stacks import StackOffer
from hypothesis import given
from hypothesis import strategies as st

from pytest_elastic.errors import UsageError
from pytest_elastic.events.codec import event_from
from pytest_elastic.events.model import Event, Record
from pytest_elastic.loop import Loop

DEADLINE_S = 60.0
HELLO = {
    "say": "worker_hello",
    "at": 1.0,
    "rank": 0,
    "local_rank": 0,
    "group_rank": 0,
    "world_size": 1,
    "restart_count": None,
    "max_restarts": None,
    "master_addr": "a",
    "master_port": 1,
    "run_id": "",
    "round": None,
    "node": "n1",
    "argv": ["python"],
}

RAISED = {"error": "OSError", "message": "disk", "frames": ["/train.py:8 in save"], "thread": ""}
OFFER = {"fd": 513, "signal": 47, "main": 1}


def test_a_launcher_gets_the_probe_in_front_of_its_own_python_path() -> None:
    """Whatever else is in its environment stays."""
    environ = probe_environ("/run/s", {"PYTHONPATH": "/mine", "X": "y"})
    assert environ == {
        "PYTHONPATH": f"{PROBE_FOLDER}:/mine",
        "X": "y",
        "ELASTIC_PROBE_SOCKET": "/run/s",
    }
    assert probe_environ("/run/s", {})["PYTHONPATH"] == PROBE_FOLDER


def test_a_path_that_the_kernel_cannot_take_is_refused_with_the_limit(loop: Loop) -> None:
    """A Unix socket's path has 108 bytes, and the kernel's own error does not say so."""
    with pytest.raises(UsageError, match="at most 107"):
        Observer(loop, LocalReporters(loop), "/tmp/" + "x" * 110, print)


def test_orders_wait_for_the_hello_and_come_before_the_welcome(loop: Loop, tmp_path: Path) -> None:
    """A worker knows its holds before its first line; the socket goes with the observer."""
    path = tmp_path / "s"
    records: list[Record] = []
    observer = Observer(loop, LocalReporters(loop), str(path), records.append, hash_parameters=True)
    observer.arm(20, None)
    observer.arm(22, 0)
    observer.arm(22, 0)
    observer.arm(30, 1)
    with socket.socket(socket.AF_UNIX) as probe:
        probe.connect(str(path))
        probe.sendall(json.dumps(HELLO).encode() + b"\n")
        probe.setblocking(False)
        said = b""
        deadline = loop.now() + DEADLINE_S
        while b"welcome" not in said and loop.now() < deadline:
            loop.run_once(0.1)
            try:
                said += probe.recv(1000)
            except BlockingIOError:
                continue
    assert said.decode().splitlines() == [
        "hold 20",
        "hold 22",
        "welcome hash=1 samples=0 rate=0 hold_s=30",
    ]
    # The kernel says who is at the other end, whatever the hello says.
    assert [record.event.kind for record in records] == ["worker_hello"]
    assert [source.worker.pid for source in observer.stack_sources] == [os.getpid()]
    observer.close()
    observer.close()
    assert not path.exists()


class Said:
    """An observer with one worker, and what becomes of its lines."""

    def __init__(self, loop: Loop, folder: Path) -> None:
        self.records: list[Record] = []
        self._loop = loop
        self.observer = Observer(loop, LocalReporters(loop), str(folder / "s"), self.records.append)
        self._probe = socket.socket(socket.AF_UNIX)
        self._probe.connect(str(folder / "s"))

    def say(self, *lines: Mapping[str, object]) -> list[Event]:
        """Say something, and return the events of the history that come of it."""
        before = len(self.records)
        for line in lines:
            self._probe.sendall(json.dumps(line).encode() + b"\n")
        for _ in range(3):  # accepted, read, and gone
            self._loop.run_once(0.05)
        return [record.event for record in self.records[before:]]

    def close(self) -> None:
        """End both."""
        self._probe.close()
        self.observer.close()


@pytest.fixture
def said(loop: Loop, tmp_path: Path) -> Iterator[Said]:
    """Give an observer and a connection to it."""
    made = Said(loop, tmp_path)
    yield made
    made.close()


def test_what_probes_say_becomes_events(said: Said) -> None:
    """The pid is the kernel's, times are put on the harness's clock."""
    (hello,) = said.say(HELLO)
    assert isinstance(hello, WorkerHello)
    assert (hello.pid, hello.argv) == (os.getpid(), ("python",))
    skew_s = said.records[0].at - 1.0  # it says that it was second 1 of its clock
    step = {"count": 1, "step": None, "step_source": "process", "began_at": 2.0}
    hashed = {"step": 3, "digest": "x", "reason": "NotImplementedError: meta"}
    of_this: dict[str, Any] = {"pid": os.getpid(), "rank": 0}
    assert said.say(
        {"say": "step_completed", "at": 3.0, **step},
        {"say": "worker_raised", "at": 4.0, **RAISED, "pid": 1},
        {"say": "parameters_hashed", "at": 5.0, **hashed},
        {"say": "resume_observed", "at": 6.0, "step": None},
    ) == [
        StepCompleted(**of_this, count=1, step=None, step_source="process", began_at=2.0 + skew_s),
        WorkerRaised(**of_this, error="OSError", message="disk", frames=("/train.py:8 in save",)),
        ParametersHashed(**of_this, step=3, digest="x", reason="NotImplementedError: meta"),
        ResumeObserved(**of_this, step=None),
    ]


def test_a_worker_says_nothing_of_the_run_itself(said: Said) -> None:
    """It is somebody's program: only what workers observe of themselves is taken."""
    said.say(HELLO)
    assert (
        said.say(
            {"say": "run_ended", "at": 1.0, "outcome": "succeeded"},
            {"say": "worker_gone", "at": 1.0},
            {"say": "song", "at": 1.0},
        )
        == []
    )


@pytest.mark.parametrize("signal", [0, -1, 65])
def test_what_is_no_signal_is_never_sent(signal: int) -> None:
    """A worker may say anything."""
    assert StackOffer.of(OFFER) == StackOffer(fd=513, signal=47, main=1)
    with pytest.raises(ValueError, match="no signal"):
        StackOffer.of({**OFFER, "signal": signal})


@given(
    st.sampled_from(["worker_hello", "step_completed", "samples_drawn", "parameters_hashed", "x"]),
    st.dictionaries(
        st.sampled_from([*HELLO, "count", "step", "batches", "began_at", "nonce", *OFFER, *RAISED]),
        st.none() | st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=2),
    ),
)
def test_nonsense_raises_only_what_the_observer_expects(
    say: str, fields: dict[str, object]
) -> None:
    """A probe of another version, or a stranger, ends nothing."""
    event_from(say, fields)
    with contextlib.suppress(KeyError, TypeError, ValueError):
        StackOffer.of(fields)
