"""JSON in Go's way, where clients can tell the difference."""

from __future__ import annotations

import json

import pytest
from elastic_harness.toxiproxy.go_json import (
    JsonProblem,
    Reading,
    as_float32,
    decode,
    encode,
)
from hypothesis import given
from hypothesis import strategies as st


def integers(body: bytes) -> dict[str, int]:
    """Read an object whose fields a and b are integers."""
    found: dict[str, int] = {}
    reading = Reading()

    def take(name: str, item: object) -> None:
        number = reading.integer(item, f"T.{name}")
        if number is not None:
            found[name] = number

    readers = {"a": lambda item: take("a", item), "b": lambda item: take("b", item)}
    reading.fields(decode(body), "T", readers)
    reading.check()
    return found


def test_keys_match_in_any_case_and_the_last_counts() -> None:
    """Unknown keys, null and what follows the value are passed over."""
    assert integers(b'  {"A": 1, "x": [{}], "a": 2, "b": null} rubbish') == {"a": 2}
    assert integers(b"null") == {}


@pytest.mark.parametrize("number", ["5.0", "1.5", "5e0", "true", '"5"', str(2**63), "9" * 5000])
def test_integers_are_integers(number: str) -> None:
    """A float that happens to be whole is none."""
    with pytest.raises(JsonProblem, match=r"cannot unmarshal .* T\.a of type int64"):
        integers(b'{"a": %b}' % number.encode())


def test_integers_may_have_64_bits() -> None:
    """The smallest and the greatest are read."""
    body = json.dumps({"a": -(2**63), "b": 2**63 - 1}).encode()
    assert integers(body) == {"a": -(2**63), "b": 2**63 - 1}


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "EOF"),
        (b" \n", "EOF"),
        (b'{"a":', "unexpected EOF"),
        (b'{"a', "unexpected EOF"),
        (b"x", "invalid character 'x' looking for beginning of value"),
        (b"NaN", "invalid character"),
        (b"[" * 100_000, "max depth|unexpected EOF"),
        (b"[]", r"cannot unmarshal array into Go value of type T"),
        (b"7", r"cannot unmarshal number 7 into Go value of type T"),
    ],
)
def test_problems_are_told_in_gos_words(body: bytes, text: str) -> None:
    """Bad bodies and bad shapes have one kind of error."""
    with pytest.raises(JsonProblem, match=text):
        integers(body)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_a_float_of_32_bits_is_written_as_short_as_can_be(value: float) -> None:
    """The number read back in 32 bits is the same."""
    assert as_float32(float(as_float32(value))) == as_float32(value)
    assert float(as_float32(value)) == pytest.approx(value, rel=1e-6)


def test_toxicity_is_as_the_server_shows_it() -> None:
    """Eight digits are enough, and whole numbers have no point."""
    assert encode([as_float32(x) for x in (0.123456789, 1.0, 2.0, -1.0, 0.1)]) == (
        b"[0.12345679,1,2,-1,0.1]"
    )
    with pytest.raises(OverflowError):
        as_float32(1e300)


def test_texts_come_back_as_utf8_safe_in_html() -> None:
    """Half a surrogate pair becomes the replacement character."""
    text = Reading().text(decode(b'"<\\ud800\xc3\xa9"'), "T.t")
    assert encode(text) == '"\\u003c\ufffdé"'.encode()
