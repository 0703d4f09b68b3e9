"""What a failed worker says about its failure: torch's error file, read with tolerance.

The protocol is that of `torch.distributed.elastic.multiprocessing.errors.record`: one JSON object
at the path in TORCHELASTIC_ERROR_FILE, `{"message": {"message": ..., "extraInfo": {"py_callstack":
..., "timestamp": ...}}}`, or with a plain string as `message`. A worker may die while it writes, or
write anything else: a file that cannot be understood says nothing and harms nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytest_elastic.printed import without_surrogates
from pytest_elastic.whole_file import replace_file

__all__ = ["WorkerError", "forward_error_file", "read_error_file", "write_error_file"]

# A traceback of a very deep recursion is a tenth of this.
_MAX_BYTES = 4 * 1024 * 1024
# What is shown and sent to every node. The first words of a message say what it is about, the last
# lines of a traceback where it happened.
_MAX_MESSAGE = 4_000
_MAX_TRACEBACK = 64_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerError:
    """What an error file holds; `timestamp` is the worker's wall clock in seconds, 0 if missing."""

    message: str
    traceback: str = ""
    timestamp: int = 0
    error_code: int | None = None


def read_error_file(path: str) -> WorkerError | None:
    """Return what the file says, or None when it is missing, too large or not understood."""
    content = _load(path)
    if content is None:
        return None
    message = content.get("message")
    if isinstance(message, str):
        plain = _number(content.get("timestamp")) or 0
        return WorkerError(message=_beginning(message), timestamp=plain)
    if not isinstance(message, dict):
        return None
    extra = message.get("extraInfo")
    details: Mapping[str, Any] = extra if isinstance(extra, dict) else {}
    return WorkerError(
        message=_beginning(_text(message.get("message"))),
        traceback=_end(_text(details.get("py_callstack"))),
        timestamp=_number(details.get("timestamp")) or 0,
        error_code=_number(message.get("errorCode")),
    )


def write_error_file(path: str, error: WorkerError) -> None:
    """Write an error as torch's `record` would; the file is whole or not there."""
    message: dict[str, Any] = {
        "message": error.message,
        "extraInfo": {"py_callstack": error.traceback, "timestamp": str(error.timestamp)},
    }
    if error.error_code is not None:
        message["errorCode"] = error.error_code
    replace_file(path, json.dumps({"message": message}))


def forward_error_file(source: str, target: str, error_code: int) -> bool:
    """Make a worker's error file the agent's own, with the exit code that the worker cannot know.

    That is how torchrun passes the root cause on to the parent that gave it an error file. Returns
    whether there was something to pass on.
    """
    content = _load(source)
    if content is None:
        return False
    if isinstance(content.get("message"), dict):
        content["message"]["errorCode"] = error_code
    replace_file(target, json.dumps(content))
    return True


def _load(path: str) -> dict[str, Any] | None:
    try:
        # Not blocking, should a worker have put a pipe there.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        data = os.read(fd, _MAX_BYTES + 1)
    except OSError:
        return None
    finally:
        os.close(fd)
    if len(data) > _MAX_BYTES:
        return None
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def _text(value: object) -> str:
    return value if isinstance(value, str) else "" if value is None else repr(value)


def _beginning(text: str) -> str:
    text = without_surrogates(text)
    return text if len(text) <= _MAX_MESSAGE else f"{text[:_MAX_MESSAGE]} ... (cut)"


def _end(text: str) -> str:
    text = without_surrogates(text)
    return text if len(text) <= _MAX_TRACEBACK else f"(cut) ... {text[-_MAX_TRACEBACK:]}"


def _number(value: object) -> int | None:
    """Return a whole number of at most 64 bits: others cannot be sent to other nodes."""
    if not isinstance(value, int | float | str):
        return None
    try:
        number = int(value)
    except (ValueError, OverflowError):
        return None
    return number if abs(number) < 2**63 else None
