"""A node that decides and is to leave: it goes by its own coordinator while that is here."""

from __future__ import annotations

import dataclasses

import pytest

from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.member import Link
from tests.unit.rendezvous.test_member import FOUND, SETTINGS, Bench

OWN = v.CoordinatorFound(address="n2", port=2, term=4, is_here=True, incarnation="i2")


def leaving() -> Bench:
    """Return a node that has lost contact to its own coordinator, and whose lease has ended."""
    bench = Bench(dataclasses.replace(SETTINGS, quorum="majority"))
    welcome = m.Welcome(term=4, name="n2", coordinator="n2", incarnation="i2")
    bench.give(v.Start(), OWN, v.Connected(), welcome)
    bench.give(ports.DrainRequested(reason="SIGTERM", grace_s=5.0))
    bench.give(v.ConnectionLost(reason="reset"))
    bench.pass_time(bench.now + SETTINGS.lease_s + 2.0)
    assert bench.member.link is Link.SEEKING
    return bench


def test_it_dials_its_own_coordinator_again_after_its_lease() -> None:
    """Others need that one: alone, the node would leave it behind without anybody to hand over."""
    bench = leaving()
    bench.give(OWN)
    assert bench.member.link is Link.DIALING


@pytest.mark.parametrize("answer", [FOUND, v.CoordinatorNotFound(reason="no store")])
def test_it_goes_alone_when_no_coordinator_is_here(answer: v.MemberInput) -> None:
    """Its own has stepped down, or it would be the first to be found."""
    bench = leaving()
    bench.give(answer)
    assert bench.member.link is Link.OVER
