# ruff: noqa: INP001 (a folder of PYTHONPATH, not a package)
"""Hold this interpreter inside site initialisation when it was started to be a warm one.

This folder is put first on PYTHONPATH by `pytest_elastic.boot.spawn`, and by nothing else. When the
roles played here end in a program, the program's own `sitecustomize` takes this module's place; if
there is none, an ImportError tells `site` so, in the words it expects, and nothing of us is left.
"""

from __future__ import annotations

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _hold() -> None:
    """Play the roles; returns in a process that is to be a program."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != _HERE]
    clean_path = tuple(sys.path)
    at_start = frozenset(sys.modules)
    # The package may be importable only through the folder that this very file lies in.
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(_HERE))))
    from pytest_elastic.boot import host

    host.serve(clean_path, at_start)


def _run_next() -> None:
    """Run the `sitecustomize` that a fresh interpreter would have found, in our place."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    path = [entry for entry in sys.path if os.path.abspath(entry) != _HERE]
    spec = PathFinder.find_spec("sitecustomize", path)
    if spec is None or spec.loader is None:
        raise ImportError("No module named 'sitecustomize'", name="sitecustomize")
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if "PYTEST_ELASTIC_ROLE" in os.environ:
    _hold()
_run_next()
