"""The switch goes first: a network does not wait for the computers that it connects.

Where sixty nodes start their workers at once, everything that runs gets a sixtieth of a processor.
The switch would be held back with the rest, and each packet with it, for longer than a lease.
"""

from __future__ import annotations

import contextlib
import os

from pytest_elastic.boot.role import Program, Role

__all__ = ["FirstServed"]

# Nine times the share of anybody else, which is more than it ever asks for.
_NICE = -10
# The kernel shares processors out between sessions first, where it groups processes by these. The
# switch's session is the server's; launchers have sessions of their own.
_OF_THE_SESSION = "/proc/self/autogroup"


class FirstServed:
    """A role whose process is preferred to others, where the kernel lets us."""

    def __init__(self, role: Role) -> None:
        self._role = role

    def run(self) -> Role | Program:
        """Take precedence, and go on as the role itself."""
        with contextlib.suppress(OSError), open(_OF_THE_SESSION, "w", encoding="ascii") as file:
            file.write(str(_NICE))
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, _NICE)
        return self._role
