"""Whom a node dials that knows how the job has ended, and until when."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pytest_elastic.rendezvous.deadlines import Deadlines
from pytest_elastic.rendezvous.messages import JobEnding
from pytest_elastic.rendezvous.model import RosterEntry, Settings
from pytest_elastic.rendezvous.telling import Telling
from pytest_elastic.rendezvous.vocabulary import Outcome, ProbeAnswered

SETTINGS = Settings(run_id="r", min_nodes=1, max_nodes=3, max_restarts=1, quorum="majority")
MEMBERS = tuple(
    RosterEntry(name=f"n{k}", incarnation=f"i{k}", address=f"n{k}", slots=1, port=k)
    for k in (1, 2, 3)
)
ENDING = JobEnding(term=1, result="succeeded", reason="x", members=MEMBERS)


def begun(unaware: Sequence[str] | None) -> Telling:
    """Return what n1 does about it."""
    telling = Telling(SETTINGS, Deadlines(), "i1")
    telling.begin(ENDING, unaware)
    return telling


def dialled(telling: Telling, now: float) -> list[str]:
    """Return whom it dials; each is told the end."""
    probes = telling.dials(now)
    assert all(probe.ended == ENDING for probe in probes)
    return [probe.name for probe in probes]


@pytest.mark.parametrize(
    ("unaware", "names"), [(None, ["n2", "n3"]), ((), []), (("i3", "strangers"), ["n3"])]
)
def test_those_are_told_who_may_not_know(unaware: Sequence[str] | None, names: list[str]) -> None:
    """All but oneself, where nobody has said who knows."""
    assert dialled(begun(unaware), 0.0) == names


@pytest.mark.parametrize(
    ("outcome", "ended", "left"),
    [
        (Outcome.ALIVE, ENDING, []),
        (Outcome.ALIVE, None, ["n2"]),
        (Outcome.TOMBSTONE, None, []),
        (Outcome.REFUSED, None, ["n2"]),
        (Outcome.SILENT, None, ["n2"]),
    ],
)
def test_each_is_told_until_it_knows_or_is_known_to_have_ended(
    outcome: Outcome, ended: JobEnding | None, left: list[str]
) -> None:
    """A port that refuses may be a firewall; one dial at a time, and one a beat."""
    telling = begun(("i2",))
    assert dialled(telling, 0.0) == ["n2"]
    assert dialled(telling, 2 * SETTINGS.beat_interval_s) == []
    telling.take_answer(ProbeAnswered(name="n2", incarnation="i2", outcome=outcome, ended=ended))
    assert dialled(telling, 2.5 * SETTINGS.beat_interval_s) == []
    assert dialled(telling, 4 * SETTINGS.beat_interval_s) == left
