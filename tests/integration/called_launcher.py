"""`pytest-elastic run` called as users call it, in a process group of its own."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir

from typing_extensions import Self

from tests import launch_server
from tests.conformance import launchers
from tests.conformance.launchers import LEAN, OURS

__all__ = ["LEAN", "LIMIT_S", "STAYS", "Ended", "Running", "run", "start"]

# Importing torch takes seconds on a busy machine, and nothing here takes much longer.
LIMIT_S = 180.0

# Says in which world it is, and stays there until it is told to end.
STAYS = """
import os, time
size, round_ = os.environ["WORLD_SIZE"], os.environ["PYTEST_ELASTIC_ROUND"]
print(f"world of {size} in round {round_};", flush=True)
while not os.path.exists("stop"):
    time.sleep(0.02)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What became of a command."""

    code: int
    out: str
    err: str
    seconds: float

    def expect_no_line_of_ours(self) -> None:
        """No traceback through our own code, whatever caused the error."""
        for text in (self.out, self.err):
            assert "pytest_elastic/" not in text, text
            assert "elastic_harness" not in text, text


def start(
    *words: str, cwd: Path, environ: Mapping[str, str] | None = None, is_forked: bool = True
) -> launch_server.Started:
    """Start our launcher, in a session of its own as a terminal does."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("PET_")}
    return launch_server.start(
        [*OURS, *words],
        cwd=cwd,
        environ={**kept, **LEAN, **(environ or {})},
        is_forked=is_forked,
    )


def run(*words: str, cwd: Path, environ: Mapping[str, str] | None = None) -> Ended:
    """Run our launcher to its end."""
    begin = time.monotonic()
    process = start(*words, cwd=cwd, environ=environ)
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode is not None, "it has ended"
    return Ended(
        code=process.returncode,
        out=out.decode(),
        err=err.decode(),
        seconds=time.monotonic() - begin,
    )


class Running(launchers.Running):
    """Our launcher in the background; what it prints is read as it comes."""

    def __init__(self, *words: str, cwd: Path, environ: Mapping[str, str] | None = None) -> None:
        super().__init__(cwd, *OURS, *words, environ={"TMPDIR": gettempdir(), **(environ or {})})

    def __enter__(self) -> Self:
        """Have it ended behind a block."""
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
