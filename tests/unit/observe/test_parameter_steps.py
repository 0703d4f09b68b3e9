"""Which step parameters are of: known where one step left them, and never guessed."""

from __future__ import annotations

import pytest
from elastic_harness.observe.parameter_steps import ParameterSteps

# What is said, in turn. "WORLD/RANK DIGEST=ANSWER": a first step begins; "DIGEST:STEP": a step has
# left them; "DIGEST>DONE=ANSWER": they were changed between two steps; "WORLD!": a step that an
# optimizer has counted.
STORIES = {
    "the first world begins at 0": "1/0 a=0 1/1 b=0",
    "also where another rank was faster": "1/0 a=0 b:1 1/1 a=0",
    "and where the first step changed nothing": "1/0 a=0 a:1 1/1 a=0",
    "a later world goes on from where a step ended": "1/0 a=0 b:1 c:2 2/0 c=2 2/1 b=1",
    "or begins once more": "1/0 a=0 b:1 2/0 a=0",
    "the same step twice is one": "1/0 a=0 b:1 2/0 a=0 b:1 3/0 b=1",
    "parameters of no step are unknown": "1/0 a=0 b:1 2/0 d=?",
    "and stay so": "1/0 a=0 b:1 2/0 d=? 2/1 d=? 3/0 d=? d:7 4/0 d=?",
    "parameters of two steps are unknown": "1/0 a=0 b:1 b:2 2/0 b=? 2/1 b=?",
    "of the first steps as well": "1/0 a=0 a:1 2/0 a=?",
    "what an unknown step left is unknown": "1/0 a=0 b:1 2/0 d=? b:? 3/0 b=?",
    "a rank that comes again is of a later world": "1/0 a=0 1/1 a=0 b:1 1/1 d=? 1/1 b=1",
    "a late rank of the first world goes on as its parameters say": "1/0 a=0 b:1 1/1 b=1",
    "a late world begins at 0 only if it was the first": "2/0 a=0 1/0 d=? 2/1 d=? 2/2 e=0",
    "the first world may have counted otherwise": "1! 2/0 a=? 2/1 b=?",
    "and its other ranks begin at 0": "1! 1/1 a=0",
    "what a step begins with is known as well": "1/0 a=0 b:1 c>1=1 d:2 2/0 c=1",
    "parameters that were put back end the count": "1/0 a=0 b:1 c:2 b>2=? 2/0 b=?",
    "so do those of the beginning": "1/0 a=0 b:1 a>1=? 2/0 a=?",
}


@pytest.mark.parametrize("name", STORIES)
def test_a_step_is_known_where_exactly_one_left_such_parameters(name: str) -> None:
    """Otherwise it is unknown, which costs a verdict and never makes a wrong one."""
    steps = ParameterSteps()
    world = ""
    words = iter(STORIES[name].split())
    for word in words:
        found: int | None
        if word.endswith("!"):
            steps.on_step(word[:-1], 1, None)
            continue
        if ":" in word:
            digest, _, step = word.partition(":")
            steps.on_step(world, None if step == "?" else int(step), digest)
            continue
        if ">" in word:
            digest, _, rest = word.partition(">")
            done, _, expected = rest.partition("=")
            found = steps.on_change(digest, int(done))
        else:
            world, _, rank = word.partition("/")
            digest, _, expected = next(words).partition("=")
            found = steps.on_first_step(world, int(rank), digest)
        assert ("?" if found is None else str(found)) == expected, word
