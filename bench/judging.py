"""What the verdict on a long run costs: all that a recorded history of 10 000 records says."""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time

from elastic_harness.cluster.choose import choose_cluster
from elastic_harness.history.history import History
from elastic_harness.history.judge import judge
from elastic_harness.scenario.launchers import launcher_named
from elastic_harness.scenario.model import Scenario
from elastic_harness.scenario.planning.planner import make_plan
from elastic_harness.session import HarnessSession

__all__ = ["judging"]

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_RECORDS = 10_000
_WORKERS = 6
_RECORDS_A_STEP = 2
_TIMES = 5
_MAX_S = 0.1
_LIMIT_S = 300.0


def judging(*, quick: bool) -> dict[str, object]:
    """Record a real job of so many records, judge it again and again, and print the median."""
    wanted = _RECORDS // 10 if quick else _RECORDS
    entries = _record(wanted).entries
    seconds = []
    for _ in range(_TIMES):
        history = History.of(each.record for each in entries)  # nothing of it is known yet
        began = time.perf_counter()
        judgements = judge(history)
        seconds.append(time.perf_counter() - began)
    median = statistics.median(seconds)
    held = sum(each.verdict.is_valid for each in judgements)
    sys.stdout.write(
        f"\nthe verdict on a run of {len(entries)} records: {held} of {len(judgements)} hold\n"
    )
    sys.stdout.write(f"  median {median:.3f} s, to be reached for {_RECORDS}: {_MAX_S:g}\n")
    return {"seconds": median, "missed": held < len(judgements) or (not quick and median > _MAX_S)}


def _record(records: int) -> History:
    steps = records // (_WORKERS * _RECORDS_A_STEP)
    scenario = Scenario.model_validate(
        {
            "version": 1,
            "id": "judging",
            "title": "A long run",
            "job": {
                "script": "examples/train.py",
                "args": [f"--steps={steps}", "--checkpoint-every=1000"],
                "nproc_per_node": 2,
            },
            "nodes": _WORKERS // 2,
            "limit": _LIMIT_S,
            "expect": {
                "finally": [
                    {"job": "succeeded"},
                    {"restarts": 0},
                    {"finished_at": {"step": steps}},
                    {"samples": {"each_epoch": "exactly_once", "last_epoch": "may_be_cut"}},
                    {"parameters": "identical"},
                ]
            },
        }
    )
    session = HarnessSession(choose_cluster("namespace"))
    try:
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            run = session.open(
                make_plan(scenario, 0),
                launcher_named("pytest-elastic"),
                directory=folder,
                base_dir=_ROOT,
                cwd=_ROOT,
                environ=os.environ,
                is_open=False,
            )
            return run.wait().history
    finally:
        session.close()
