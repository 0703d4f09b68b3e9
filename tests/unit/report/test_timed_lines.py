from __future__ import annotations

import json

import pytest
from elastic_harness.report.noted_times import LogLine, Mark, read_marks, timed_lines


def at(*marks: tuple[float, int]) -> list[Mark]:
    """Return marks of times and sizes."""
    return [Mark(at=time, size=size) for time, size in marks]


@pytest.mark.parametrize(
    ("content", "marks", "times"),
    [
        (b"one\ntwo\n", at((1, 4), (2, 8)), [1, 2]),
        (b"one\ntwo\n", at((1, 8)), [1, 1]),
        # A line is there when its end is.
        (b"one\ntwo\n", at((1, 6), (2, 8)), [1, 2]),
        # The last line may have no end.
        (b"one\ntwo", at((1, 4), (2, 7)), [1, 2]),
        # What came after the last look has no time.
        (b"one\ntwo\n", at((1, 4)), [1]),
        # A log that was cut and written anew: nothing in it is older than that.
        (b"one\ntwo\n", at((1, 5), (2, 9), (3, 4), (4, 8)), [3, 4]),
        (b"one\n\n\ntwo\n", at((1, 10)), [1, 1]),
        (b"", at((1, 10)), []),
    ],
)
def test_a_line_has_the_time_at_which_its_log_was_that_long(
    content: bytes, marks: list[Mark], times: list[float]
) -> None:
    """By the sizes that were seen."""
    assert [line.at for line in timed_lines(content, marks, who="n1")] == times


def test_of_the_end_of_a_log_the_lines_have_their_own_times() -> None:
    """Its place in the file counts."""
    found = timed_lines(b"two\n", at((1, 100), (2, 104)), who="n1", offset=100)
    assert found == [LogLine(at=2, who="n1", text="two")]


def test_lines_are_shown_without_what_moves_a_cursor_and_not_too_long() -> None:
    """Progress bars, colours and bytes that are no text."""
    (line,) = timed_lines(b"\x1b[31m\xff\tred" + b"x" * 5000 + b"\n", at((1, 9000)), who="n1")
    assert line.text.startswith(" [31m\N{REPLACEMENT CHARACTER}")
    assert line.text.isprintable()
    assert len(line.text) == 400


def test_marks_are_read_by_log_and_what_is_none_is_passed_over() -> None:
    """The file may be torn."""
    good = [json.dumps({"at": 1.5, "file": name, "size": 3}) for name in ("a.log", "b.log")]
    found = read_marks([*good, '{"at": 1', "[]", '{"at": "x", "file": "a.log", "size": 1}', "3"])
    assert found == {"a.log": at((1.5, 3)), "b.log": at((1.5, 3))}
