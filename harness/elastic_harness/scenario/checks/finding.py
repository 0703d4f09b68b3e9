"""One thing that is wrong with a scenario, by the place in its tree."""

from __future__ import annotations

from dataclasses import dataclass

from elastic_harness.scenario.reading.yaml_tree import AstPath

__all__ = ["Finding"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that can never work, and where; `is_key` marks the key rather than the value."""

    path: AstPath
    message: str
    suggestion: str | None = None
    is_key: bool = False
