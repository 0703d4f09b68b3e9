"""Which directories are the job's: disks are harmed there, and files damaged, and nowhere else.

The job's are what each node has for itself (/tmp, /dev/shm), what lies below the folders that the
harness shares with the nodes, and the absolute paths that the job is told in its arguments or its
environment.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterator
from typing import Final

from elastic_harness.cluster.cluster import PRIVATE_TREES
from elastic_harness.finding import Finding
from elastic_harness.scenario.actions import CheckedScenario
from elastic_harness.scenario.model import Job

__all__ = ["outside_of_the_job"]

# The kernel's own directories; /dev/shm is a disk like any other.
_NO_DISKS: Final = ("/proc", "/sys", "/dev")


def outside_of_the_job(
    scenario: CheckedScenario, parameter: str, value: str | None
) -> Iterator[Finding]:
    """Find an absolute path, or a pattern for files, that is none of the job's."""
    if value is None or not value.startswith("/"):
        return
    place = _literal(value) if parameter == "file" else posixpath.normpath(value)
    own = [*PRIVATE_TREES, *map(posixpath.normpath, scenario.folders)]
    if any(_is_in(place, folder) for folder in own) or _is_told(place, _told(scenario.spec.job)):
        return
    yield Finding(
        f"{value!r} is outside of the job's directories: expected below "
        f"{', '.join(dict.fromkeys(own))}, or a path that the job is told in its `args` or `env`",
        (parameter,),
    )


def _told(job: Job) -> tuple[str, ...]:
    """Return the absolute paths in a job's words: `--out=/data`, `/data`, `CHECKPOINTS: /data`."""
    words = (*job.args, *(job.command or ()), *job.env.values())
    paths = [word if word.startswith("/") else word.partition("=")[2] for word in words]
    return tuple(posixpath.normpath(path) for path in paths if path.startswith("/"))


def _is_told(place: str, told: Collection[str]) -> bool:
    """Tell whether a place is, holds directly, or lies below a path that the job is told."""
    if place == "/" or any(_is_in(place, tree) for tree in _NO_DISKS):
        return False
    return any(_is_in(place, path) or place == posixpath.dirname(path) for path in told)


def _literal(pattern: str) -> str:
    """Return the folder of a pattern, as far as it is no pattern itself."""
    return posixpath.normpath(posixpath.dirname(re.split(r"[*?\[]", pattern, maxsplit=1)[0]) or "/")


def _is_in(place: str, folder: str) -> bool:
    return place == folder or place.startswith(f"{folder.rstrip('/')}/")
