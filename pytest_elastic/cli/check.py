"""`pytest-elastic check RUN_DIR`: judge a recorded history again, without running anything."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from pytest_elastic.cli.extensions import add_option, registries
from pytest_elastic.errors import UsageError

__all__ = ["build_parser", "main"]

_EXIT_CODES = {"valid": 0, "invalid": 1, "unknown": 3}


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="pytest-elastic check",
        description="Judge a run again by its recorded history: what its test or scenario asked "
        "for, and the invariants. Exit code: 0 valid, 1 invalid, 3 unknown.",
    )
    parser.add_argument("run", metavar="RUN_DIR", help="a run's directory, with history.jsonl")
    add_option(parser)
    return parser


def main(argv: Sequence[str]) -> int:
    """Print the verdict on each clause; return 0 for valid, 1 for invalid, 3 for unknown."""
    given = build_parser().parse_args(argv)
    from elastic_harness.history.history import History
    from elastic_harness.history.judge import judge, overall

    _, checkers = registries(given.conftest)
    path = os.path.join(given.run, "history.jsonl")
    try:
        history = History.load(path)
    except OSError as error:
        raise UsageError(
            f"there is no history to judge at {path}: {error.strerror}",
            hint="The directory of a run is named at the end of its report.",
        ) from error
    judgements = judge(history, checkers)
    for each in judgements:
        print(f"{each.verdict.outcome.value:<8} {each.title}: {each.verdict.reason}")
    return _EXIT_CODES[overall(judgements).outcome.value]
