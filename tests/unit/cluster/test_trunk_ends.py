"""Where the trunks of a machine begin: strangers that find the port are in nobody's way."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator

import pytest
from elastic_harness.cluster.cluster import ClusterError
from elastic_harness.cluster.machines.trunk_ends import TrunkEnds
from elastic_harness.future import run, wait_for

from pytest_elastic.credentials import Credentials
from pytest_elastic.frames import STRANGERS_FRAME_BYTES
from pytest_elastic.loop import Loop

LIMIT_S = 20.0


class Ends:
    """The ends of two machines, and strangers of the first."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self.loop = Loop()
        self._stack = stack
        tokens = {1: b"token", 2: b"token", 3: b"another"}
        self.of = {
            number: TrunkEnds(self.loop, number, "127.0.0.1", Credentials.of_job(token, "machines"))
            for number, token in tokens.items()
        }
        stack.callback(self.loop.close)
        for each in self.of.values():
            stack.callback(each.close)

    def stranger(self) -> socket.socket:
        """Connect to the first machine's port, and say nothing yet."""
        address = ("127.0.0.1", self.of[1].port)
        made = self._stack.enter_context(socket.create_connection(address))
        self.loop.run_once(LIMIT_S)
        return made

    def dial(self, number: int) -> None:
        """Have a machine dial the first."""
        dialled = run(self.loop, self.of[number].dial(1, "127.0.0.1", self.of[1].port))
        wait_for(self.loop, dialled, within_s=LIMIT_S)


@pytest.fixture
def ends() -> Iterator[Ends]:
    """Lend the ends."""
    with contextlib.ExitStack() as stack:
        yield Ends(stack)


def test_both_sides_have_an_end_once_one_has_dialled(ends: Ends) -> None:
    """Each by the number of the other; what one sends over it, the other receives."""
    ends.dial(2)
    (theirs,), (ours,) = ends.of[1].take().items(), ends.of[2].take().items()
    assert (theirs[0], ours[0]) == (2, 1)
    assert theirs[1].cookie == ours[1].cookie != ""
    with theirs[1].socket as far, ours[1].socket as near:
        near.sendall(b"frame")
        far.settimeout(LIMIT_S)
        assert far.recv(100) == b"frame"


def test_who_has_another_token_gets_no_end(ends: Ends) -> None:
    """That is said where it was asked for."""
    with pytest.raises(ClusterError, match=r"cannot connect to 127\.0\.0\.1:"):
        ends.dial(3)
    assert (ends.of[1].take(), ends.of[3].take()) == ({}, {})


def test_strangers_that_stay_are_in_nobodys_way(ends: Ends) -> None:
    """However many they are."""
    strangers = [ends.stranger() for _ in range(300)]
    ends.dial(2)
    assert list(ends.of[1].take()) == [2]
    assert strangers


def test_a_stranger_that_sends_much_is_hung_up_on(ends: Ends) -> None:
    """Before any of it is kept: it has not said who it is."""
    stranger = ends.stranger()
    stranger.sendall(struct.pack(">I", STRANGERS_FRAME_BYTES + 1))
    ends.loop.run_once(LIMIT_S)
    stranger.settimeout(LIMIT_S)
    while stranger.recv(1000):  # what the other side had said
        pass
