"""`pytest-elastic chaos FILE`: run scenario files; pytest, with the options that matter here."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

__all__ = ["main"]


def main(argv: Sequence[str]) -> NoReturn:
    """Become pytest, which runs the scenarios."""
    parser = argparse.ArgumentParser(
        prog="pytest-elastic chaos",
        description="Run scenario files against a launcher.",
        epilog="Everything else is pytest's: 'pytest FILE --help' shows the options --elastic-*.",
    )
    parser.add_argument("files", metavar="FILE", nargs="+", help="*.elastic.yaml, or folders")
    parser.add_argument("--launcher", metavar="NAME|COMMAND", help="the launcher under test")
    parser.add_argument("--cluster", choices=("auto", "namespace", "process"))
    parser.add_argument("--seed", metavar="N", help="where all chance comes from")
    parser.add_argument("--artifacts", metavar="DIR", help="where runs leave their traces")
    options = parser.parse_args(argv)
    given = {name: getattr(options, name) for name in ("launcher", "cluster", "seed", "artifacts")}
    words = [f"--elastic-{name}={value}" for name, value in given.items() if value is not None]
    command = [sys.executable, "-m", "pytest", *options.files, *words, "--elastic-keep=all"]
    # In our place, not below us: signals and the exit code are then pytest's own.
    os.execv(sys.executable, command)
