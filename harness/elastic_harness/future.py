"""One way to wait: futures, and generators that are woken when what they wait for is there.

An operation that takes a while returns a `Future`. What does several such things in a row is a
generator, which takes values out of futures and lets time pass:

    def replace(cluster: Cluster, spec: NodeSpec) -> Steps[ClusterNode]:
        yield from cluster.crash_node(spec.name)        # raises the operation's ElasticError
        yield Sleep(seconds=1.0)
        return (yield from cluster.start_node(spec))

`run(loop, replace(...))` drives it, and is a future itself. All of this happens in the thread of
one loop. An operation has a deadline of its own, so that waiting for a future needs none; where a
shorter one is wanted, there is `Within`.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

from pytest_elastic.errors import ElasticError, InternalError

__all__ = [
    "Future",
    "Scheduler",
    "Sleep",
    "Steps",
    "Task",
    "Until",
    "Wait",
    "Within",
    "gather",
    "run",
    "settled",
    "wait_for",
    "within",
]

T = TypeVar("T")
U = TypeVar("U")

# The one interval at which is looked at what nothing tells: a letter in /proc, a counter of a
# kernel. A look costs 50 microseconds; what a fault does is seen within a few milliseconds.
_LOOK_S: Final = 0.005


class Alarm(Protocol):
    """A call that will come."""

    def cancel(self) -> None:
        """Make sure that it does not."""


class Scheduler(Protocol):
    """The part of a loop that waiting needs; `pytest_elastic.loop.Loop` is one."""

    def now(self) -> float:
        """Return the time in seconds."""

    def call_at(self, when: float, callback: Callable[[], None]) -> Alarm:
        """Call back once, at `when`."""


class Server(Protocol):
    """A loop that is served by the caller that waits for something."""

    def now(self) -> float:
        """Return the time in seconds."""

    def run_once(self, timeout_s: float) -> None:
        """Serve what comes within that time."""


class Future(Generic[T]):
    """The outcome of an operation: a value or an ElasticError, once it is there.

    `what` says what the operation does, in the error that a time-out raises.
    """

    def __init__(self, what: str = "an operation") -> None:
        self.what = what
        self._outcome: list[T | ElasticError] = []
        self._callbacks: list[Callable[[Future[T]], None]] = []

    def __bool__(self) -> bool:
        raise TypeError("a future is neither true nor false: take its value by `yield from`")

    def __iter__(self) -> Generator[Future[Any], None, T]:
        """Take its value in a generator that `run` drives."""
        if not self._outcome:
            yield self
        return self.result()

    @property
    def is_done(self) -> bool:
        """Tell whether the outcome is there."""
        return bool(self._outcome)

    def settle(self, outcome: T | ElasticError) -> None:
        """Give the outcome, and wake the waiter; the first one holds."""
        if not self._outcome:
            self._outcome.append(outcome)
            callbacks, self._callbacks = self._callbacks, []
            for callback in callbacks:
                callback(self)

    def result(self) -> T:
        """Return the value, or raise the error; only once it is done."""
        assert self._outcome, "a future is read once it is done"
        outcome = self._outcome[0]
        if isinstance(outcome, ElasticError):
            raise outcome
        return outcome

    @property
    def error(self) -> ElasticError | None:
        """The error, if that is the outcome; None while there is no outcome."""
        outcome = self._outcome[0] if self._outcome else None
        return outcome if isinstance(outcome, ElasticError) else None

    def add_done_callback(self, callback: Callable[[Future[T]], None]) -> None:
        """Call back once the outcome is there: at once if it is."""
        if self._outcome:
            callback(self)
        else:
            self._callbacks.append(callback)

    def then(self, convert: Callable[[T], U]) -> Future[U]:
        """Return a future of what `convert` makes of the value."""
        converted: Future[U] = Future(self.what)

        def on_done(done: Future[T]) -> None:
            try:
                converted.settle(convert(done.result()))
            except ElasticError as error:
                converted.settle(error)

        self.add_done_callback(on_done)
        return converted


def settled(outcome: T | ElasticError) -> Future[T]:
    """Return a future that is done."""
    future: Future[T] = Future()
    future.settle(outcome)
    return future


def gather(futures: Iterable[Future[T]]) -> Future[list[T]]:
    """Return a future of all values, in order; its error is the first there was."""
    waiting = list(futures)
    gathered: Future[list[T]] = Future(waiting[0].what if waiting else "")

    def on_done(done: Future[T]) -> None:
        if done.error is not None:
            gathered.settle(done.error)
        elif not gathered.is_done and all(future.is_done for future in waiting):
            gathered.settle([future.result() for future in waiting])

    if not waiting:
        gathered.settle([])
    for future in waiting:
        if not gathered.is_done:
            future.add_done_callback(on_done)
    return gathered


@dataclass(frozen=True, slots=True, kw_only=True)
class Sleep:
    """Let time pass."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Until:
    """Wait for an event (a future), or for a condition that can only be looked at.

    When it does not come in time, `otherwise` says what is wrong; what can only be said then is a
    function, called once.
    """

    condition: Future[Any] | Callable[[], bool | Future[bool]]
    within_s: float
    otherwise: str | Callable[[], str]


