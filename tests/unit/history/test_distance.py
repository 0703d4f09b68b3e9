"""How far two states are apart, of all values and of the worst block of them."""

from __future__ import annotations

import math

import pytest
from elastic_harness.history.checkers.distance import UNKNOWN, Distance, distance


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
        # What is the same on both sides may be as large as it likes.
        (distance((9.0, 0.25), (9.0, 0.5), 1e9, (1e9, 1.0)), Distance(2.5e-10, 0.25)),
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
        (
            Distance(1e-6, 1.0005e-3),
            False,
            ", by 1e-06 (relative) of all, and some of the tensors by 0.001",
        ),
        (Distance(0.0), True, ", by 0 (relative)"),
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
    assert Distance(0.5) == Distance(0.5, 0.0)
