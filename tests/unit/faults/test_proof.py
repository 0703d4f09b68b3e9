"""Until when a fault is looked at, and how often: on the smallest fault there is."""

from __future__ import annotations

import pytest
from elastic_harness.faults.context import HealOrdered, InForce, Sleep, Waits, wait_for_proof

from tests.unit.faults.bench import World


class Looked:
    """Waits for the proof of a fault, in a world of its own, and takes the times of its looks."""

    def __init__(
        self, *, seen_at: float | None = None, patience: float = 1.0, **how: float
    ) -> None:
        self._world = World(patience=patience)
        self._seen_at = seen_at
        self.at: list[float] = []
        self._steps = wait_for_proof(self._world.context, self._look, **how)
        assert next(self._steps) is InForce.NEEDS_JOB
        self._began = self._world.time.now()

    def to_the_end(self, *, healed_at: float | None = None) -> str | None:
        """Return what was seen, None: nothing."""
        try:
            wait = next(self._steps)
            while True:
                assert isinstance(wait, Sleep)
                if healed_at is not None and self._past_s() + wait.seconds > healed_at:
                    self._world.pass_time(healed_at - self._past_s())
                    wait = self._steps.throw(HealOrdered())
                    continue
                self._world.pass_time(wait.seconds)
                wait = next(self._steps)
        except StopIteration as stop:
            return str(stop.value) if stop.value else None

    def _past_s(self) -> float:
        return self._world.time.now() - self._began

    def _look(self) -> Waits[str]:
        yield from ()
        self.at.append(round(self._past_s(), 3))
        is_seen = self._seen_at is not None and self._past_s() >= self._seen_at
        return "it acted" if is_seen else ""


def test_it_is_looked_every_tenth_of_a_second_until_something_is_seen() -> None:
    """The first look is after a moment: nothing can have met it at once."""
    looked = Looked(seen_at=0.25)
    assert looked.to_the_end() == "it acted"
    assert looked.at == [0.1, 0.2, 0.3]


def test_what_was_not_seen_in_time_is_none() -> None:
    """The default is half a minute."""
    looked = Looked()
    assert looked.to_the_end() is None
    assert looked.at[-1] == pytest.approx(30, abs=0.11)


@pytest.mark.parametrize(("patience", "last"), [(1.0, 2.0), (4.0, 8.0)])
def test_patience_multiplies_how_long_it_is_looked(patience: float, last: float) -> None:
    """On a slow machine a job meets a fault later."""
    looked = Looked(within_s=2.0, patience=patience)
    assert looked.to_the_end() is None
    assert looked.at[-1] == pytest.approx(last, abs=0.11)
    assert Looked(within_s=2.0, seen_at=7.5, patience=patience).to_the_end() == (
        "it acted" if patience == 4.0 else None
    )


def test_looks_that_cost_much_come_further_and_further_apart() -> None:
    """Up to a limit."""
    looked = Looked(within_s=2.0, slowest_look_s=0.3)
    assert looked.to_the_end() is None
    assert looked.at[:4] == [0.1, 0.25, 0.475, 0.775]
    assert looked.at[4] == pytest.approx(1.075)


@pytest.mark.parametrize(("seen_at", "expected"), [(0.21, "it acted"), (0.3, None)])
def test_a_heal_gets_one_last_look(seen_at: float, expected: str | None) -> None:
    """At once, and none after it."""
    looked = Looked(seen_at=seen_at)
    assert looked.to_the_end(healed_at=0.25) == expected
    assert looked.at == [0.1, 0.2, 0.25]
