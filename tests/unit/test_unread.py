"""What nobody reads is no error, and is not reported as one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_elastic.unread import UNREAD_EXIT_CODE

MANY_LINES = "for number in range(100_000): print(number)"
# Stays in the buffer until the command is over.
ONE_LINE = "print('all is well')"


def unread(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a command whose reader is gone."""
    reading, writing = os.pipe()
    os.close(reading)
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with open(writing, "wb") as output:
        return subprocess.run(
            command,
            stdout=output,
            stderr=subprocess.PIPE,
            env=environ,
            text=True,
            timeout=60,
            check=False,
        )


def wrapped(program: str) -> list[str]:
    """Return the command of a program that leaves its reader to `until_unread`."""
    lines = (
        "import sys",
        "from pytest_elastic.unread import until_unread",
        "def command():",
        f"    {program}",
        "    return 3",
        "sys.exit(until_unread(command))",
    )
    return [sys.executable, "-c", "\n".join(lines)]


@pytest.mark.parametrize("program", [MANY_LINES, ONE_LINE])
def test_a_command_ends_without_a_word_when_its_reader_has_had_enough(program: str) -> None:
    """As if SIGPIPE had ended it; what is left in the buffer makes no difference."""
    alone = unread(sys.executable, "-c", program)
    assert "BrokenPipeError" in alone.stderr, "without help it would complain"
    ended = unread(*wrapped(program))
    assert (ended.returncode, ended.stderr) == (UNREAD_EXIT_CODE, "")


def test_a_command_that_is_read_ends_as_it_does(tmp_path: Path) -> None:
    """Its exit code is its own, also where it has no output at all."""
    with open(tmp_path / "output", "wb") as output:
        read = subprocess.run(wrapped(ONE_LINE), stdout=output, timeout=60, check=False)
    assert read.returncode == 3
    assert (tmp_path / "output").read_text() == "all is well\n"
    closed = subprocess.run(
        ["sh", "-c", 'exec "$0" "$@" >&-', *wrapped("pass")],
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    assert (closed.returncode, closed.stderr) == (3, b"")


@pytest.mark.parametrize(
    "words",
    [
        ("-m", "pytest_elastic", "schema"),
        ("-m", "pytest_elastic", "--help"),
        ("-m", "elastic_simulation", "--seed", "3", "--trace"),
    ],
    ids=" ".join,
)
def test_our_commands_are_such(words: tuple[str, ...]) -> None:
    """Those that print much, and those that print little."""
    ended = unread(sys.executable, *words)
    assert (ended.returncode, ended.stderr) == (UNREAD_EXIT_CODE, "")
