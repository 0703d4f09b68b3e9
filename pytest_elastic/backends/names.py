"""Which backends `--rdzv-backend` may name, and what each needs to be installed."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable
from importlib import util

from pytest_elastic.config import Endpoint, parse_endpoint
from pytest_elastic.errors import UsageError

__all__ = [
    "ETCD",
    "HANDLER_GROUP",
    "OWN_HANDLER",
    "check_backend",
    "etcd_endpoints",
    "handler_endpoint",
    "registry_file",
]

# Where packages offer rendezvous handlers to torchrun, and under which name this one does.
HANDLER_GROUP = "torchrun.handlers"
OWN_HANDLER = "pytest-elastic"

# torch's own two, both over etcd's API of version 2.
_TORCH_ETCD = ("etcd", "etcd-v2")
_ETCD_PORT = 2379

# Ours, over etcd's API of version 3.
ETCD = "etcd-v3"

_NATIVE = ("c10d", "static", OWN_HANDLER, ETCD)


def check_backend(name: str, *, said: str = "--rdzv-backend") -> None:
    """Raise UsageError if there is no such backend, or if what it needs is not installed.

    `said` is what the user wrote to name it: the option or the variable.
    """
    if name in _NATIVE:
        return
    if name in _TORCH_ETCD:
        if util.find_spec("etcd") is None:
            raise UsageError(
                f"{said}={name} needs the package python-etcd, which is not installed: "
                "pip install 'pytest-elastic[etcd]'"
            )
        return
    from importlib import metadata  # imports 40 modules that nothing else needs

    theirs = sorted(found.name for found in metadata.entry_points(group=HANDLER_GROUP))
    if name in theirs:
        return
    known = list(dict.fromkeys((*_NATIVE, *_TORCH_ETCD, *theirs)))
    close = difflib.get_close_matches(name, known, n=1)
    raise UsageError(
        f"{said}={name}: there is no such backend; known are {', '.join(known)} (others come with "
        f"packages that have an entry point in the group {HANDLER_GROUP})",
        hint=f"Did you mean {close[0]}?" if close else None,
    )


def handler_endpoint(
    text: str, backend: str, *, on_warning: Callable[[str], None] | None = None
) -> Endpoint:
    """Return where a handler that is not ours meets the others; raises UsageError for etcd's.

    What the endpoint of an unknown handler means, only it knows: one that is no host and port
    tells nothing about which address of this node the others can reach.
    """
    if backend == ETCD:
        return etcd_endpoints(text, on_warning=on_warning)[0]
    try:
        return parse_endpoint(text or "localhost", default_port=_ETCD_PORT, on_warning=on_warning)
    except UsageError:
        if backend in _TORCH_ETCD:
            raise
        return Endpoint(host="localhost", port=0)


def registry_file(text: str, *, is_needed: bool) -> str:
    """Return the path of the file that an endpoint names with store_type=file; raises UsageError.

    As with torchrun it is taken as it is: from here, where it does not begin with a slash. A job
    that may be of one node needs none.
    """
    if not text and not is_needed:
        return ""
    if not text:
        raise UsageError(
            "--rdzv-endpoint names no file: with --rdzv-conf store_type=file, the file that all "
            "nodes can write is expected",
            hint="As in --rdzv-endpoint=/shared/nightly.rdzv, the same on every node.",
        )
    if re.fullmatch(r"[^/]*:\d{1,5}", text):
        raise UsageError(
            f"--rdzv-endpoint={text}: with --rdzv-conf store_type=file the path of a file is "
            "expected, and this is a host and a port",
            hint=f"Leave store_type=file out; or write ./{text} if a file of that name is meant.",
        )
    return os.path.abspath(text)


def etcd_endpoints(text: str, *, on_warning: Callable[[str], None] | None = None) -> list[Endpoint]:
    """Return the members of an etcd cluster that "a:2379,b,c" names; raises UsageError."""
    words = [word for word in text.split(",") if word.strip()]
    return [
        parse_endpoint(word, default_port=_ETCD_PORT, on_warning=on_warning)
        for word in words or ["localhost"]
    ]
