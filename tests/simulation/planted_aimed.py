"""The planted faults that aimed runs find: what becomes of the voices of those who have left."""

from __future__ import annotations

import dataclasses

from elastic_simulation.random_faults.plan import Options

from pytest_elastic.rendezvous.candidate import Candidate
from tests.simulation.planting import Planted, after

__all__ = ["PLANTED_AIMED"]


def _forget_who_left_later(candidate: Candidate, *_: object) -> None:
    heritage = candidate.elected
    assert heritage is not None, "it was elected"
    left = frozenset.intersection(*(candidate._excused(each) for each in heritage.electorates))
    candidate.elected = dataclasses.replace(heritage, left=dict.fromkeys(left, 0))


PLANTED_AIMED: dict[str, Planted] = {
    "left-in-one": Planted(
        what="who was elected without a voice in one of two electorates needs it there to decide",
        breaks="go on, . nodes should",
        patches=((Candidate, "_win", after(Candidate._win, _forget_who_left_later)),),
        options=Options(quorum="majority", is_brisk=True, is_aimed=True, endpoints=3),
    ),
}
