"""An exit code in words."""

from __future__ import annotations

import pytest

from pytest_elastic.exit_codes import describe_exit, exit_text


@pytest.mark.parametrize(
    ("code", "words", "text"),
    [
        (0, "exited with status 0", "exit code 0"),
        (3, "exited with status 3", "exit code 3"),
        (-9, "was killed by SIGKILL (9)", "SIGKILL"),
        (-1, "was killed by SIGHUP (1)", "SIGHUP"),
        (-63, "was killed by signal 63", "signal 63"),
        (-64, "was killed by SIGRTMAX (64)", "SIGRTMAX"),
        (
            137,
            "exited with status 137 (perhaps a child of it was killed by SIGKILL (9))",
            "exit code 137",
        ),
        (255, "exited with status 255", "exit code 255"),
    ],
)
def test_an_exit_is_described_in_one_clause(code: int, words: str, text: str) -> None:
    """A person reads what happened, not a number with a convention behind it."""
    assert describe_exit(code) == words
    assert exit_text(code) == text
    assert exit_text(None) == "an exit code that nothing tells"
