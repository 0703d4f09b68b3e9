"""What a shell is told that completes a command line of ours, by argcomplete, as one of pytest."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from importlib import import_module

__all__ = ["complete"]


def complete(commands: Mapping[str, tuple[str, str]]) -> None:
    """Tell the shell what could follow, and end the process; return where argcomplete is missing.

    `commands` are modules and what they do, by name: the one that is being typed is imported.
    """
    try:
        import argcomplete
    except ImportError:
        return
    typed = os.environ.get("COMP_LINE", "").split()[1:2]
    parser = argparse.ArgumentParser(prog="pytest-elastic")
    parser.add_argument("--version", action="store_true")
    added = parser.add_subparsers()
    for name, (module, about) in commands.items():
        parents = [import_module(module).build_parser()] if name in typed else []
        added.add_parser(name, help=about, parents=parents, add_help=False)
    argcomplete.autocomplete(parser)
