"""What a cluster's client says to its server about nodes and processes, as JSON objects."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from elastic_harness.cluster.cluster import GATEWAY, NodeSpec, ProcessSpec
from elastic_harness.cluster.server.leftovers import ENVIRONMENT_MARK
from pytest_elastic.errors import UsageError

__all__ = ["gateway_request", "node_request", "process_request"]

_GATEWAY_INDEX = 254


def node_request(spec: NodeSpec) -> dict[str, Any]:
    """Return the request for a node; raises UsageError for what cannot be shared."""
    return {
        "name": spec.name,
        "index": spec.index,
        "shared": _shared_paths(spec.shared),
        "keep_disk": spec.keep_disk,
        "sysctls": dict(spec.sysctls),
    }


def gateway_request() -> dict[str, Any]:
    """Return the request for the host's own place in the cluster's network."""
    return {
        "name": GATEWAY,
        "index": _GATEWAY_INDEX,
        "shared": [],
        "keep_disk": False,
        "sysctls": {},
    }


def process_request(spec: ProcessSpec, tag: str) -> dict[str, Any]:
    """Return the request for a process, marked as one of the session `tag`."""
    return {
        "argv": list(spec.argv),
        "environ": {**spec.environ, ENVIRONMENT_MARK: tag},
        "cwd": spec.cwd,
        "stdin": spec.stdin,
        "stdout": spec.stdout,
        "stderr": spec.stderr,
        "preloaded_entry": spec.preloaded_entry,
        "preloaded_role": spec.preloaded_role,
    }


def _shared_paths(wanted: Sequence[str]) -> list[str]:
    """Add what no node can do without: the interpreter, its packages, the working directory.

    Each by the names it has: a virtual environment may be a link, and `sys.path` goes by that.
    """
    needed = [sys.prefix, sys.base_prefix, os.getcwd(), *sys.path]
    paths = [*wanted, *(path for path in needed if path and os.path.isdir(path))]
    shared = sorted({name(path) for path in paths for name in (os.path.abspath, os.path.realpath)})
    if "/dev/shm" in shared:  # noqa: S108 (the directory itself)
        raise UsageError("cannot share /dev/shm between nodes: it is what each has of its own")
    missing = [path for path in shared if not os.path.exists(path)]
    if missing:
        raise UsageError(f"cannot share {', '.join(missing)} with a node: it does not exist")
    return shared
