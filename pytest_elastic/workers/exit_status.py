"""What an exit code means, in words."""

from __future__ import annotations

import signal
from dataclasses import dataclass

__all__ = ["ExitStatus", "describe_exit"]

# What a shell makes of "killed by signal N", and what scripts that wrap a program pass on.
_SHELL_SIGNAL_BASE = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitStatus:
    """How a process ended: `code` as in `subprocess`, negative for the signal that killed it."""

    code: int
    was_out_of_memory: bool = False
    start_error: str = ""

    @property
    def is_success(self) -> bool:
        """Tell whether the process ended by itself with status 0."""
        return self.code == 0 and not self.start_error

    @property
    def signal(self) -> int:
        """The signal that killed it, or 0."""
        return max(-self.code, 0)

    @property
    def shell_code(self) -> int:
        """The status as a shell would show it, 0 to 255."""
        return (_SHELL_SIGNAL_BASE + self.signal if self.code < 0 else self.code) & 0xFF


def describe_exit(status: ExitStatus) -> str:
    """Return one clause for a person: "exited with status 3", "was killed by SIGKILL (9)"."""
    if status.start_error:
        return f"could not be started: {status.start_error}"
    if status.was_out_of_memory:
        return "was killed by the kernel because memory ran out (SIGKILL)"
    if status.code < 0:
        return f"was killed by {_signal_name(status.signal)}"
    if status.code > _SHELL_SIGNAL_BASE and _is_signal(status.code - _SHELL_SIGNAL_BASE):
        name = _signal_name(status.code - _SHELL_SIGNAL_BASE)
        return f"exited with status {status.code} (perhaps a child of it was killed by {name})"
    return f"exited with status {status.code}"


def _is_signal(number: int) -> bool:
    return number in {member.value for member in signal.Signals}


def _signal_name(number: int) -> str:
    return f"{signal.Signals(number).name} ({number})" if _is_signal(number) else f"signal {number}"
