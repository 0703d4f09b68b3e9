"""A sample of what `python -m tests.judge.mutants` does: no changed history is judged valid."""

from __future__ import annotations

import glob
import os
import random

import pytest

from tests.judge import source
from tests.judge.mutants import RECORDED, changes_of, load, verdict_on
from tests.judge.unseen import reason_unseen

PATHS = sorted(glob.glob(os.path.join(RECORDED, "*.jsonl.gz")))
SAMPLE = 40


@pytest.mark.parametrize("path", PATHS, ids=lambda path: os.path.basename(path).partition(".")[0])
def test_no_changed_history_is_judged_valid(path: str) -> None:
    """As it was recorded it is valid; with one fact changed it is not."""
    records = load(path)
    assert verdict_on(records).is_valid, verdict_on(records).reason
    seed = int(os.environ.get("ELASTIC_MUTANTS_SEED", random.randrange(10_000)))
    print(f"ELASTIC_MUTANTS_SEED={seed}")
    for change in random.Random(seed).sample(list(changes_of(records)), SAMPLE):
        if not reason_unseen(change.what, records, change.seq - 1):
            verdict = verdict_on(change.make())
            assert not verdict.is_valid, f"{change.what} (record {change.seq}): seen by nobody"


def test_what_changes_the_judges_names_files_and_lines_that_exist() -> None:
    """Else `python -m tests.judge.source` ends before it has tried anything."""
    for file in source.FILES:
        source.source_of(file)
    for file, old, _ in source.equivalent():
        assert old in " ".join(source.source_of(file).split()), file
