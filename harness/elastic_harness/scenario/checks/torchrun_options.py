"""Command lines as the installed torchrun reads them.

It is asked in a child: its parser imports torch, which takes two seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from typing import Final

from elastic_harness.scenario.checks.launcher_options import Reading
from pytest_elastic.errors import UsageError

__all__ = ["read_options"]

# Importing torch from a cold disk, or on a machine that is busy with much else.
_LIMIT_S: Final = 180


def read_options(lines: Sequence[Sequence[str]]) -> Sequence[Reading]:
    """Return what torchrun makes of command lines; the same ones are asked about once."""
    return _ask(tuple(map(tuple, lines)))


@cache
def _ask(lines: tuple[tuple[str, ...], ...]) -> Sequence[Reading]:
    try:
        done = subprocess.run(
            [sys.executable, "-m", __name__],
            input=json.dumps(lines),
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        why = f"it does not answer within {_LIMIT_S} s"
        raise UsageError(f"torchrun cannot be asked about options: {why}") from None
    if done.returncode:
        reason = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
        raise UsageError(f"torchrun cannot be asked about options: {reason}")
    return [
        Reading(frozenset(given), program, UsageError(f"torchrun says: {why}") if why else None)
        for given, program, why in json.loads(done.stdout)
    ]


def _read(words: Sequence[str]) -> tuple[list[str], str, str]:
    from torch.distributed.elastic.events.handlers import get_logging_handler
    from torch.distributed.run import config_from_args, get_args_parser

    parser = get_args_parser()
    parser.prog = "torchrun"
    # argparse leaves alone what is there already, unless it is given.
    nothing = dict.fromkeys(vars(parser.parse_args(["script"])))
    said = io.StringIO()
    given, program = [], ""
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            found = vars(parser.parse_args(words, argparse.Namespace(**nothing)))
            given = [
                f"--{key.replace('_', '-')}" for key, each in found.items() if each is not None
            ]
            program = found["training_script"]
            config, _, _ = config_from_args(parser.parse_args(words))
            get_logging_handler(config.event_log_handler)
    except SystemExit as error:
        if not error.code:
            return ["--help"], "", ""
        why = said.getvalue().strip().splitlines()[-1].removeprefix("torchrun: error: ")
        return given, program, why
    except Exception as error:  # noqa: BLE001 (torch's own are of every kind)
        return given, program, f"{type(error).__name__}: {error}"
    return given, program, ""


if __name__ == "__main__":
    json.dump([_read(words) for words in json.load(sys.stdin)], sys.stdout)
