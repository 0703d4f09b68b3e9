"""Which step parameters are of: known where one step left them, and never guessed."""

from __future__ import annotations

import pytest
from elastic_harness.observe.parameter_steps import ParameterSteps

# What is said, in turn: "WORLD/RANK DIGEST=ANSWER" begins; "DIGEST:STEP" is a step's end.
STORIES = {
    "the first world begins at 0": "1/0 a=0 1/1 b=0",
    "also where another rank was faster": "1/0 a=0 b:1 1/1 a=0",
    "and where the first step changed nothing": "1/0 a=0 a:1 1/1 a=0",
    "a later world goes on from where a step ended": "1/0 a=0 b:1 c:2 2/0 c=2 2/1 b=1",
    "or begins once more": "1/0 a=0 b:1 2/0 a=0",
    "the same step twice is one": "1/0 a=0 b:1 2/0 a=0 b:1 3/0 b=1",
    "parameters of no step are unknown": "1/0 a=0 b:1 2/0 d=?",
    "and stay so": "1/0 a=0 b:1 2/0 d=? 2/1 d=? 3/0 d=?",
    "parameters of two steps are unknown": "1/0 a=0 b:1 b:2 2/0 b=?",
    "of the first steps as well": "1/0 a=0 a:1 2/0 a=?",
    "a rank that comes again is of a later world": "1/0 a=0 1/1 a=0 b:1 1/1 d=? 1/1 b=1",
    "a late rank of the first world goes on as its parameters say": "1/0 a=0 b:1 1/1 b=1",
    "a late world begins at 0 only if it was the first": "2/0 a=0 1/0 d=? 2/1 d=0",
}


@pytest.mark.parametrize("name", STORIES)
def test_a_step_is_known_where_exactly_one_left_such_parameters(name: str) -> None:
    """Otherwise it is unknown, which costs a verdict and never makes a wrong one."""
    steps = ParameterSteps()
    words = iter(STORIES[name].split())
    for word in words:
        if ":" in word:
            digest, _, step = word.partition(":")
            steps.on_step(digest, int(step))
            continue
        world, _, rank = word.partition("/")
        digest, _, expected = next(words).partition("=")
        found = steps.on_first_step(world, int(rank), digest)
        assert ("?" if found is None else str(found)) == expected, f"{word} {digest}"
