"""A sample of what `python -m tests.judge.mutants` does: no changed history is judged valid."""

from __future__ import annotations

import glob
import os
import random

import pytest
from elastic_harness.history.verdict import Outcome
from msgspec.structs import replace

from pytest_elastic.events.codec import UnknownEvent, event_from
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
            assert not verdict.is_valid, f"{change.what} (record {change.seq}): not seen"


@pytest.mark.parametrize("path", PATHS, ids=lambda path: os.path.basename(path).partition(".")[0])
def test_a_record_without_its_fields_is_named_in_the_verdict(path: str) -> None:
    """Whatever kind it is of: nothing is made of it, and the verdict is unknown."""
    records = load(path)
    for kind in sorted({record.event.kind for record in records}):
        place = max(i for i, record in enumerate(records) if record.event.kind == kind)
        if type(event_from(kind, {})) is not UnknownEvent:
            continue  # all that it says has a default
        torn = replace(records[place], event=UnknownEvent(name=kind))
        verdict = verdict_on([*records[:place], torn, *records[place + 1 :]])
        assert verdict.outcome is Outcome.UNKNOWN, (kind, verdict.reason)
        assert f"{kind} is not as this version writes it" in verdict.reason


def test_what_changes_the_judges_names_files_and_lines_that_exist() -> None:
    """Else `python -m tests.judge.source` ends before it has tried anything."""
    for file in source.FILES:
        source.source_of(file)
    for file, old, _ in source.equivalent():
        assert old in " ".join(source.source_of(file).split()), file
