"""`pytest-elastic install-shim DIR`: a command `torchrun` that is `pytest-elastic run`."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence

from pytest_elastic.errors import UsageError
from pytest_elastic.whole_file import replace_file

__all__ = ["build_parser", "main"]

_MARK = "# Written by `pytest-elastic install-shim`, which may replace it."
# A shell and not `#!python`: the kernel cuts a long path there, and takes no blanks. To Python the
# line of the shell is a string.
_SHIM = """\
#!/bin/sh
'''exec' {python} "$0" "$@"
'''
{mark}
import sys

from pytest_elastic.cli.main import main

sys.exit(main(["run", *sys.argv[1:]]))
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="pytest-elastic install-shim",
        description="Write a command torchrun into a folder. Tools that start torchrun by its name "
        "then start pytest-elastic run, if the folder is first on PATH.",
        epilog="For tools that call torch.distributed.run in their own process (accelerate launch, "
        "fabric run), set PYTEST_ELASTIC_AS_TORCHRUN=1 instead.",
    )
    parser.add_argument("folder", metavar="DIR", help="where to; it is made if there is none")
    return parser


def main(argv: Sequence[str]) -> int:
    """Write the command, and say how tools find it."""
    folder = os.path.abspath(build_parser().parse_args(argv).folder)
    path = os.path.join(folder, "torchrun")
    try:
        os.makedirs(folder, exist_ok=True)
        _check_is_ours(path)
        text = _SHIM.format(python=shlex.quote(sys.executable), mark=_MARK)
        replace_file(path, text, mode=0o755)  # a command, for all users
    except OSError as error:
        raise UsageError(
            f"cannot write {path}: {error.strerror}", hint="Name a folder that you may write to."
        ) from error
    print(f'wrote {path}; have it found first:\n  export PATH={shlex.quote(folder)}:"$PATH"')
    return 0


def _check_is_ours(path: str) -> None:
    """Refuse to replace a torchrun that is not our shim."""
    if not os.path.lexists(path):
        return
    if os.path.isfile(path):
        with open(path, "rb") as file:
            if _MARK.encode() in file.read(len(_SHIM) + 4096):
                return
    raise UsageError(
        f"{path} is another torchrun, which is left as it is",
        hint="Name a folder of its own for the shim, as in `pytest-elastic install-shim ~/shims`.",
    )
