"""All tests of a check-up for a few jobs, as `battery.txt` has them.

python -m tests.unit.checkup.written_battery > tests/unit/checkup/battery.txt
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import yaml
from elastic_harness.checkup.battery import (
    BATTERY,
    Checkup,
    NotKnown,
    Unfit,
    reference_scenario,
    scenario_text,
)
from elastic_harness.checkup.measured import Checkpoints, Measured, measure

from tests.unit.checkup.undisturbed import undisturbed

__all__ = ["written"]

_JOB: Mapping[str, Any] = {"script": "train.py", "max_restarts": 3}


def _jobs() -> Iterator[tuple[str, Checkup, Measured]]:
    found = measure(undisturbed(steps=100).history, "succeeded", "", "train.py")
    every_seven = Checkpoints(
        written="out/tmp.*", named="out/ck.pt", steps=tuple(range(7, 101, 7)), beside=0
    )
    odd = (25, {0: Counter([*range(25), 0]), 1: Counter(range(25)), 2: Counter(range(20))})
    yield (
        "100 steps of 45 ms on 3 ranks, saves every 7 steps, one of 25 samples again",
        Checkup(job=_JOB),
        replace(
            found,
            start_s=6.0,
            seconds=4.455,
            world_size=3,
            checkpoints=every_seven,
            epoch_ends=frozenset({42, 84}),
            samples=odd,
        ),
    )
    by_epochs = Checkpoints(written="ck.pt", named="ck.pt", steps=(10, 20, 30, 43, 50), beside=0)
    used = {epoch: Counter(range(28 - epoch)) for epoch in range(4)}
    yield (
        "50 steps of 1 s on 2 nodes with 2 ranks, saves every ten steps, leaves out samples",
        Checkup(job={**_JOB, "nproc_per_node": 2}, nodes=2, tolerance=1e-3, limit_s=70.0),
        replace(
            found,
            steps=50,
            seconds=49.0,
            world_size=4,
            checkpoints=by_epochs,
            epoch_ends=frozenset({11}),
            samples=(30, used | {4: Counter(range(3))}),
        ),
    )
    yield (
        "108 steps of 35 ms on 3 ranks, saves nothing; no sample, loss or state was seen",
        Checkup(job=_JOB),
        replace(
            found,
            steps=108,
            seconds=3.745,
            world_size=3,
            checkpoints=None,
            samples=None,
            state=None,
            epoch_ends=frozenset(),
            unseen={"checkpoints": "it saves nothing"},
        ),
    )
    yield (
        "20 steps of 2 s on one node, saves twice, late; its steps are not known",
        Checkup(job=_JOB, nodes=1),
        replace(
            found,
            steps=20,
            seconds=38.0,
            world_size=1,
            checkpoints=Checkpoints(written="ck.pt", named="ck.pt", steps=(12, 15), beside=0),
            is_global=False,
            samples=(24, {0: Counter(range(24))}),
        ),
    )
    yield (
        "12 steps of 2 s on 3 ranks, saves once",
        Checkup(job=_JOB),
        replace(
            found,
            steps=12,
            seconds=22.0,
            world_size=3,
            checkpoints=Checkpoints(written="ck.pt", named="ck.pt", steps=(5,), beside=0),
        ),
    )
    yield (
        "14 steps of 2 s on 3 ranks, saves each; whether it saves more is not known",
        Checkup(job=_JOB),
        replace(
            found,
            steps=14,
            seconds=26.0,
            world_size=3,
            checkpoints=Checkpoints(
                written="a/b/*", named="a/b/*.pt", steps=tuple(range(1, 15)), beside=0
            ),
            epoch_ends=frozenset({6, 8}),
            misses_files=True,
            unseen={"checkpoints": "not all was seen"},
        ),
    )
    yield (
        "200 steps of 1 s on 3 ranks, saves in the middle of each epoch, beside 3 steps",
        Checkup(job=_JOB),
        replace(
            found,
            steps=200,
            seconds=199.0,
            world_size=3,
            checkpoints=Checkpoints(
                written="ck.pt", named="ck.pt", steps=(*range(5, 200, 10), 200), beside=3
            ),
            epoch_ends=frozenset(range(10, 200, 10)),
            samples=(24, {epoch: Counter(range(24)) for epoch in range(20)}),
        ),
    )


def written() -> str:
    """Return what each job is asked, a line for each part of a scenario that differs."""
    lines: list[str] = []
    for title, checkup, seen in _jobs():
        lines += ["", f"# {title}", "", "uninterrupted"]
        lines += _parts(reference_scenario(checkup, seen))
        for test in BATTERY:
            allowed = None if test.allows is None else test.allows(checkup, seen)
            lines += ["", f"{test.name}: {allowed} steps may be lost"]
            try:
                lines += _parts(scenario_text(test, checkup, seen))
            except (Unfit, NotKnown) as reason:
                lines.append(f"  {type(reason).__name__}: {reason}")
    return "\n".join([*lines[1:], ""])


def _parts(text: str) -> list[str]:
    scenario = yaml.safe_load(text)
    lines = [f"  limit {scenario['limit']}, nodes {json.dumps(scenario['nodes'])}"]
    lines += [f"  when {json.dumps(each)}" for each in scenario.get("timeline", ())]
    return lines + [f"  then {json.dumps(each)}" for each in scenario["expect"]["finally"]]


if __name__ == "__main__":
    sys.stdout.write(written())
