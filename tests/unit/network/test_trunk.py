"""A trunk on a clock that the test turns: what it carries, and what it counts as the harness's."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator

import pytest
from elastic_harness.network.trunk import (
    DATAGRAM_MTU,
    STALL_S,
    DatagramTrunk,
    StreamTrunk,
    Trunk,
    trunk_over,
)

from pytest_elastic.loop import Loop
from tests.unit.network.test_joined_switches import tcp_pair
from tests.unit.network.test_switch import TurnedClock

COOKIE = b"eight of"
LARGE = bytes(range(256)) * 256


def udp_pair() -> tuple[socket.socket, socket.socket]:
    """Return two sockets for datagrams to each other."""
    ours, theirs = (socket.socket(type=socket.SOCK_DGRAM) for _ in range(2))
    for each in (ours, theirs):
        each.bind(("127.0.0.1", 0))
    ours.connect(theirs.getsockname())
    theirs.connect(ours.getsockname())
    return ours, theirs


class Ends:
    """Two trunks that are each other's other side, each served by a loop of its own."""

    def __init__(self, kind: type[Trunk]) -> None:
        self.clock = TurnedClock()
        self.loops = [Loop(self.clock), Loop(self.clock)]
        ours, theirs = tcp_pair() if kind is StreamTrunk else udp_pair()
        self.large = LARGE if kind is StreamTrunk else LARGE[:DATAGRAM_MTU]
        self.arrived: list[bytes] = []
        self.near = trunk_over(self.loops[0], ours, COOKIE, on_frame=lambda _: None)
        self.far = trunk_over(
            self.loops[1], theirs, COOKIE, on_frame=lambda view: self.arrived.append(bytes(view))
        )
        assert isinstance(self.near, kind)

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


@pytest.fixture(params=[StreamTrunk, DatagramTrunk])
def ends(request: pytest.FixtureRequest) -> Iterator[Ends]:
    """Both ends of a trunk of each kind."""
    made = Ends(request.param)
    yield made
    made.close()


def test_frames_arrive_whole_and_in_order(ends: Ends) -> None:
    """Also those that had to be queued, as the other side did not read."""
    some = [bytes((number,)) * 40 + ends.large[: number * 300] for number in range(200)]
    frames = some + [ends.large] * 300
    for frame in frames:
        ends.near.put(memoryview(frame[: len(ends.large)]))
    frames = [frame[: len(ends.large)] for frame in frames]
    ends.serve_until_arrived(len(frames))
    assert ends.arrived == frames
    assert ends.near.failures == ends.far.failures == 0


def test_an_answer_that_takes_too_long_is_a_stall(ends: Ends) -> None:
    """Counted once each; a trunk that is answered at once, or has nothing to carry, has none."""
    ends.near.put(ends.large)
    ends.serve()
    ends.serve(far=False, after_s=10 * STALL_S)
    assert ends.near.failures == 0
    ends.near.put(ends.large)
    for _ in range(5):
        ends.serve(far=False, after_s=STALL_S)
    assert ends.near.failures == 1
    ends.serve()
    ends.near.put(ends.large)
    ends.serve(far=False, after_s=0.9 * STALL_S)
    ends.serve()
    assert ends.near.failures == 1


def test_a_reset_closes_a_trunk_that_is_stalled(ends: Ends) -> None:
    """The next run gets another one, or is told that there is none; one that is well stays."""
    ends.near.put(ends.large)
    ends.serve()
    ends.near.reset()
    assert ends.near.is_alive
    ends.near.put(ends.large)
    ends.serve(far=False, after_s=0.2)
    ends.serve(far=False, after_s=2 * STALL_S)
    assert ends.near.failures == 1
    ends.near.reset()
    assert (ends.near.is_alive, ends.near.failures) == (False, 0)


def put_many(trunk: Trunk) -> None:
    """Put more into a trunk than the kernel keeps, and then more frames than it queues itself."""
    for number in range(10_000):
        trunk.put(LARGE if number < 200 else LARGE[:40])


@pytest.mark.parametrize("ends", [StreamTrunk], indirect=True)
def test_a_queue_that_is_full_refuses_frames(ends: Ends) -> None:
    """The switch that would send more counts it; datagrams are lost on the way instead."""
    with pytest.raises(OSError, match="queue is full") as refused:
        put_many(ends.near)
    assert refused.value.errno == errno.ENOBUFS


def test_a_lost_trunk_is_a_stall_and_refuses_frames(ends: Ends) -> None:
    """What was on its way is lost."""
    ends.near.put(ends.large)
    ends.far.close()
    for _ in range(2):  # of datagrams the next one says so
        ends.serve(after_s=0.15)
    assert (ends.near.is_alive, ends.near.failures) == (False, 1)
    with pytest.raises(OSError, match="lost") as refused:
        ends.near.put(ends.large)
    assert refused.value.errno == errno.ENOTCONN


@pytest.mark.parametrize("ends", [DatagramTrunk], indirect=True)
def test_datagrams_that_were_lost_are_counted(ends: Ends) -> None:
    """Once each, until the next reset; what came is counted as nothing."""
    for _ in range(20_000):
        ends.near.put(ends.large)  # more than the kernel keeps for whom nobody reads
    ends.serve()
    flushed = ends.near.flush()
    while not flushed.is_done:
        ends.serve(after_s=0.001)
    lost = 20_000 - len(ends.arrived)
    assert ends.near.failures == lost > 0
    ends.near.reset()
    ends.near.put(ends.large)
    ends.serve(after_s=0.2)
    ends.serve(after_s=0.2)
    assert (ends.near.failures, ends.near.is_alive) == (0, True)


def test_a_question_that_was_lost_is_asked_again() -> None:
    """A single datagram that is lost is no stall; one without the cookie is none of the trunk's."""
    clock = TurnedClock()
    loop = Loop(clock)
    ours, theirs = udp_pair()
    theirs.settimeout(20.0)
    trunk = trunk_over(loop, ours, COOKIE, on_frame=lambda _: None)
    flushed = trunk.flush(asks_idle=True)
    question = theirs.recv(100)
    for _ in range(2):
        clock.at += 0.15
        loop.run_once(0.0)
    assert theirs.recv(100) == question
    for forged in (b"", b"\xff", COOKIE, b"forged" + COOKIE, b"\x02" + question[9:] + bytes(8)):
        theirs.send(forged)  # the last one without the cookie: it would be the answer
    loop.run_once(0.1)
    assert (trunk.is_alive, flushed.is_done) == (True, False)
    theirs.send(COOKIE + b"\x02" + question[9:] + bytes(8))
    while not flushed.is_done:
        loop.run_once(0.1)
    assert (trunk.failures, trunk.is_alive) == (0, True)
    trunk.close()
    theirs.close()
    loop.close()
