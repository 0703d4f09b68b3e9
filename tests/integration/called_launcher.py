"""`pytest-elastic run` called as users call it, in a process group of its own."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from typing_extensions import Self

__all__ = ["LEAN", "LIMIT_S", "STAYS", "Ended", "Running", "run", "start"]

# Importing torch takes seconds on a busy machine, and nothing here takes much longer.
LIMIT_S = 180.0

# Workers start warm, as they do for users, from an interpreter that did not import torch for two
# seconds before: most programs here do not use it. Where one does, it is preloaded.
LEAN = {"PET_PRELOAD": ""}

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
        """No traceback through our own code, whoever's doing the error was."""
        for text in (self.out, self.err):
            assert "pytest_elastic/" not in text, text
            assert "elastic_harness" not in text, text


def start(
    *words: str, cwd: Path, environ: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """Start our launcher, in a process group of its own as a terminal does."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("PET_")}
    return subprocess.Popen(
        [sys.executable, "-m", "pytest_elastic", "run", *words],
        cwd=cwd,
        env={**kept, **LEAN, **(environ or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def run(*words: str, cwd: Path, environ: Mapping[str, str] | None = None) -> Ended:
    """Run our launcher to its end."""
    begin = time.monotonic()
    process = start(*words, cwd=cwd, environ=environ)
    out, err = process.communicate(timeout=LIMIT_S)
    return Ended(code=process.returncode, out=out, err=err, seconds=time.monotonic() - begin)


class Running:
    """Our launcher in the background; what it prints is read as it comes."""

    def __init__(self, *words: str, cwd: Path, environ: Mapping[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pytest_elastic", "run", *words],
            cwd=cwd,
            env={**os.environ, **LEAN, **(environ or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.printed = ""

    def wait_for(self, text: str) -> None:
        """Read until a text has been printed."""
        assert self.process.stdout is not None
        fd = self.process.stdout.fileno()
        deadline = time.monotonic() + LIMIT_S
        while text not in self.printed:
            ready, _, _ = select.select([fd], [], [], max(deadline - time.monotonic(), 0))
            data = os.read(fd, 65536) if ready else b""
            assert data, f"{text!r} was not printed:\n{self.printed}"
            self.printed += data.decode()

    def read_rest(self) -> None:
        """Read what it prints until it ends."""
        out, _ = self.process.communicate(timeout=LIMIT_S)
        self.printed += out.decode()

    def __enter__(self) -> Self:
        """Have it ended behind a block."""
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Kill it, if it still runs."""
        self.process.kill()
        self.process.communicate(timeout=LIMIT_S)
