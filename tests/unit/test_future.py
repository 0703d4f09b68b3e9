"""Futures, and generators that are woken when one is done: in virtual time, and from a thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NoReturn

import pytest
from elastic_harness.future import (
    Future,
    Sleep,
    Steps,
    Task,
    Until,
    gather,
    run,
    settled,
    wait_for,
    within,
)
from elastic_harness.loop_thread import LoopThread

from pytest_elastic.errors import ElasticError, InternalError
from pytest_elastic.loop import Loop
from tests.unit.faults.virtual_time import VirtualTime

REFUSED = ElasticError("it was refused")


def taken(future: Future[str]) -> Steps[str]:
    """Take the value of a future."""
    return (yield from future)


def test_a_generator_is_woken_by_the_future_that_it_waits_for() -> None:
    """In the same moment, and with its value; nothing is looked at in between."""
    time = VirtualTime()
    asked: Future[str] = Future()
    answer = run(time, taken(asked))
    time.pass_time(3600)
    assert not answer.is_done
    asked.settle("yes")
    assert answer.result() == "yes"
    asked.settle("no")
    assert asked.result() == answer.result() == "yes", "the first outcome holds"


def test_an_error_is_raised_where_it_is_waited_for() -> None:
    """And is the outcome of a generator that does not catch it."""

    def careful() -> Steps[str]:
        try:
            return (yield from settled(REFUSED))
        except ElasticError as error:
            return f"caught: {error}"

    assert run(VirtualTime(), careful()).result() == "caught: it was refused"
    assert run(VirtualTime(), taken(settled(REFUSED))).error is REFUSED


def test_a_future_is_neither_true_nor_false() -> None:
    """Who forgets to wait is told so at once."""
    with pytest.raises(TypeError, match="yield from"):
        assert settled("a value that would pass for true")


def test_several_futures_are_one_with_all_values_or_the_first_error() -> None:
    """In the order in which they were given, whichever is done first."""
    first, second = Future[int](), Future[int]()
    both = gather([first, second])
    second.settle(2)
    assert not both.is_done
    first.settle(1)
    assert both.result() == [1, 2]
    assert gather([]).result() == []
    assert gather([Future[int](), settled(REFUSED)]).error is REFUSED
    late = Future[int]()
    failed = gather([late, settled(REFUSED)])
    late.settle(1)
    assert failed.error is REFUSED


def test_a_value_can_be_converted_and_an_error_stays_one() -> None:
    """An ElasticError of the conversion is the outcome, too."""

    def refuse(_: int) -> str:
        raise REFUSED

    assert settled(2).then(str).result() == "2"
    assert settled(REFUSED).then(str).error is REFUSED
    assert settled(2).then(refuse).error is REFUSED


@pytest.mark.parametrize(
    "condition",
    [bool, lambda seen: settled(bool(seen))],
    ids=["at once", "by a future"],
)
def test_a_condition_is_looked_at_until_it_holds(
    condition: Callable[[list[int]], bool | Future[bool]],
) -> None:
    """And no longer than it has time; what is wrong then is said once."""
    time, seen = VirtualTime(), list[int]()

    def wait() -> Steps[float]:
        yield Until(lambda: condition(seen), 2.0, lambda: f"nothing at {time.now():g} s")
        return time.now()

    found = run(time, wait())
    time.pass_time(0.5)
    assert not found.is_done
    seen.append(1)
    time.pass_time(0.1)
    assert found.result() == pytest.approx(0.5, abs=0.02)
    seen.clear()
    late = run(time, wait())
    time.pass_time(2.1)
    assert str(late.error) == "nothing at 2.6 s"


def test_an_event_and_an_operation_have_their_time() -> None:
    """Patience gives them more of it; what a generator lets pass by itself, it does not change."""

    def wait(for_it: Future[str]) -> Steps[str]:
        yield Sleep(seconds=1.0)
        return (yield from within(for_it, 2.0, "asking"))

    for patience, waited_s in ((1.0, 3.0), (4.0, 9.0)):
        time = VirtualTime()
        task = Task(time, wait(Future()), patience=patience)
        task.start()
        time.pass_time(waited_s - 0.1)
        assert not task.is_done
        time.pass_time(0.2)
        assert str(task.error) == f"asking: no answer within {2 * patience:g} s"
    event: Future[None] = Future()
    time = VirtualTime()
    missed = run(time, iter_of(Until(event, 1.0, "it did not come")))
    time.pass_time(1.1)
    event.settle(None)
    assert str(missed.error) == "it did not come"


def iter_of(wait: Until) -> Steps[None]:
    """Wait for one thing."""
    yield wait


class Interrupted(Exception):
    """What a test throws in."""


def test_an_interruption_waits_for_an_operation_and_for_nothing_else() -> None:
    """What is under way cannot be undone; a wait for an event or for time is over at once."""

    def work(operation: Future[str]) -> Steps[list[str]]:
        done = [(yield from operation)]
        try:
            yield Sleep(seconds=60)
        except Interrupted:
            done.append("interrupted")
        return done

    time, operation = VirtualTime(), Future[str]()
    task = Task(time, work(operation))
    task.start()
    task.interrupt(Interrupted())
    assert not task.is_done
    operation.settle("answered")
    assert task.result() == ["answered", "interrupted"]
    task = Task(time, work(settled("answered")))
    task.start()
    task.interrupt(Interrupted())
    assert task.result() == ["answered", "interrupted"]
    task.interrupt(Interrupted())  # harmless when it is over


def test_what_was_waited_for_before_wakes_nobody() -> None:
    """An event that was given up, and the time that a wait had."""

    def work(first: Future[None], second: Future[None]) -> Steps[str]:
        try:
            yield Until(first, 1.0, "too late")
        except Interrupted:
            yield Until(second, 60.0, "too late")
        return "there"

    time, first, second = VirtualTime(), Future[None](), Future[None]()
    task = Task(time, work(first, second))
    task.start()
    task.interrupt(Interrupted())
    first.settle(None)
    time.pass_time(2)
    assert not task.is_done
    second.settle(None)
    assert task.result() == "there"


def broken(*, after: Future[str]) -> Steps[None]:
    """Crash once something is there."""
    yield from after
    raise ZeroDivisionError("oh")


def test_a_bug_is_the_outcome_or_raised_where_nobody_waits() -> None:
    """With its place; it is never lost."""
    asked: Future[str] = Future()
    watched = run(VirtualTime(), broken(after=asked))
    watched.then(lambda _: None)
    asked.settle("now")
    assert isinstance(watched.error, InternalError)
    assert "ZeroDivisionError: oh (" in str(watched.error)
    assert "test_future.py:" in str(watched.error)
    with pytest.raises(ZeroDivisionError):
        run(VirtualTime(), broken(after=settled("at once")))


def test_what_is_no_wait_is_a_bug() -> None:
    """It names what was yielded."""

    def confused() -> Iterator[object]:
        yield "a string"

    with pytest.raises(TypeError, match="'a string'"):
        Task(VirtualTime(), confused()).start()  # type: ignore[arg-type]


def test_a_loop_is_served_until_a_future_is_done() -> None:
    """For so long, and not for ever."""
    loop = Loop()
    try:
        future: Future[str] = Future()
        loop.call_at(loop.now() + 0.01, lambda: future.settle("there"))
        assert wait_for(loop, future) == "there"
        with pytest.raises(ElasticError, match=r"did not end within 0\.02 s"):
            wait_for(loop, Future(), within_s=0.02)
    finally:
        loop.close()


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    """Lend a loop in a thread."""
    made = LoopThread()
    made.start()
    yield made
    made.stop()


def test_another_thread_waits_for_a_future_of_a_loop(thread: LoopThread) -> None:
    """It gets the value, the error, or that there was none in time."""

    def later() -> Future[str]:
        future: Future[str] = Future()
        thread.loop.call_at(thread.loop.now() + 0.01, lambda: future.settle("there"))
        return future

    assert thread.wait(later, timeout_s=60) == "there"
    assert thread.call(lambda: 7) == 7
    with pytest.raises(ElasticError, match="refused"):
        thread.wait(lambda: settled(REFUSED), timeout_s=60)
    with pytest.raises(TimeoutError, match=r"within 0\.02 s"):
        thread.wait(Future, timeout_s=0.02)
    with pytest.raises(ZeroDivisionError):
        thread.wait(lambda: run(thread.loop, broken(after=settled(""))), timeout_s=60)


def test_who_waits_hears_that_the_loop_has_crashed(thread: LoopThread) -> None:
    """Once, and long before its time is up; the loop goes on."""

    def crash() -> Future[None]:
        thread.loop.call_soon(lambda: 1 // 0)  # type: ignore[arg-type]
        return Future()

    with pytest.raises(InternalError, match="ZeroDivisionError"):
        thread.wait(crash, timeout_s=60)
    assert thread.call(lambda: 7) == 7


def test_who_waits_hears_what_the_loop_has_to_say_as_it_is(thread: LoopThread) -> None:
    """An error with words for the user, such as a full disk, is no defect to be reported."""

    def refuse() -> NoReturn:
        raise REFUSED

    def begin() -> Future[None]:
        thread.loop.call_soon(refuse)
        return Future()

    with pytest.raises(ElasticError) as told:
        thread.wait(begin, timeout_s=60)
    assert told.value is REFUSED
