"""One event loop over file descriptors and timers, in one thread.

Every long-lived process of ours (agent, keeper, cluster server, runner) is one of these loops. It
polls nothing: without a descriptor that is ready or a timer that is due, it sleeps. asyncio was
tried and left: its import costs 45 ms in a command that should answer in 150, its clock is not
CLOCK_BOOTTIME, and it starts threads to resolve names, after which a process must not fork.

Callbacks run to the end, in the order: due timers by time, then ready descriptors, those of low
priority last and only a few of them a turn, then `call_soon` callbacks in the order given. An
exception raised by a callback leaves `run`.
"""

from __future__ import annotations

import heapq
import itertools
import os
import select
import threading
from collections import deque
from collections.abc import Callable, Sequence

from pytest_elastic.clock import BootClock, Clock

__all__ = ["Loop", "Timer"]

# Timers are late by at most this much (epoll counts in milliseconds) and never early.
_MAX_WAIT_S = 3600.0
# What strangers ask in one turn delays the members' beats: hence not more. With fewer, a crowd of
# honest newcomers would wait for more turns.
_LOW_PRIORITY_A_TURN = 32
# Cancelled timers stay in the heap until they would be due, or until half of a heap is of them.
_MIN_TIMERS_TO_SWEEP = 64


class Timer:
    """A callback that will run once at a time; `cancel` is harmless at any moment."""

    __slots__ = ("_callback", "when")

    def __init__(self, when: float, callback: Callable[[], None]) -> None:
        self.when = when
        self._callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Make sure that the callback does not run any more."""
        self._callback = None

    @property
    def is_cancelled(self) -> bool:
        """Tell whether the callback was cancelled or has run."""
        return self._callback is None

    def fire(self) -> None:
        """Run the callback now, unless it was cancelled or has run."""
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()


class _Watch:
    """What is watched on a descriptor, from its first `watch` to `unwatch`.

    The kernel gives the number of a closed descriptor to the next one that is opened: an event that
    is dealt with later in the same turn belongs to this, and not to the number.
    """

    __slots__ = ("epoll", "on_readable", "on_writable")

    def __init__(self, epoll: select.epoll) -> None:
        self.epoll = epoll
        self.on_readable: Callable[[], None] | None = None
        self.on_writable: Callable[[], None] | None = None


class Loop:
    """A single-threaded event loop; construct it in the process (after the fork) that runs it."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or BootClock()
        self._epoll = select.epoll()
        self._low_priority: select.epoll | None = None  # watched by the other one
        self._is_low_priority_ready = False
        self._watched: dict[int, _Watch] = {}
        self._timers: list[tuple[float, int, Timer]] = []
        self._sweep_timers_at = _MIN_TIMERS_TO_SWEEP
        self._soon: deque[Callable[[], None]] = deque()
        self._order = itertools.count()
        self._stopping = False
        self._wakeup: int | None = None
        self._wakeup_lock = threading.Lock()
        self._is_closed = False
        self._from_threads: deque[Callable[[], None]] = deque()

    @property
    def own_fds(self) -> frozenset[int]:
        """The descriptors that the loop itself holds."""
        own = {self._epoll.fileno()}
        if self._wakeup is not None:
            own.add(self._wakeup)
        if self._low_priority is not None:
            own.add(self._low_priority.fileno())
        return frozenset(own)

    def now(self) -> float:
        """Return the loop's clock, in seconds."""
        return self._clock.now()

    def watch(
        self,
        fd: int,
        *,
        on_readable: Callable[[], None] | None = None,
        on_writable: Callable[[], None] | None = None,
        low_priority: bool = False,
    ) -> None:
        """Call back whenever `fd` is ready; replaces what was watched on `fd` before.

        With `low_priority` it is served after all others, and in turn with its like. A descriptor
        with an error or a hang-up counts as ready for whatever is watched.
        """
        events = (select.EPOLLIN if on_readable else 0) | (select.EPOLLOUT if on_writable else 0)
        if not events:
            self.unwatch(fd)
            return
        epoll = self._epoll_of_low_priority() if low_priority else self._epoll
        watch = self._watched.get(fd)
        if watch is not None and watch.epoll is epoll:
            epoll.modify(fd, events)
        else:
            if watch is not None:
                watch.epoll.unregister(fd)
            epoll.register(fd, events)
            watch = self._watched.setdefault(fd, _Watch(epoll))
            watch.epoll = epoll
        watch.on_readable = on_readable
        watch.on_writable = on_writable

    def unwatch(self, fd: int) -> None:
        """Forget `fd`; call it before closing the descriptor. Harmless when it is not watched."""
        if (watch := self._watched.pop(fd, None)) is not None:
            watch.on_readable = watch.on_writable = None
            watch.epoll.unregister(fd)

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        """Call back once at `when` (seconds on this loop's clock), at once if that has passed."""
        timer = Timer(when, callback)
        if len(self._timers) >= self._sweep_timers_at:
            self._timers = [entry for entry in self._timers if not entry[2].is_cancelled]
            heapq.heapify(self._timers)
            self._sweep_timers_at = max(_MIN_TIMERS_TO_SWEEP, 2 * len(self._timers))
        heapq.heappush(self._timers, (when, next(self._order), timer))
        return timer

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call back once, after the callbacks that are due now."""
        self._soon.append(callback)

    def enable_thread_wakeup(self) -> None:
        """Let other threads use `call_from_thread` from now on; call it before they start."""
        if self._wakeup is None:
            self._wakeup = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            self.watch(self._wakeup, on_readable=self._on_wakeup)

    def call_from_thread(self, callback: Callable[[], None]) -> None:
        """Call back once in the loop's thread; the only method that another thread may use.

        Harmless when the loop is closed: a thread that waited for a file may come late.
        """
        with self._wakeup_lock:
            if self._is_closed:
                return
            assert self._wakeup is not None, "the loop's thread calls enable_thread_wakeup first"
            self._from_threads.append(callback)
            os.eventfd_write(self._wakeup, 1)

    def run(self) -> None:
        """Serve until `stop` is called."""
        self._stopping = False
        while not self._stopping:
            self.run_once(None)

    def stop(self) -> None:
        """Make `run` return once the current callback has ended."""
        self._stopping = True

    def run_once(self, timeout_s: float | None) -> None:
        """Wait at most `timeout_s` for something to happen, and serve what is ready then."""
        wait_s = self._wait_s(timeout_s)
        try:
            ready = [(self._watched[fd], events) for fd, events in self._epoll.poll(wait_s)]
        except InterruptedError:
            ready = []
        self._run_due_timers()
        self._serve(ready)
        if self._is_low_priority_ready and self._low_priority is not None:
            self._is_low_priority_ready = False
            # The kernel puts those that it names behind the others that are ready.
            few = self._low_priority.poll(0, _LOW_PRIORITY_A_TURN)
            self._serve([(self._watched[fd], events) for fd, events in few])
        for _ in range(len(self._soon)):
            if self._stopping:
                return
            self._soon.popleft()()

    def close(self) -> None:
        """Release the loop's own descriptors; descriptors it watched stay open."""
        self._epoll.close()
        if self._low_priority is not None:
            self._low_priority.close()
        with self._wakeup_lock:
            self._is_closed = True
            if self._wakeup is not None:
                os.close(self._wakeup)
                self._wakeup = None

    def _serve(self, ready: Sequence[tuple[_Watch, int]]) -> None:
        for watch, events in ready:
            if self._stopping:
                return
            if events & ~select.EPOLLOUT and watch.on_readable:
                watch.on_readable()
            if events & ~select.EPOLLIN and watch.on_writable:
                watch.on_writable()

    def _epoll_of_low_priority(self) -> select.epoll:
        if self._low_priority is None:
            self._low_priority = select.epoll()
            self.watch(self._low_priority.fileno(), on_readable=self._note_low_priority)
        return self._low_priority

    def _note_low_priority(self) -> None:
        self._is_low_priority_ready = True

    def _on_wakeup(self) -> None:
        assert self._wakeup is not None, "only an enabled wakeup is watched"
        os.eventfd_read(self._wakeup)
        while self._from_threads:
            self._from_threads.popleft()()

    def _wait_s(self, timeout_s: float | None) -> float:
        while self._timers and self._timers[0][2].is_cancelled:
            heapq.heappop(self._timers)
        wait_s = _MAX_WAIT_S if timeout_s is None else max(timeout_s, 0.0)
        if self._soon:
            return 0.0
        if self._timers:
            wait_s = min(wait_s, max(self._timers[0][0] - self.now(), 0.0))
        return wait_s

    def _run_due_timers(self) -> None:
        now = self.now()
        while self._timers and self._timers[0][0] <= now and not self._stopping:
            heapq.heappop(self._timers)[2].fire()
