"""Text from outside, as it is printed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_elastic.printed import printable, without_surrogates


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, caf\u00e9, \ud55c\uae00", "plain, caf\u00e9, \ud55c\uae00"),
        ("a\nb\r", "a\\nb\\r"),
        ("\x1b[2J\x9b", "\\x1b[2J\\x9b"),
        ("caf\udce9", "caf\\udce9"),
        ("a\tb", "a\\tb"),
        ("\u202eright to left", "\\u202eright to left"),
    ],
)
def test_what_moves_a_cursor_is_shown_and_not_obeyed(text: str, shown: str) -> None:
    """Letters of any alphabet stay what they are."""
    assert printable(text) == shown


@given(st.text(st.characters(categories=None)))
def test_any_text_is_one_line_that_can_be_encoded(text: str) -> None:
    """Whatever is in it."""
    assert printable(text).isprintable()
    printable(text).encode()
    without_surrogates(text).encode()
