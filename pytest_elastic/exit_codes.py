"""What an exit code means, in words: Python's, negative for the signal that ended the process."""

from __future__ import annotations

import signal

__all__ = ["describe_exit", "exit_text", "signal_name"]

# What a shell makes of "killed by signal N", and what scripts that wrap a program pass on.
_SHELL_SIGNAL_BASE = 128


def signal_name(number: int) -> str:
    """Return "SIGTERM" for 15, and "signal 40" for what has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def exit_text(code: int | None) -> str:
    """Return "exit code 3", or the signal: "SIGKILL"; None: that nothing tells."""
    if code is None:
        return "an exit code that nothing tells"
    return f"exit code {code}" if code >= 0 else signal_name(-code)


def describe_exit(code: int) -> str:
    """Return one clause for a person: "exited with status 3", "was killed by SIGKILL (9)"."""
    if code < 0:
        return f"was killed by {_name_and_number(-code)}"
    if code > _SHELL_SIGNAL_BASE and _has_name(code - _SHELL_SIGNAL_BASE):
        name = _name_and_number(code - _SHELL_SIGNAL_BASE)
        return f"exited with status {code} (perhaps a child of it was killed by {name})"
    return f"exited with status {code}"


def _has_name(number: int) -> bool:
    return signal_name(number).startswith("SIG")


def _name_and_number(number: int) -> str:
    return f"{signal_name(number)} ({number})" if _has_name(number) else signal_name(number)
