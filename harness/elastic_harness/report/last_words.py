"""The last thing a failed program has said about itself, from its log.

A launcher knows a worker's exit code, and its exception only if the script was so kind as to record
it. The log knows more: a traceback ends with the line that says what went wrong.
"""

from __future__ import annotations

import re

__all__ = ["last_words"]

# `ValueError: ...`, `torch.cuda.OutOfMemoryError: ...`, `KeyboardInterrupt`; behind torchrun's
# `[default0]:` as well; and complaints of the interpreter itself (`python3: cannot open file`). A
# line of prose that begins with such a word is rare, and no harm.
_NAMED = r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit)\b(?::.*)?"
_COMPLAINT = re.compile(rf"^(?:\[\w+\]:)?({_NAMED}|\S*python[\d.]*: .+)$")


def last_words(text: str) -> str:
    """Return the last line of an output that says what went wrong; empty when there is none."""
    found = [match[1] for line in text.splitlines() if (match := _COMPLAINT.match(line))]
    return found[-1] if found else ""
