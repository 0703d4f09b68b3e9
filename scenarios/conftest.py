"""The scenarios in `long/` run only when they are named: `pytest scenarios/long`."""

from __future__ import annotations

from pathlib import Path

import pytest

LONG = Path(__file__).resolve().parent / "long"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave `long/` out, unless an argument of the command line leads into it."""
    if collection_path != LONG:
        return None
    asked = [config.invocation_params.dir / arg.partition("::")[0] for arg in config.args]
    return None if any(LONG in (path, *path.parents) for path in map(Path.resolve, asked)) else True
