"""What a keeper is told at its start."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

__all__ = ["LINGER_S", "KeeperSettings"]

# A coordinator asks at once when it loses the agent, and after its lease (5 s) needs no answer.
LINGER_S = 6.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KeeperSettings:
    """Settings of one keeper; JSON values only.

    `channel_fd` and `agent_pid`: its agent. `kill_margin_s`: how long before the end of its lease
    it begins to kill; it has no default, because it follows from the job's lease
    (`launch.keeper_kill_margin_s`, R6). `linger_s`: how long it answers in a dead agent's place.
    """

    channel_fd: int
    agent_pid: int
    kill_margin_s: float
    linger_s: float = LINGER_S

    def as_argument(self) -> dict[str, Any]:
        """Return the JSON object that `KeeperRole` is made from."""
        return dataclasses.asdict(self)
