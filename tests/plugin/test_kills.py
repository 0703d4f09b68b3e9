"""A few kills of `python -m tests.plugin.kill_campaign`, which does a hundred: nothing is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.plugin.kill_campaign import draw_kill, play, prepare
from tests.plugin.place import Place

# Chosen so that each part is killed once; the slow ones on request.
SEEDS = (4, 10, 7, 16, 1)


@pytest.mark.parametrize(
    "seed",
    [
        seed if place < 2 else pytest.param(seed, marks=pytest.mark.slow)
        for place, seed in enumerate(SEEDS)
    ],
)
def test_a_kill_leaves_nothing(tmp_path: Path, seed: int) -> None:
    """No matter which process is killed; a pytest that was not ends by itself."""
    place = Place(tmp_path, preload="torch")  # its cluster descends from it
    prepare(place)
    kill = draw_kill(seed)
    hit, problems = play(kill, place)
    assert problems == [], f"{kill}; hit {hit}"
    assert hit in {kill.victim, "pytest"}, f"{kill}: nobody was hit"
