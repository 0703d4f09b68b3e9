"""How far two states are apart, of all values and of the worst block of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from elastic_harness.history.checkers.distance import UNKNOWN, Distance, distance
from elastic_harness.observe.probe.elastic_probe_state import sketch_of


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (distance((1.0, 2.0), (1.0, 2.0), 4.0, (3.0, 1.0)), Distance(0.0, 0.0)),
        (distance((1.0, 2.0), (1.0, 4.0), 4.0, ()), Distance(0.5, 0.0)),
        (distance((1.0, 2.0), (1.0, 4.0), 4.0, (3.0, 0.5)), Distance(0.5, 4.0)),
        (distance((1.0, 2.0), (3.0, 2.5), 4.0, (8.0, 1.0)), Distance(math.hypot(2, 0.5) / 4, 0.5)),
        # Blocks take turns: the first sums of both sketches are of the first.
        (
            distance((1.0, 0.0, 4.0, 0.0), (4.0, 0.0, 0.0, 0.0), 5.0, (10.0, 1.0)),
            Distance(1.0, 0.5),
        ),
        # Less than a float32 can tell beside all is nothing, and more than nothing is infinite.
        (distance((0.0, 0.5), (0.0, 0.0), 5e6, (5e6, 0.0)), Distance(1e-7, 0.0)),
        (distance((0.0, 0.6), (0.0, 0.0), 5e6, (5e6, 0.0)), Distance(1.2e-7, math.inf)),
        (distance((), (), 4.0, ()), UNKNOWN),
        (distance((1.0,), (1.0, 2.0), 4.0, ()), UNKNOWN),
        (distance((1.0,), (2.0,), None, ()), UNKNOWN),
        (distance((1.0,), (2.0,), 0.0, (0.0,)), UNKNOWN),
        (distance((math.nan,), (2.0,), 1.0, (1.0,)), UNKNOWN),
    ],
)
def test_a_distance_is_of_all_and_of_the_worst_block(found: Distance, wanted: Distance) -> None:
    """Where nothing can be said, it is infinite."""
    assert found.of_all == pytest.approx(wanted.of_all)
    assert found.of_block == pytest.approx(wanted.of_block)


@pytest.mark.parametrize(
    ("far", "is_within", "said"),
    [
        (Distance(1e-6, 1e-3), True, ", by 1e-06 (relative)"),
        (Distance(1.1e-6, 0.0), False, ", by 1.1e-06 (relative)"),
        (
            Distance(1e-6, 1.1e-3),
            False,
            ", by 1e-06 (relative) of all, and some of the tensors by 0.0011",
        ),
        (
            Distance(0.0, math.inf),
            False,
            ", by 0 (relative) of all, and some of the tensors wholly",
        ),
        (UNKNOWN, False, ""),
    ],
)
def test_a_block_may_be_off_by_a_thousand_times_as_much(
    far: Distance, *, is_within: bool, said: str
) -> None:
    """Both bounds count, and both are said where the block is what does not keep it."""
    assert (far.is_within(1e-6), str(far)) == (is_within, said)
    assert far.worst == max(far.of_all, far.of_block)


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
