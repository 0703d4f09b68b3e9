"""The stream between pytest and an agent, over connections that break."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from elastic_harness.cluster.machines import link
from elastic_harness.cluster.machines.link import ClockEstimate, Dialler, Link, Switchboard
from hypothesis import given
from hypothesis import strategies as st

from pytest_elastic.agent_channel import AgentChannel
from pytest_elastic.credentials import Credentials
from pytest_elastic.loop import Loop

OURS = Credentials.of_job(b"a token of sixteen bytes", "machines")
OTHERS = Credentials.of_job(b"another of sixteen bytes", "machines")
LIMIT_S = 30.0


class Ends:
    """Both ends of a stream, in one loop."""

    def __init__(self, *, credentials: Credentials = OURS, lease_s: float = 60.0) -> None:
        self.loop = Loop()
        listener = socket.create_server(("127.0.0.1", 0))
        self.board = Switchboard(self.loop, listener, credentials=OURS, lease_s=lease_s)
        self.calls: list[str] = []
        self.at_pytest: list[Any] = []
        self.at_agent: list[Any] = []
        self.ends: list[str] = []
        self.lost: list[str] = []
        self.far = self.board.expect(1, lambda: self.calls.append("called")).open(
            lambda message, _: self.at_pytest.append(message), self.lost.append
        )
        self.dialler = Dialler(
            self.loop,
            machine=1,
            addresses=[("127.0.0.1", self.board.port)],
            credentials=credentials,
            lease_s=lease_s,
            on_ready=lambda: self.calls.append("ready"),
            on_end=self.ends.append,
        )
        self.near: Link = self.dialler.link.open(
            lambda message, _: self.at_agent.append(message), lambda _: None
        )

    def until(self, is_so: Callable[[], object]) -> None:
        deadline = self.loop.now() + LIMIT_S
        while not is_so():
            assert self.loop.now() < deadline, (self.calls, self.ends, self.lost)
            self.loop.run_once(0.05)

    def wait_until_connected_anew(self, broken: set[AgentChannel | None]) -> None:
        self.until(lambda: not {self.near.channel, self.far.channel} & broken)

    def close(self) -> None:
        self.dialler.close()
        self.board.close()
        self.loop.close()


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ends]:
    """Both ends, which have not met yet; they dial again, and give up, ten times sooner here."""
    for limit in ("BEAT_S", "_REDIAL_LIMIT_S"):
        monkeypatch.setattr(link, limit, getattr(link, limit) / 10)
    made = Ends()
    yield made
    made.close()


def test_each_message_arrives_once_and_in_order_whatever_connections_break(ends: Ends) -> None:
    """Connections are cut from either side while messages are on their way in both directions."""
    ends.until(lambda: len(ends.calls) == 2)
    for turn in range(4):
        for number in range(50):
            ends.near.send({"number": 50 * turn + number})
            ends.far.send({"number": 50 * turn + number})
        broken = {ends.near.channel, ends.far.channel, None}
        channel = (ends.near, ends.far)[turn % 2].channel
        assert channel is not None
        # Neither side has been told: what is in the sockets' buffers is lost.
        channel.socket.shutdown(socket.SHUT_RDWR)
        ends.wait_until_connected_anew(broken)
    expected = [{"number": number} for number in range(200)]
    ends.until(lambda: len(ends.at_pytest) >= 200 and len(ends.at_agent) >= 200)
    assert ends.at_pytest == expected
    assert ends.at_agent == expected
    assert not ends.lost


def test_whoever_has_another_token_is_turned_away() -> None:
    """Its messages are not read, and it is told why at once."""
    ends = Ends(credentials=OTHERS)
    ends.until(lambda: ends.ends)
    assert "will not talk" in ends.ends[0]
    assert ends.calls == []
    ends.close()


def test_an_agent_ends_once_nobody_listens_where_pytest_was(ends: Ends) -> None:
    """A port that refuses says that pytest is gone: no lease has to pass."""
    ends.until(lambda: len(ends.calls) == 2)
    ends.board.close()
    ends.until(lambda: ends.ends)
    assert "pytest is gone" in ends.ends[0]


def test_a_machine_whose_agent_hangs_up_for_good_is_lost(ends: Ends) -> None:
    """An agent dials again within seconds, unless it has ended."""
    ends.until(lambda: len(ends.calls) == 2)
    ends.dialler.close()
    ends.until(lambda: ends.lost)
    assert ends.lost == ["its agent has ended"]


@given(
    offset=st.floats(-1e6, 1e6),
    trips=st.lists(st.tuples(st.floats(0, 2), st.floats(0, 2), st.floats(0, 60)), min_size=1),
)
def test_the_offset_of_a_clock_errs_by_its_bound_at_most(
    offset: float, trips: list[tuple[float, float, float]]
) -> None:
    """However long each way took, and however old the best sample is."""
    estimate = ClockEstimate()
    now = 0.0
    for there_s, back_s, pause_s in trips:
        sent_at = now
        now = sent_at + there_s + back_s
        estimate.learn(sent_at, sent_at + there_s + offset, now)
        now += pause_s
        assert abs(estimate.offset_s - offset) <= estimate.error_s(now) + 1e-6
