"""Command lines that are read before a job is started, maybe while another thread prints."""

from __future__ import annotations

import sys

import pytest

from pytest_elastic.cli.options import read_options


class Looking(str):
    """A word that notes, each time it is compared, where what is printed would go."""

    __slots__ = ()
    seen: list[object]

    def __eq__(self, other: object) -> bool:
        self.seen.append(sys.stdout)
        return str(self) == other

    __hash__ = str.__hash__


def test_what_other_threads_print_meanwhile_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """A check-up loads scenarios in its threads, and tells what came out of others in the main one.

    Help that is asked for is not shown for that.
    """
    Looking.seen = []
    (reading, asks) = read_options([["--max-restarts=3", Looking(__file__)], ["--help"]])
    assert (reading.program, reading.refusal) == (__file__, None)
    assert asks.given == {"--help"}
    assert Looking.seen
    assert set(Looking.seen) == {sys.stdout}
    assert capsys.readouterr().out == ""
