"""Whether a script can be run at all, asked before anything starts."""

from __future__ import annotations

import os
from importlib.machinery import all_suffixes

from pytest_elastic.errors import UsageError

__all__ = ["check_script"]


def check_script(path: str) -> None:
    """Raise UsageError if Python could not run it."""
    if not os.path.exists(path):
        raise UsageError(
            f"there is no script {path!r} (looked from {os.getcwd()})",
            hint="Use -m for a module, --no-python for a program that is not Python.",
        )
    if not os.access(path, os.R_OK):
        raise UsageError(
            f"the script {path!r} cannot be read: no permission",
            hint=f"Try 'chmod a+r', or start as the user who may (this is user {os.geteuid()}).",
        )
    if os.path.isdir(path) and not _has_main(path):
        raise UsageError(
            f"the script {path!r} is a folder without a __main__.py",
            hint="Name a file in it, or use -m for a package.",
        )


def _has_main(folder: str) -> bool:
    """Tell whether Python can run a folder."""
    return any(os.path.exists(os.path.join(folder, f"__main__{s}")) for s in all_suffixes())
