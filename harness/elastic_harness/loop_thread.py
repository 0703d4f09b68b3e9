"""An event loop in a thread of its own, and how the rest of a program talks to it.

A harness must answer at once (a held rank waits, a probe waits to be greeted), whatever the test is
doing. So clusters, observers and runs live in one background thread of the pytest process, and the
test's own thread hands them work and waits for results, each wait with a deadline.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from elastic_harness.future import Future, settled
from pytest_elastic.errors import ElasticError, InternalError
from pytest_elastic.loop import Loop

__all__ = ["LoopThread"]

T = TypeVar("T")

# Work handed to the loop returns at once; this is for a loop that is stuck in a bug of ours.
_CALL_TIMEOUT_S = 60.0
_JOIN_TIMEOUT_S = 10.0
_SLICE_S = 0.5


class LoopThread:
    """Owns a thread that runs a `Loop`, from `start` until `stop`."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.loop.enable_thread_wakeup()
        self._thread = threading.Thread(target=self._run, name="elastic-loop", daemon=True)
        self._failure: BaseException | None = None
        self._has_ended = threading.Event()

    @property
    def native_id(self) -> int | None:
        """The thread's number in the kernel; None before it was started."""
        return self._thread.native_id

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def call(self, work: Callable[[], T]) -> T:
        """Run `work` in the loop's thread and return what it returns, or raise what it raises."""
        return self.wait(lambda: settled(work()), timeout_s=_CALL_TIMEOUT_S)

    def wait(self, begin: Callable[[], Future[T]], *, timeout_s: float) -> T:
        """Run `begin` in the loop's thread, wait for its future, and return its value.

        Raises TimeoutError after `timeout_s`, what `begin` raises, the future's error, and (once)
        an ElasticError that was raised in the loop, or InternalError when something there crashed.
        """
        has_come = threading.Event()
        futures: list[Future[T]] = []
        crashes: list[BaseException] = []

        def work() -> None:
            try:
                futures.append(begin())
                futures[0].add_done_callback(lambda _: has_come.set())
            except BaseException as error:  # noqa: BLE001 (handed to the thread that waits)
                crashes.append(error)
                has_come.set()

        self._check()
        self.loop.call_from_thread(work)
        waited_s = 0.0
        # Short waits, so that Ctrl-C and the end of the loop are noticed.
        while not has_come.wait(slice_s := min(_SLICE_S, timeout_s - waited_s)):
            waited_s += slice_s
            self._check()
            if waited_s >= timeout_s:
                raise TimeoutError(f"no answer from the harness within {timeout_s:g} s")
        if crashes:
            raise crashes[0]
        return futures[0].result()

    def stop(self) -> None:
        """End the loop and its thread; harmless twice."""
        if self._thread.is_alive():
            self.loop.call_from_thread(self.loop.stop)
            self._thread.join(_JOIN_TIMEOUT_S)
        self.loop.close()

    def _run(self) -> None:
        """Run the loop to its end; a callback that crashes is an error of those that wait.

        The loop goes on, because what is still to be undone can only be undone there.
        """
        is_over = False
        while not is_over:
            try:
                self.loop.run()
                is_over = True
            except Exception as error:  # noqa: BLE001 (outermost: see above)
                self._failure = self._failure or error
        self._has_ended.set()

    def _check(self) -> None:
        failure, self._failure = self._failure, None
        if isinstance(failure, ElasticError):
            raise failure
        if failure is not None:
            raise InternalError(f"the harness crashed: {failure!r}") from failure
        if self._has_ended.is_set():
            raise InternalError("the harness's loop has been stopped")