@dataclass(frozen=True, slots=True)
class Within:
    """Wait for an operation that is under way, but not longer than this."""

    operation: Future[Any]
    within_s: float
    what: str


Wait: TypeAlias = Future[Any] | Sleep | Until | Within
Steps: TypeAlias = Generator[Wait, None, T]


def within(operation: Future[T], seconds: float, what: str) -> Steps[T]:
    """Take the value of an operation, which has so many seconds."""
    yield Within(operation, seconds, what)
    return operation.result()


class Task(Future[T]):
    """A generator at work, and a future of what it returns.

    `patience` multiplies what is waited for, and no time that it lets pass by itself. An operation
    has `limit_s`, if that is given. What is yielded and is no wait, is handed to `on_said`.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        steps: Generator[Any, None, T],
        *,
        patience: float = 1.0,
        limit_s: float | None = None,
    ) -> None:
        name: str = getattr(steps, "__name__", "an operation")
        super().__init__(name.strip("_").replace("_", " "))
        self._scheduler = scheduler
        self._steps = steps
        self._patience = patience
        self._limit_s = limit_s
        self._turn = 0  # what was waited for in an earlier one does not count any more
        self._alarm: Alarm | None = None
        self._is_busy = False  # it takes a step, or an operation that it asked for is under way
        self._interruption: Exception | None = None

    def interrupt(self, error: Exception) -> None:
        """Raise an error where it waits.

        An operation that is under way is waited for: it is raised at the next wait then.
        """
        if self._is_busy:
            self._interruption = error
        elif not self.is_done:
            self._advance(error)

    def start(self) -> None:
        """Take the first steps, as many as need no wait."""
        self._advance()

    def _on_said(self, said: object) -> None:
        raise TypeError(f"a generator has yielded {said!r}, which cannot be waited for")

    def _error_of(self, problem: Exception) -> ElasticError:
        """Return what the outcome is where the generator has raised."""
        if isinstance(problem, ElasticError):
            return problem
        where = traceback.extract_tb(problem.__traceback__)[-1]
        error = InternalError(
            f"it crashed with {type(problem).__name__}: {problem} ({where.filename}:{where.lineno})"
        )
        error.__cause__ = problem
        return error

    def _advance(self, error: Exception | None = None) -> None:
        self._turn += 1
        if self._alarm is not None:
            self._alarm.cancel()
        while not self.is_done:
            self._is_busy = True
            try:
                said = next(self._steps) if error is None else self._steps.throw(error)
                error = None
                if not isinstance(said, (Future, Sleep, Until, Within)):
                    self._on_said(said)
                    continue
            except StopIteration as stop:
                self.settle(stop.value)
                return
            except Exception as problem:  # noqa: BLE001 (handed on, or raised if it is not waited for)
                self._end_with(problem)
                return
            is_operation = isinstance(said, (Future, Within))
            if self._interruption is not None and not is_operation:
                error, self._interruption = self._interruption, None
                continue
            self._is_busy = is_operation
            try:
                if not self._has_come(said):
                    return
            except Exception as problem:  # noqa: BLE001 (of a condition: the generator's own)
                error = problem

    def _end_with(self, problem: Exception) -> None:
        error = self._error_of(problem)
        if isinstance(error, InternalError) and not self._callbacks:
            self._outcome.append(error)
            raise problem
        self.settle(error)

    def _has_come(self, wait: Wait) -> bool:
        """Tell whether there is nothing to wait for; else see to it that we are woken."""
        now = self._scheduler.now()
        match wait:
            case Sleep(seconds=seconds):
                self._wake_at(now + seconds, None)
                return False
            case Until(condition=Future() as event, within_s=within_s, otherwise=otherwise):
                return self._await(event, within_s, otherwise)
            case Until(within_s=within_s):
                return self._look(wait, now + within_s * self._patience, self._turn)
            case Within(operation=operation, within_s=within_s, what=what):
                longest_s = within_s * self._patience
                return self._await(operation, within_s, f"{what}: no answer within {longest_s:g} s")
            case Future():
                otherwise = f"{wait.what}: no answer within {self._limit_s or 0:g} s"
                return self._await(wait, self._limit_s, otherwise)

    def _await(
        self, event: Future[Any], within_s: float | None, otherwise: str | Callable[[], str]
    ) -> bool:
        if event.is_done:
            return True
        turn = self._turn
        event.add_done_callback(lambda _: self._wake(turn, None))
        if within_s is not None:
            self._wake_at(self._scheduler.now() + within_s * self._patience, otherwise)
        return False

    def _look(self, wait: Until, deadline: float, turn: int) -> bool:
        """Look at a condition; tell whether it holds, and look again later if it does not."""
        assert not isinstance(wait.condition, Future), "an event is not looked at"
        found = wait.condition()
        if not isinstance(found, Future):
            found = settled(found)
        if found.is_done:
            return found.result() or self._look_again(wait, deadline, turn)
        found.add_done_callback(lambda done: self._judge(done, wait, deadline, turn))
        return False

    def _judge(self, done: Future[bool], wait: Until, deadline: float, turn: int) -> None:
        if self._turn == turn and not self.is_done:
            if done.error is not None or done.result():
                self._advance(done.error)
            else:
                self._look_again(wait, deadline, turn)

    def _look_again(self, wait: Until, deadline: float, turn: int) -> bool:
        now = self._scheduler.now()
        if now >= deadline:
            self._wake_at(now, wait.otherwise)
            return False

        def look() -> None:
            try:
                if self._turn == turn and self._look(wait, deadline, turn):
                    self._advance()
            except Exception as problem:  # noqa: BLE001 (of the condition: the generator's own)
                self._wake(turn, problem)

        self._alarm = self._scheduler.call_at(min(now + _LOOK_S, deadline), look)
        return False

    def _wake_at(self, when: float, otherwise: str | Callable[[], str] | None) -> None:
        turn = self._turn

        def wake() -> None:
            reason = otherwise() if callable(otherwise) else otherwise
            self._wake(turn, None if reason is None else ElasticError(reason))

        self._alarm = self._scheduler.call_at(when, wake)

    def _wake(self, turn: int, error: Exception | None) -> None:
        if self._turn == turn and not self.is_done:
            self._advance(error)


def run(scheduler: Scheduler, steps: Generator[Wait, None, T]) -> Future[T]:
    """Drive a generator from now on; returns a future of what it returns."""
    task = Task(scheduler, steps)
    task.start()
    return task


def wait_for(loop: Server, future: Future[T], *, within_s: float = 60.0) -> T:
    """Serve a loop until a future is done, and return its value; raises its error."""
    deadline = loop.now() + within_s
    while not future.is_done:
        left_s = deadline - loop.now()
        if left_s <= 0:
            raise ElasticError(f"the operation did not end within {within_s:g} s")
        loop.run_once(left_s)
    return future.result()
