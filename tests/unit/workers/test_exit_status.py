"""An exit code in words."""

from __future__ import annotations

import pytest

from pytest_elastic.workers.exit_status import ExitStatus, describe_exit


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (ExitStatus(code=0), "exited with status 0"),
        (ExitStatus(code=3), "exited with status 3"),
        (ExitStatus(code=-9), "was killed by SIGKILL (9)"),
        (ExitStatus(code=-63), "was killed by signal 63"),
        (
            ExitStatus(code=137),
            "exited with status 137 (perhaps a child of it was killed by SIGKILL (9))",
        ),
        (ExitStatus(code=255), "exited with status 255"),
        (
            ExitStatus(code=-9, was_out_of_memory=True),
            "was killed by the kernel because memory ran out (SIGKILL)",
        ),
        (
            ExitStatus(code=127, start_error="No such file or directory: /x"),
            "could not be started: No such file or directory: /x",
        ),
    ],
)
def test_an_exit_is_described_in_one_clause(status: ExitStatus, words: str) -> None:
    """A person reads what happened, not a number with a convention behind it."""
    assert describe_exit(status) == words


def test_a_shell_shows_a_signal_as_128_and_its_number() -> None:
    """`shell_code` is what `$?` would be."""
    assert [ExitStatus(code=code).shell_code for code in (0, 7, -15, -9)] == [0, 7, 143, 137]


def test_only_status_0_is_success() -> None:
    """Neither a signal nor a failed start is."""
    assert ExitStatus(code=0).is_success
    assert not ExitStatus(code=-15).is_success
    assert not ExitStatus(code=0, start_error="fork failed").is_success
