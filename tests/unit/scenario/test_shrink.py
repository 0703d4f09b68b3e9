"""Fewer faults that fail alike: what is tried, in which order, and when it is given up."""

from __future__ import annotations

from elastic_harness.scenario.planning.planner import decode_plan, encode_plan, make_plan
from elastic_harness.scenario.planning.shrink import keep_of_storm, shrink
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.scenario.bench import scenario

NAMES = tuple(f"storm-{number}" for number in range(1, 9))


@given(needed=st.sets(st.sampled_from(NAMES)))
def test_what_a_failure_needs_is_what_is_left(needed: set[str]) -> None:
    """However many of the faults it takes together, none at all included."""
    found = shrink(NAMES, lambda kept: needed <= set(kept), at_most=1000)
    assert set(found.kept) == needed
    assert found.is_smallest
    assert found.kept == tuple(name for name in NAMES if name in needed), "in their order"


@given(needed=st.sets(st.sampled_from(NAMES), min_size=1), at_most=st.integers(0, 12))
def test_no_more_is_asked_than_was_granted(needed: set[str], at_most: int) -> None:
    """What was found by then still fails."""
    asked: list[tuple[str, ...]] = []

    def still_fails(kept: tuple[str, ...]) -> bool:
        asked.append(kept)
        return needed <= set(kept)

    found = shrink(NAMES, still_fails, at_most=at_most)
    assert found.runs == len(asked) <= at_most
    assert needed <= set(found.kept)


def test_a_job_that_fails_without_its_storm_is_found_first() -> None:
    """One run is enough for that."""
    found = shrink(NAMES, lambda _: True, at_most=5)
    assert (found.kept, found.runs) == ((), 1)


def test_a_smaller_plan_keeps_the_times_and_is_replayed_as_it_is() -> None:
    """Written down and read back, with the storm's beginning and the faults that are left."""
    storm = {"max": 6, "faults": ["worker"]}
    plan = make_plan(scenario(nodes=3, storm=storm), 3)
    two = plan.storm_ids[:1] + plan.storm_ids[2:3]
    smaller = keep_of_storm(plan, two)
    assert smaller.storm_ids == two
    assert [each for each in plan.entries if each in smaller.entries] == list(smaller.entries)
    assert smaller.entries[0].id == "storm"
    assert decode_plan(encode_plan(smaller)) == smaller
