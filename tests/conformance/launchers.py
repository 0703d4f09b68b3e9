"""Running our launcher and torchrun side by side, as a user would."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests import launch_server

LIMIT_S = 240.0
# For ours, which starts workers warm: most programs here do not use torch, and where one does, that
# is preloaded, as it is for users.
LEAN = {"PET_PRELOAD": ""}
WITH_TORCH = {"PET_PRELOAD": "torch"}
OURS = (sys.executable, "-m", "pytest_elastic", "run")
# It starts no warm interpreter: for workers that do not import torch.
PLAIN = (*OURS, "--worker-start=exec")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
OLD = (sys.executable, "-m", "torch.distributed.launch")


def write(path: Path, text: str) -> str:
    """Write a script and return its path."""
    path.write_text(text)
    return str(path)


def run(
    folder: Path, *words: str, environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; what it leaves in the temporary folder goes with the test."""
    process = launch_server.start(words, cwd=folder, environ=_environ(folder, environ))
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode is not None, "it has ended"
    return subprocess.CompletedProcess(words, process.returncode, out.decode(), err.decode())


def _environ(folder: Path, environ: Mapping[str, str] | None) -> Mapping[str, str]:
    return {**os.environ, "TMPDIR": str(folder), **LEAN, **(environ or {})}


class Running:
    """A command in the background; what it prints is read as it comes."""

    def __init__(self, folder: Path, *words: str, environ: Mapping[str, str] | None = None) -> None:
        self.process = launch_server.start(
            words, cwd=folder, environ=_environ(folder, environ), stderr=subprocess.STDOUT
        )
        self.printed = ""

    def wait_for(self, text: str, times: int = 1) -> None:
        """Read until a text has been printed so many times."""
        assert self.process.stdout is not None
        fd = self.process.stdout.fileno()
        deadline = time.monotonic() + LIMIT_S
        while self.printed.count(text) < times:
            ready, _, _ = select.select([fd], [], [], max(deadline - time.monotonic(), 0))
            data = os.read(fd, 65536) if ready else b""
            assert data, f"{text!r} was not printed {times} times:\n{self.printed}"
            self.printed += data.decode()

    def wait(self) -> int:
        """Read the rest, and return the exit code."""
        rest, _ = self.process.communicate(timeout=LIMIT_S)
        self.printed += rest.decode()
        assert self.process.returncode is not None, "it has ended"
        return self.process.returncode

    def end(self) -> None:
        """Kill it, if it still runs."""
        self.process.kill()
        self.process.communicate(timeout=LIMIT_S)


def address(number: int) -> str:
    """Return an address of this machine where no other test and no other run uses any port."""
    return f"127.{number}.{os.getpid() >> 8 & 255}.{os.getpid() & 255}"


def error_in(path: Path) -> dict[str, Any]:
    """Return what an error file says, without what no two runs have in common."""
    message: dict[str, Any] = json.loads(path.read_text())["message"]
    extra = message["extraInfo"]
    assert abs(time.time() - int(extra.pop("timestamp"))) < LIMIT_S
    return message
