"""A trunk on a clock that the test turns: what it carries, and what it counts as the harness's."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator

import pytest
from elastic_harness.network.trunk import STALL_S, Trunk

from pytest_elastic.loop import Loop
from tests.unit.network.test_switch import TurnedClock

LARGE = bytes(range(256)) * 256


class Ends:
    """Two trunks that are each other's other side, each served by a loop of its own."""

    def __init__(self) -> None:
        self.clock = TurnedClock()
        self.loops = [Loop(self.clock), Loop(self.clock)]
        with socket.create_server(("127.0.0.1", 0)) as listener:
            ours = socket.create_connection(listener.getsockname())
            theirs, _ = listener.accept()
        self.arrived: list[bytes] = []
        self.near = Trunk(self.loops[0], ours, on_frame=lambda _: None)
        self.far = Trunk(
            self.loops[1], theirs, on_frame=lambda view: self.arrived.append(bytes(view))
        )

    def _keep(self, frame: memoryview) -> None:
        self.arrived.append(bytes(frame))

    def close(self) -> None:
        """Close everything."""
        for end, loop in zip((self.near, self.far), self.loops, strict=True):
            end.close()
            loop.close()

    def serve(self, *, far: bool = True, after_s: float = 0.0) -> None:
        """Serve what is there now, on both sides or on ours alone."""
        self.clock.at += after_s
        for _ in range(20):
            self.loops[0].run_once(0.0)
            if far:
                self.loops[1].run_once(0.0)

    def serve_until_arrived(self, count: int) -> None:
        """Serve both sides until so many frames are there."""
        for _ in range(100_000):
            if len(self.arrived) == count:
                return
            self.serve()
        raise AssertionError(f"only {len(self.arrived)} of {count} frames arrived")


@pytest.fixture
def ends() -> Iterator[Ends]:
    """Both ends of a trunk."""
    made = Ends()
    yield made
    made.close()


def test_frames_arrive_whole_and_in_order(ends: Ends) -> None:
    """Also those that had to be queued, as the other side did not read."""
    frames = [bytes((number,)) * 40 + LARGE[: number * 300] for number in range(200)] + [
        LARGE
    ] * 300
    for frame in frames:
        ends.near.put(memoryview(frame))
    ends.serve_until_arrived(len(frames))
    assert ends.arrived == frames
    assert ends.near.stalls == ends.far.stalls == 0


def test_an_answer_that_takes_too_long_is_a_stall(ends: Ends) -> None:
    """Counted once each; a trunk that is answered at once, or has nothing to carry, has none."""
    ends.near.put(LARGE)
    ends.serve()
    ends.serve(far=False, after_s=10 * STALL_S)
    assert ends.near.stalls == 0
    ends.near.put(LARGE)
    for _ in range(5):
        ends.serve(far=False, after_s=STALL_S)
    assert ends.near.stalls == 1
    ends.serve()
    ends.near.put(LARGE)
    ends.serve(far=False, after_s=0.9 * STALL_S)
    ends.serve()
    assert ends.near.stalls == 1


def test_a_reset_closes_a_trunk_that_is_stalled(ends: Ends) -> None:
    """The next run gets another one, or is told that there is none; one that is well stays."""
    ends.near.put(LARGE)
    ends.serve()
    ends.near.reset()
    assert ends.near.is_alive
    ends.near.put(LARGE)
    ends.serve(far=False, after_s=0.2)
    ends.serve(far=False, after_s=2 * STALL_S)
    assert ends.near.stalls == 1
    ends.near.reset()
    assert (ends.near.is_alive, ends.near.stalls) == (False, 0)


def put_many(trunk: Trunk) -> None:
    """Put more into a trunk than the kernel keeps, and then more frames than it queues itself."""
    for number in range(10_000):
        trunk.put(LARGE if number < 200 else LARGE[:40])


def test_a_queue_that_is_full_refuses_frames(ends: Ends) -> None:
    """The switch that would send more counts it."""
    with pytest.raises(OSError, match="queue is full") as refused:
        put_many(ends.near)
    assert refused.value.errno == errno.ENOBUFS


def test_a_lost_trunk_is_a_stall_and_refuses_frames(ends: Ends) -> None:
    """What was on its way is lost."""
    ends.near.put(LARGE)
    ends.far.close()
    ends.serve()
    assert (ends.near.is_alive, ends.near.stalls) == (False, 1)
    with pytest.raises(OSError, match="lost") as refused:
        ends.near.put(LARGE)
    assert refused.value.errno == errno.ENOTCONN
