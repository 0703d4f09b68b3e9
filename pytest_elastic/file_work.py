"""Reads and makes files on threads, within a time limit, because a file system may hang."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from pytest_elastic.file_thread import FileThread
from pytest_elastic.loop import Loop

__all__ = ["FileWork"]

_Result = TypeVar("_Result")


@dataclass(slots=True, eq=False)
class _Call:
    """A call, until its result (a function that returns it, or raises) is handed over."""

    on_done: Callable[[Any], None]
    result: Callable[[], Any] | None = None


class FileWork:
    """Calls functions that may hang; results are handed over in the loop, in the order of calls."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._calls: deque[_Call] = deque()

    def call(
        self,
        work: Callable[[], _Result],
        on_done: Callable[[_Result], None],
        *,
        limit_s: float,
        otherwise: Callable[[], _Result],
    ) -> None:
        """Call `work` on a thread, then `on_done` with its result in the loop.

        When `work` takes longer than `limit_s`, `otherwise` is asked for a result in the loop.
        What `work` raises is raised in the loop.
        """
        self._loop.enable_thread_wakeup()
        call = _Call(on_done)
        self._calls.append(call)
        limit = self._loop.call_at(
            self._loop.now() + limit_s, lambda: self._finish(call, otherwise)
        )

        def finish(result: Callable[[], _Result]) -> None:
            limit.cancel()
            self._finish(call, result)

        def run() -> None:
            result = _result_of(work)
            self._loop.call_from_thread(lambda: finish(result))

        # One for each call: what follows may be on a file system that does not hang.
        FileThread().do(run)

    def after(self, on_done: Callable[[], None]) -> None:
        """Call `on_done` when the results of all calls before have been handed over."""
        self._calls.append(_Call(lambda _: on_done(), lambda: None))
        self._hand_over()

    def close(self) -> None:
        """Forget all calls; threads that still wait for a file are left behind."""
        self._calls.clear()

    def _finish(self, call: _Call, result: Callable[[], Any]) -> None:
        if call.result is None:
            call.result = result
            self._hand_over()

    def _hand_over(self) -> None:
        while self._calls and (result := self._calls[0].result) is not None:
            self._calls.popleft().on_done(result())


def _result_of(work: Callable[[], _Result]) -> Callable[[], _Result]:
    try:
        value = work()
    except Exception as error:  # noqa: BLE001 (the thread's outermost frame; raised in the loop)
        failed = error

        def fail() -> _Result:
            raise failed

        return fail
    return lambda: value
