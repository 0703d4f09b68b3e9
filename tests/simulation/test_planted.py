"""What counts as a planted fault that was found."""

from __future__ import annotations

import dataclasses
from unittest import mock

import pytest
from elastic_simulation.random_faults.plan import Options

from pytest_elastic.rendezvous.leader.rounds import Rounds
from tests.simulation.planted import PLANTED, finds
from tests.simulation.planting import Planted


def _mistaken(*_: object) -> None:
    raise TypeError("the fault itself is wrong")


def _noticed(*_: object) -> None:
    raise AssertionError("a machine notices it")


def _plant(fault: object, *, breaks: str = "") -> Planted:
    return Planted(
        what="no round is ever proposed as it should be",
        breaks=breaks,
        patches=((Rounds, "propose", fault),),
        options=Options(nodes=2, kinds=("fail",)),
    )


def test_a_mistake_of_the_fault_itself_goes_up() -> None:
    """Else a fault that can do nothing would pass for one that is found."""
    with (
        mock.patch.dict(PLANTED, {"mistaken": _plant(_mistaken)}),
        pytest.raises(TypeError, match="itself is wrong"),
    ):
        finds("mistaken", 0)


def test_an_assertion_of_a_machine_is_no_broken_promise() -> None:
    """The job stops before anything could be seen from outside."""
    with mock.patch.dict(PLANTED, {"noticed": _plant(_noticed)}):
        assert not finds("noticed", 0)


def test_only_the_promise_that_a_fault_is_to_break_counts() -> None:
    """A round of too few is not two worlds."""
    known = PLANTED["too-few"]
    with mock.patch.dict(PLANTED, {"as-it-is": known}):
        assert finds("as-it-is", 0)
    other = dataclasses.replace(known, breaks="two worlds")
    with mock.patch.dict(PLANTED, {"another": other}):
        assert not finds("another", 0)
