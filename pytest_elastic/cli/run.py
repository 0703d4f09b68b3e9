"""`pytest-elastic run`: read the command line and launch."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_elastic.cli.devices import count_devices
from pytest_elastic.cli.options import build_parser, parse_run_command
from pytest_elastic.config import LaunchConfig
from pytest_elastic.errors import ElasticError, InternalError
from pytest_elastic.printed import printable_lines

if TYPE_CHECKING:
    from pytest_elastic.boot.role import Program, Role
    from pytest_elastic.workers.keeper_client import AdoptedKeeper

__all__ = ["LauncherRole", "build_parser", "main", "read_config"]


def main(argv: Sequence[str]) -> int:
    """Run a job's share on this node; return the exit code."""
    return _launch(read_config(argv, os.environ), None)


def _launch(config: LaunchConfig, adopted: AdoptedKeeper | None) -> int:
    """Launch; an unexpected exception becomes an InternalError, with its traceback shown."""
    from pytest_elastic.launch import launch

    try:
        return launch(config, adopted=adopted).exit_code
    except ElasticError:
        raise
    except Exception as error:
        from pytest_elastic.cli.hidden_module import hidden_module

        if (hidden := hidden_module(error)) is not None:
            raise hidden from error
        # An agent that ends with 1, as by Python's default, would say that the job failed.
        traceback.print_exc()
        raise InternalError(f"the agent ended by an unexpected {type(error).__name__}") from error


def read_config(argv: Sequence[str], environ: Mapping[str, str]) -> LaunchConfig:
    """Return the settings that a command line asks for; raises UsageError."""
    return parse_run_command(argv, environ, count_devices=count_devices)


class LauncherRole:
    """`pytest-elastic run` in a process forked from a warm interpreter, which has torch already.

    `argv` is a command line such as `-m pytest_elastic run train.py`. The keeper is forked before
    anything else: it needs the interpreter as it is.
    """

    def __init__(self, argv: Sequence[str]) -> None:
        words = list(argv)
        self._argv = words[words.index("run") + 1 :]

    def run(self) -> Role | Program:
        """Launch, and end the process with the launch's exit code; returns in the keeper only."""
        from pytest_elastic.launch import keeper_kill_margin_s, keeper_linger_s
        from pytest_elastic.workers.keeper_client import AdoptedKeeper, fork_keeper

        try:
            config = read_config(self._argv, os.environ)
            keeper = fork_keeper(
                kill_margin_s=keeper_kill_margin_s(config), linger_s=keeper_linger_s(config)
            )
            if not isinstance(keeper, AdoptedKeeper):
                return keeper
            code = _launch(config, keeper)
        except ElasticError as error:
            sys.stderr.write(printable_lines(f"pytest-elastic run: {error}") + "\n")
            code = error.exit_code
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
