"""Makes text of workers, nodes and strangers safe to print: it may hold anything."""

from __future__ import annotations

__all__ = ["printable", "printable_lines", "without_surrogates"]


def printable(text: str) -> str:
    r"""Return a text as one line that can be encoded, moves no cursor and changes no colour.

    What cannot be printed is written as in Python's source: `\n`, `\t`, `\x1b`, `\udce9`.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def printable_lines(text: str) -> str:
    """Return a text of several lines, each made printable."""
    return "\n".join(map(printable, text.split("\n")))


def without_surrogates(text: str) -> str:
    r"""Return a text that can be encoded: bytes that were no UTF-8 stand as `\udce9`."""
    return text.encode("utf-8", "backslashreplace").decode()
