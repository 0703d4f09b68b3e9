"""How long the agent waits for its store service, which has to import torch first."""

from __future__ import annotations

from pytest_elastic.agent.store_calls import StoreCalls
from pytest_elastic.loop import Loop
from pytest_elastic.workers.messages import CallStore, Order, StoreAnswered


class Hands:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.at = 0.0

    def now(self) -> float:
        """Return what it was set to."""
        return self.at


class Node:
    """The calls of a node whose service answers when the test says so."""

    def __init__(self) -> None:
        self.clock = Hands()
        self.loop = Loop(self.clock)
        self.sent: list[Order] = []
        self.errors: list[str] = []
        self.ticks = 7
        self.calls = StoreCalls(self.loop, self.sent.append)
        self.calls.wake(on_done=self.errors.append, work_done=lambda: self.ticks)

    def pass_minutes(self, minutes: int, *, ticks: int) -> None:
        """Let time pass, in which the import gets on by so many ticks a minute."""
        for _ in range(minutes):
            self.clock.at += 60
            self.ticks += ticks
            self.loop.run_once(0)


def test_an_import_that_gets_on_is_waited_for() -> None:
    """Twenty minutes for two seconds of work: a machine that has little time to give."""
    node = Node()
    node.pass_minutes(20, ticks=10)
    assert node.errors == []
    (order,) = node.sent
    assert isinstance(order, CallStore)
    node.calls.on_answer(StoreAnswered(id=order.id))
    assert node.errors == [""]
    node.pass_minutes(70, ticks=0)
    assert node.errors == [""]


def test_an_import_that_stands_still_is_given_up() -> None:
    """A frozen keeper, or a disk that does not answer: minutes after it was last seen to work."""
    node = Node()
    node.pass_minutes(7, ticks=10)
    node.pass_minutes(3, ticks=0)
    assert node.errors == []
    node.pass_minutes(5, ticks=0)
    assert node.errors == ["the store service has done nothing for 300 s"]


def test_no_import_is_waited_for_for_ever() -> None:
    """What works for an hour and comes to no end is in a circle."""
    node = Node()
    node.pass_minutes(61, ticks=1000)
    assert len(node.errors) == 1
    node.loop.close()
