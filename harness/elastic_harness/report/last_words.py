"""The last thing a failed program has said about itself, from its log.

A launcher knows a worker's exit code, and its exception only if the script was so kind as to record
it. The log knows more: a traceback ends with the line that says what went wrong, and so does the
usage of a program that refuses its arguments.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["last_words", "lines_about"]

_MAX_LINES = 20

# `ValueError: ...`, `torch.cuda.OutOfMemoryError: ...`, `KeyboardInterrupt`; behind torchrun's
# `[default0]:` and torch's `[rank0]: ` as well; and errors of the interpreter itself (`python3:
# cannot open file`). A line of prose that begins with such a word is rare, and no harm.
_NAMED = r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit)\b(?::.*)?"
# `train.py: error: unrecognized arguments: --stepz=40`, as argparse says it.
_REFUSED = r"\S[^:]*: error: .+"
_MARKS = r"^(?:\[(?!rank)\w+\]:)?(?:\[rank(\d+)\]: )?"
_ERROR_LINE = re.compile(rf"{_MARKS}({_NAMED}|{_REFUSED}|\S*python[\d.]*: .+)$")
_PREFIX = re.compile(_MARKS)
_TRACEBACK = "Traceback (most recent call last):"
# What launchers sum up at the end, ours and torchrun, whose own traceback comes before it.
_RULE = re.compile(r"={60,}$")
_SUMMARY = re.compile(r"the job (?:failed|cannot)|.* FAILED$")
_OF_TORCHRUN = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError"


def last_words(text: str) -> str:
    """Return the last line of an output that says what went wrong; empty when there is none.

    What a launcher sums up names no cause, unless nothing else does.
    """
    lines = text.splitlines()
    said = lines[: _summary_at(lines)]
    found = [match[2] for line in (*lines, *said) if (match := _ERROR_LINE.match(line))]
    return found[-1] if found else ""


def lines_about(
    text: str, rank: int, *, own_lines: re.Pattern[str] | None, error: str, message: str
) -> tuple[str, ...]:
    """Return the last lines of a rank's output, those about an exception if it is in there.

    `own_lines` is how the launcher's lines begin, which are left out. Other workers may write
    into the same log: what stands behind the exception's own line is theirs, and what is marked
    with another rank, as torch does it. What a launcher sums up is its own.
    """
    lines = []
    for line in text.splitlines():
        prefix = _PREFIX.match(line)
        assert prefix is not None, "all of it is optional"
        is_own = own_lines is not None and own_lines.match(line)
        if line.strip() and not is_own and prefix[1] in (None, str(rank)):
            lines.append(line[prefix.end() :])
    lines = lines[: _summary_at(lines)]
    first = message.splitlines()[0] if message else ""
    name = error.rpartition(".")[2]
    said = [
        index
        for index, line in enumerate(lines)
        if error and line.partition(":")[0].endswith(name) and line.endswith(first)
    ]
    if said:
        end = said[-1] + max(len(message.splitlines()), 1)
        begins = [index for index in range(said[-1]) if lines[index] == _TRACEBACK]
        lines = lines[begins[-1] if begins else said[-1] : end]
    return tuple(lines[-_MAX_LINES:])


def _summary_at(lines: Sequence[str]) -> int:
    """Return where the launcher begins to sum up; behind the last line where it does not."""
    for index in range(len(lines) - 1):
        if _RULE.match(lines[index]) and _SUMMARY.match(lines[index + 1]):
            is_torchrun = index > 0 and lines[index - 1].startswith(_OF_TORCHRUN)
            begins = [at for at in range(index) if lines[at] == _TRACEBACK] if is_torchrun else []
            return begins[-1] if begins else index
    return len(lines)
