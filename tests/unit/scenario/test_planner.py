"""Plans: what chance decides before the run, and how it is had again."""

from __future__ import annotations

import json

import pytest
from elastic_harness.scenario.planning.planner import (
    MIN_BETWEEN_S,
    decode_plan,
    encode_plan,
    make_plan,
)
from elastic_harness.scenario.planning.seed import Seed

from pytest_elastic.errors import UsageError
from tests.unit.scenario.bench import scenario

CHAOS = scenario(
    {"every": {"mtbf": "5s", "max": 20}, "id": "chaos", "kill": "random"},
    {"at": {"step": 3, "rank": 1}, "crash": {"node": "random", "exclude": "store host"}},
    {
        "after": "chaos.healed + 500ms",
        "optional": True,
        "partition": {"isolate": "n2"},
        "for": "2s",
    },
    {"when": {"event": "round_sealed", "round": 2}, "join": ["n3"]},
    expect={
        "always": [{"one_world": "off"}],
        "sometimes": ["rank_reassigned", {"event": "member_lost", "cause": "silent"}],
        "eventually": [{"stable": {"world_size": 2, "steps": 3}, "within": "10s"}],
        "finally": [{"job": "succeeded", "within": "5s"}, {"steps_lost": {"at_most": 3}}],
    },
    nodes={"initial": 2, "min": 1, "max": 3},
)


def test_the_same_seed_gives_the_same_plan_to_the_byte() -> None:
    """And another seed another one."""
    assert encode_plan(make_plan(CHAOS, 5)) == encode_plan(make_plan(CHAOS, 5))
    assert encode_plan(make_plan(CHAOS, 5)) != encode_plan(make_plan(CHAOS, 6))


def test_a_plan_read_back_is_the_plan() -> None:
    """Nothing of the scenario is lost on the way."""
    plan = make_plan(CHAOS, 5)
    assert decode_plan(encode_plan(plan)) == plan


def test_a_plan_says_what_was_drawn_and_a_replay_keeps_it() -> None:
    """Even where the drawing would come out otherwise today."""
    data = json.loads(encode_plan(make_plan(CHAOS, 5)))
    assert len(data["draws"]["chaos"]) == 20
    data["draws"]["chaos"][0] = 0.125
    assert decode_plan(json.dumps(data)).entries[0].delays_s[0] == 0.125


def test_the_scenarios_own_seed_goes_before_the_one_given() -> None:
    """`seed: 7` in the file makes the file a regression test."""
    own = CHAOS.model_copy(update={"seed": 7})
    assert make_plan(own, 5).seed == Seed(value=7)
    assert make_plan(CHAOS, 5).seed == Seed(value=5)


def test_time_between_failures_has_the_mean_that_was_asked_for_and_is_never_nothing() -> None:
    """An exponential draw, cut off where two faults would be one."""
    many = scenario({"every": {"mtbf": "10s", "max": 4000}, "id": "chaos", "kill": "random"})
    delays = make_plan(many, 1).entries[0].delays_s
    assert min(delays) >= MIN_BETWEEN_S
    assert 9.5 < sum(delays) / len(delays) < 10.5
    assert len(set(delays)) > 3000


def test_another_entry_does_not_move_the_draws_of_this_one() -> None:
    """Each thing that draws has its own stream."""
    chaos = {"every": {"mtbf": "5s", "max": 3}, "id": "chaos", "kill": "random"}
    other = {"every": {"mtbf": "5s", "max": 3}, "id": "other", "kill": "random"}
    alone = make_plan(scenario(chaos), 1).entries[0].delays_s
    behind = make_plan(scenario(other, chaos), 1).entries[1].delays_s
    assert alone == behind


def test_two_entries_of_one_id_are_refused() -> None:
    """Also where no file was checked."""
    entry = {"at": "1s", "id": "x", "kill": "rank 0"}
    with pytest.raises(UsageError, match="two entries of the timeline have the id 'x'"):
        make_plan(scenario(entry, entry), 1)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"format": 99}', '{"format": 1}', '{"format": 1, "scenario": {}}']
)
def test_what_is_no_plan_is_refused(text: str) -> None:
    """With one sentence, not with a traceback."""
    with pytest.raises(UsageError, match="cannot replay"):
        decode_plan(text)
