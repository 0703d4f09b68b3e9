"""Whether a script can be run at all, asked before anything starts."""

from __future__ import annotations

import os
from importlib.machinery import all_suffixes

from pytest_elastic.errors import UsageError

__all__ = ["check_script", "local_rank_option"]

# The reader of an option names it; a script of a megabyte is none that a person wrote.
_MAX_BYTES = 1024 * 1024


def check_script(path: str) -> None:
    """Raise UsageError if Python could not run it; `-` is what stands on its standard input."""
    if path == "-":
        return
    if not os.path.exists(path):
        raise UsageError(
            f"there is no script {path!r} (looked from {os.getcwd()})",
            hint="Use -m for a module, --no-python for a program that is not Python.",
        )
    if not os.access(path, os.R_OK):
        raise UsageError(
            f"the script {path!r} cannot be read: no permission",
            hint=f"Try 'chmod a+r', or start as a user that may (this is user {os.geteuid()}).",
        )
    if os.path.isdir(path) and not _has_main(path):
        raise UsageError(
            f"the script {path!r} is a folder without a __main__.py",
            hint="Name a file in it, or use -m for a package.",
        )


def _has_main(folder: str) -> bool:
    """Tell whether Python can run a folder."""
    return any(os.path.exists(os.path.join(folder, f"__main__{s}")) for s in all_suffixes())


def local_rank_option(path: str) -> str:
    """Return how a script of the age of torch.distributed.launch calls its local rank.

    Since torch 2.0 it is `--local-rank`; one that names only `--local_rank`, as before, gets that.
    """
    try:
        with open(path, "rb") as file:
            text = file.read(_MAX_BYTES)
    except OSError:
        return "--local-rank"  # a folder, or somewhere that only PYTHON_EXEC knows
    is_old = b"--local_rank" in text and b"--local-rank" not in text
    return "--local_rank" if is_old else "--local-rank"
