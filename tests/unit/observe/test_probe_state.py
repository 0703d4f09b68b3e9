"""What a worker tells of its parameters at its end, and how far apart two such are said to be."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from elastic_harness.history.checkers.distance import distance
from elastic_harness.observe.probe.elastic_probe_state import sketch_of


def by(factor: float) -> Callable[[Any], Any]:
    """Return what multiplies a tensor."""
    return lambda tensor: tensor * factor


@pytest.mark.parametrize("tensors", [2, 64, 65, 300])
@pytest.mark.parametrize(
    ("change", "is_within"), [(by(1.0), True), (by(1 + 1e-6), True), (by(1.02), False)]
)
def test_a_small_tensor_is_not_lost_beside_a_large_one(
    tensors: int, change: Callable[[Any], Any], *, is_within: bool
) -> None:
    """One that is 2 % off changes all together by less than a millionth."""
    torch.manual_seed(7)
    large = torch.randn(5000, 128) * 1000
    small = [torch.randn(10, 10) for _ in range(tensors - 1)]
    known = sketch_of([large, *small])
    found = sketch_of([large, *small[:-1], change(small[-1])])
    assert len(known["norms"]) == min(64, tensors)
    assert math.hypot(*known["norms"]) == pytest.approx(known["norm"])
    far = distance(found["sketch"], known["sketch"], known["norm"], known["norms"])
    assert far.of_all < 1e-6
    assert far.is_within(1e-6) == is_within


@pytest.mark.parametrize("tensors", [1, 2, 40, 64, 300])
def test_a_distance_is_about_the_real_one(tensors: int) -> None:
    """Each block has several sums, whose squares add up to the squared distance, about."""
    torch.manual_seed(3)
    one = [torch.randn(30) for _ in range(tensors)]
    other = [each + 0.01 * torch.randn(30) for each in one]
    known, found = sketch_of(one), sketch_of(other)
    far = distance(found["sketch"], known["sketch"], known["norm"], known["norms"])
    assert far.of_all == pytest.approx(0.01, rel=0.4)
    assert 0.3 < far.of_block / 0.01 < 3.0
