"""A held interpreter that plays a role a test has written down."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_elastic.boot.spawn import command_and_environ

__all__ = ["LIMIT_S", "ROLE", "hold", "without_gloos_own"]

LIMIT_S = 240.0


def hold(
    role: str,
    tmp_path: Path,
    *,
    environ: Mapping[str, str] | None = None,
    preload: Sequence[str] = (),
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Play the role `Role` of `role`, the text of a module in `tmp_path`."""
    (tmp_path / "roles.py").write_text(role)
    base = {**os.environ, **(environ or {}), "PYTHONPATH": str(tmp_path)}
    command, its_environ = command_and_environ("roles:Role", {}, preload=preload, base_environ=base)
    return subprocess.run(
        command,
        env=its_environ,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        cwd=cwd,
    )


def without_gloos_own(printed: str) -> list[str]:
    """Return the lines that a program printed; torch 2.10 prints one as a group is made."""
    return [line for line in printed.splitlines() if not line.startswith("[Gloo] ")]


ROLE = """\
import os, sys
from pytest_elastic.boot.role import Program
class Role:
    def __init__(self, argument): pass
    def run(self):
        {body}
"""
