"""A failed worker's own words: read as torch writes them, and harmed by nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from pytest_elastic.workers.error_file import (
    WorkerError,
    forward_error_file,
    read_error_file,
    write_error_file,
)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """`write_error_file` and `read_error_file` are each other's inverse."""
    path = str(tmp_path / "error.json")
    error = WorkerError(message="m", traceback="t\n", timestamp=12, error_code=-9)
    write_error_file(path, error)
    assert read_error_file(path) == error
    assert os.listdir(tmp_path) == ["error.json"]


def test_the_plain_form_is_read(tmp_path: Path) -> None:
    """A string as message, and the time beside it, is the other form torchrun accepts."""
    path = tmp_path / "error.json"
    path.write_text('{"message": "plain", "timestamp": "5"}')
    assert read_error_file(str(path)) == WorkerError(message="plain", timestamp=5)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe\x00",
        b"[1, 2]",
        b"null",
        b'{"other": 1}',
        b'{"message": 7}',
        b"[" * 100_000,
        b'{"message": "' + b"x" * (5 * 1024 * 1024) + b'"}',
    ],
    ids=lambda content: repr(content[:12]),
)
def test_a_file_that_cannot_be_understood_says_nothing(tmp_path: Path, content: bytes) -> None:
    """Torn, binary, foreign or huge: no error, no exception."""
    path = tmp_path / "error.json"
    path.write_bytes(content)
    assert read_error_file(str(path)) is None


def test_bytes_that_are_no_text_are_shown_as_escapes(tmp_path: Path) -> None:
    """A file name in the message of an exception, as Python holds it: it goes to every node."""
    path = tmp_path / "error.json"
    extra = {"py_callstack": "at caf\udce9", "timestamp": "1"}
    path.write_text(json.dumps({"message": {"message": "no caf\udce9", "extraInfo": extra}}))
    error = read_error_file(str(path))
    assert error == WorkerError(message="no caf\\udce9", traceback="at caf\\udce9", timestamp=1)


def test_odd_values_inside_do_no_harm(tmp_path: Path) -> None:
    """What is not of the expected type is left out or shown as it is."""
    path = tmp_path / "error.json"
    message = {"message": ["a"], "extraInfo": {"py_callstack": 3, "timestamp": "soon"}}
    path.write_text(json.dumps({"message": {**message, "errorCode": "x"}}))
    assert read_error_file(str(path)) == WorkerError(message="['a']", traceback="3")


def test_what_is_no_file_says_nothing(tmp_path: Path) -> None:
    """A missing file, a folder, and a pipe that nobody writes are no errors and do not block."""
    os.mkfifo(tmp_path / "pipe")
    for name in ("missing", "", "pipe"):
        assert read_error_file(str(tmp_path / name)) is None


def test_a_root_cause_is_passed_on_with_its_exit_code(tmp_path: Path) -> None:
    """The agent's own error file is its worker's, and the exit code is added."""
    source, target = str(tmp_path / "worker.json"), str(tmp_path / "agent.json")
    write_error_file(source, WorkerError(message="m"))
    assert forward_error_file(source, target, -11)
    assert read_error_file(target) == WorkerError(message="m", error_code=-11)
    assert not forward_error_file(str(tmp_path / "missing"), target, 1)


def test_an_error_is_never_written_where_a_link_of_somebody_else_leads(tmp_path: Path) -> None:
    """In a folder for all, whose names can be guessed."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    path = tmp_path / "error.json"
    for name in (f"error.json.{os.getpid()}", "error.json"):
        (tmp_path / name).symlink_to(victim)
    write_error_file(str(path), WorkerError(message="m"))
    assert victim.read_text() == "precious"
    assert read_error_file(str(path)) == WorkerError(message="m")
