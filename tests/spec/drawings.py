"""The phase tables as drawings, for `docs/rendezvous.md`: `python -m tests.spec.drawings`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

from pytest_elastic.rendezvous.follower.connection import CONNECTION_ALLOWED, ConnectionPhase
from pytest_elastic.rendezvous.follower.worker_group import GROUP_ALLOWED, GroupPhase
from pytest_elastic.rendezvous.leader.state import LEADER_ALLOWED, LeaderPhase

__all__ = ["DRAWINGS", "as_block"]

_Phase = TypeVar("_Phase", bound=Enum)


def _draw(first: _Phase, allowed: Mapping[_Phase, frozenset[_Phase]]) -> str:
    """Return a phase table as a Mermaid state diagram, in the order of the table."""
    lines = ["stateDiagram-v2", f"    [*] --> {first.name}"]
    for source, targets in allowed.items():
        lines += [f"    {source.name} --> {target.name}" for target in allowed if target in targets]
        if not targets:
            lines.append(f"    {source.name} --> [*]")
    return "\n".join(lines)


DRAWINGS: dict[str, str] = {
    "leader": _draw(LeaderPhase.GATHERING, LEADER_ALLOWED),
    "connection": _draw(ConnectionPhase.UNSTARTED, CONNECTION_ALLOWED),
    "group": _draw(GroupPhase.NONE, GROUP_ALLOWED),
}
"""By the name that the document calls them."""


def as_block(name: str) -> str:
    """Return a drawing as it stands in the document."""
    return f"<!-- drawing: {name} -->\n\n```mermaid\n{DRAWINGS[name]}\n```\n"


if __name__ == "__main__":
    sys.stdout.write("\n".join(as_block(name) for name in DRAWINGS))
