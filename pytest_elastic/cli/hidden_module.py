"""A file of the user's that Python has found in place of a module of its own."""

from __future__ import annotations

import os
import sys
import sysconfig
import traceback

from pytest_elastic.errors import UsageError

__all__ = ["hidden_module"]


def hidden_module(error: Exception) -> UsageError | None:
    """Return what is to be told of an unexpected error if such a file has been imported."""
    own = [os.path.realpath(sysconfig.get_path(each)) for each in ("stdlib", "platstdlib")]
    # Who fails while it is imported is no module of the process any more.
    frames = [frame.f_globals for frame, _ in traceback.walk_tb(error.__traceback__)]
    # What stands for a module need not be one.
    for module in (*frames, *(getattr(each, "__dict__", {}) for each in [*sys.modules.values()])):
        name, file = module.get("__name__"), module.get("__file__")
        if not (isinstance(name, str) and isinstance(file, str)):
            continue
        if name in sys.stdlib_module_names:
            folder = os.path.dirname(os.path.realpath(file))
            # setuptools brings a distutils, for example.
            is_installed = "site-packages" in folder or "dist-packages" in folder
            if not is_installed and not any(f"{folder}/".startswith(f"{each}/") for each in own):
                return UsageError(
                    f"{file} is found in place of Python's own module {name} ({error})",
                    hint="Rename it, or take its folder out of PYTHONPATH.",
                )
    return None
