"""`pytest-elastic check RUN_DIR`: judge a recorded history again, without running anything."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from pytest_elastic.errors import UsageError

__all__ = ["main"]

_EXIT_CODES = {"valid": 0, "invalid": 1, "unknown": 2}


def main(argv: Sequence[str]) -> int:
    """Print a verdict for each clause; return 0 for valid, 1 for invalid, 2 for unknown."""
    parser = argparse.ArgumentParser(
        prog="pytest-elastic check",
        description="Judge a run's history again: its scenario's clauses and the invariants.",
    )
    parser.add_argument("run", metavar="RUN_DIR", help="a run's directory, with history.jsonl")
    run: str = parser.parse_args(argv).run
    from elastic_harness.history.checkers import default_checks, judge, overall
    from elastic_harness.history.history import History
    from elastic_harness.scenario.judging import checks_of
    from elastic_harness.scenario.planner import decode_plan

    history_path = os.path.join(run, "history.jsonl")
    try:
        history = History.load(history_path)
    except OSError as error:
        raise UsageError(
            f"there is no history to judge at {history_path}: {error.strerror}",
            hint="The directory of a run is named at the end of its report.",
        ) from error
    checks = list(default_checks())
    plan_path = os.path.join(run, "plan.json")
    if os.path.exists(plan_path):
        with open(plan_path, encoding="utf-8") as file:
            checks = checks_of(decode_plan(file.read()).scenario)
    judgements = judge(history, checks)
    for judgement in judgements:
        outcome = judgement.verdict.outcome.value
        print(f"{outcome:<8} {judgement.text}: {judgement.verdict.reason}")
    return _EXIT_CODES[overall(judgements).outcome.value]
