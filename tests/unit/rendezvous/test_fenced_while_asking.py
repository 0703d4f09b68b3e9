"""A member that asks who decides when it begins to kill its workers."""

from __future__ import annotations

import dataclasses

from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.member import Link, Part
from tests.unit.rendezvous.test_member import COMMIT, FOUND, SEAL, SETTINGS, Bench


def test_whom_it_looked_for_when_it_began_to_fence_is_not_greeted() -> None:
    """A greeting that resumes the round would be answered by its seal, and start it once more."""
    bench = Bench(dataclasses.replace(SETTINGS, quorum="granted"))
    bench.give(v.Start(), FOUND, v.Connected())
    bench.give(m.Welcome(term=4, name="n2", coordinator="n1", incarnation="i1"), SEAL, COMMIT)
    bench.give(m.StepDown(term=4, reason="n1 left", left="i1"))
    assert bench.member.link is Link.SEEKING
    while bench.member.part is not Part.FENCING:
        wake = bench.member.wake_at()
        assert wake is not None
        bench.pass_time(wake)
        assert bench.now < 110.0, "its lease has ended"
    bench.taken()
    bench.give(v.CoordinatorFound(address="n3", port=3, term=5, incarnation="i3"))
    bench.pass_time(bench.now + 1.0)
    assert not [each for each in bench.taken() if isinstance(each, v.Dial | v.FindCoordinator)]
    bench.give(ports.WorkersGone(round=7))
    assert bench.member.link is Link.SEEKING
