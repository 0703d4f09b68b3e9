"""A program of a framework, run by the launcher as its users would run it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["PROGRAMS", "Ran", "run_job"]

PROGRAMS = Path(__file__).parent / "programs"
LIMIT_S = 400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What a job printed on both streams, how it ended, and how its workers were started."""

    exit_code: int
    output: str
    starts: tuple[str, ...]

    @property
    def results(self) -> dict[str, str]:
        """Return what each rank of two said at its end; their lines may have run into another."""
        said = re.findall(r"rank (\d) of 2: (loss \d\.\d{4}|same True|step \d)", self.output)
        return dict(said)


def run_job(
    folder: Path, *program: str, start: str = "auto", environ: Mapping[str, str] | None = None
) -> Ran:
    """Run a program with two workers in `folder`."""
    events = folder / "events.jsonl"
    command = ["run", f"--worker-start={start}", "--standalone", "--nproc-per-node=2", *program]
    done = subprocess.run(
        [sys.executable, "-m", "pytest_elastic", *command],
        cwd=folder,
        env={
            **os.environ,
            "PYTEST_ELASTIC_EVENTS": f"file:{events}",
            **(environ or {}),
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=LIMIT_S,
        check=False,
    )
    records = map(json.loads, events.read_text().splitlines())
    started = [r["event"] for r in records if r["kind"] == "workers_started"]
    return Ran(
        exit_code=done.returncode,
        output=done.stdout,
        starts=tuple(event["start"] for event in started),
    )
