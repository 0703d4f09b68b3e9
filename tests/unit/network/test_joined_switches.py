"""Two switches and a trunk that the test holds up: what an order means for packets in the trunk."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import pytest
from elastic_harness.conversation import Answer, Conversation
from elastic_harness.future import Future
from elastic_harness.network import packets
from elastic_harness.network.link_model import LinkPolicy
from elastic_harness.network.switch import Switch
from elastic_harness.network.trunk import STALL_S

from pytest_elastic.loop import Loop
from tests.unit.network.test_switch import TurnedClock

_HEADER = bytes((0x45, 0, 0, 29, 0, 0, 0, 0, 64, 17, 0, 0, 10, 77, 0, 1, 10, 77, 0, 2))
_FRAME = packets.frame_of(_HEADER + bytes(9))
CUT = {
    "pairs": [["n1", "n2"]],
    "layers": [["", msgspec.to_builtins(LinkPolicy(up=False))]],
    "traffic": None,
}


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    return ours, theirs


class Side:
    """The switch of machine 1 or 2, with its node: n1 or n2."""

    def __init__(self, clock: TurnedClock, number: int) -> None:
        self.loop = Loop(clock)
        ours, theirs = socket.socketpair()
        self._switch = Switch(self.loop, theirs)
        self._control = Conversation(self.loop, ours, on_closed=lambda _: None)
        self.node, device = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.node.setblocking(False)
        self.wire, trunk = tcp_pair()
        self.wire.setblocking(False)
        self.wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        far = 3 - number
        with device, trunk:
            self.order("attach", {"name": f"n{number}", "octet": number}, [device.fileno()])
            self.order("add_trunk", {"machine": far, "cookie": ""}, [trunk.fileno()])
            self.turn()
        self.order("attach_remote", {"name": f"n{far}", "octet": far, "machine": far})
        self.turn()

    def close(self) -> None:
        """Close everything."""
        self._control.close()
        self._switch.close()
        self.node.close()
        self.wire.close()
        self.loop.close()

    def order(
        self, op: str, fields: Mapping[str, object], fds: Sequence[int] = ()
    ) -> Future[Answer]:
        """Give the switch an order."""
        return self._control.call(op, fields, fds=fds, timeout_s=1e6)

    def turn(self) -> None:
        """Have the switch do all that there is to do now."""
        for _ in range(5):
            self.loop.run_once(0)


class Joined:
    """Both sides; what is in the trunk stays there until `pass_on`."""

    def __init__(self) -> None:
        self.clock = TurnedClock()
        self.sides = [Side(self.clock, number) for number in (1, 2)]

    def close(self) -> None:
        """Close everything."""
        for side in self.sides:
            side.close()

    def turn(self, after_s: float = 0.0) -> None:
        """Have both switches do all that there is to do now."""
        self.clock.at += after_s
        for side in self.sides:
            side.turn()

    def pass_on(self) -> None:
        """Bring what is in the trunk to its other end, in both directions, until nothing is."""
        is_moving = True
        while is_moving:
            is_moving = False
            for near, far in (self.sides, self.sides[::-1]):
                try:
                    data = near.wire.recv(1 << 20)
                except BlockingIOError:
                    continue
                far.wire.sendall(data)
                is_moving = True
            self.turn()

    def arrived(self) -> int:
        """Return how many packets have come to n2."""
        count = 0
        while True:
            try:
                count += bool(self.sides[1].node.recv(4096))
            except BlockingIOError:
                return count

    def begin(self, op: str, fields: Mapping[str, object]) -> Future[Answer]:
        """Give the first switch an order that is not carried out at once."""
        done = self.sides[0].order(op, fields)
        self.turn()
        assert not done.is_done
        return done

    def send(self) -> None:
        """Send a packet from n1 to n2, as far as into the trunk."""
        self.sides[0].node.send(_FRAME)
        self.turn()


@pytest.fixture
def joined() -> Iterator[Joined]:
    """Lend two switches."""
    made = Joined()
    yield made
    made.close()


ORDERS = pytest.mark.parametrize(
    ("op", "fields"),
    [
        ("lay", CUT),
        ("darken", {"name": "n1"}),
        ("detach", {"name": "n1"}),
        ("counters", {}),
        ("reset", {"seed": ""}),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)


@ORDERS
def test_an_order_is_carried_out_when_nothing_from_before_is_in_a_trunk(
    joined: Joined, op: str, fields: Mapping[str, object]
) -> None:
    """Once it is acknowledged, what arrives was sent afterwards."""
    joined.send()
    done = joined.begin(op, fields)
    joined.pass_on()
    assert done.is_done
    assert joined.arrived() == 1
    counted = joined.sides[0].order("counters", {})
    joined.turn()  # an idle trunk need not be asked
    assert counted.result().fields["own"] == {}


def test_an_answer_to_an_earlier_question_does_not_count(joined: Joined) -> None:
    """It says nothing of what was sent after the question."""
    near, far = joined.sides
    joined.send()
    first = near.wire.recv(1 << 20)
    joined.send()
    done = joined.begin("lay", CUT)
    second = near.wire.recv(1 << 20)
    far.wire.sendall(first)
    joined.turn()
    near.wire.sendall(far.wire.recv(1 << 20))
    joined.turn()
    assert (done.is_done, joined.arrived()) == (False, 1)
    far.wire.sendall(second)
    joined.pass_on()
    assert (done.is_done, joined.arrived()) == (True, 1)


def test_a_policy_comes_into_force_at_the_moment_that_was_asked_for(joined: Joined) -> None:
    """In the order in which they were given; a reset takes back what is still to come."""
    near, whole = joined.sides[0], {**CUT, "layers": []}
    at = joined.clock.at + 1.0
    cut = joined.begin("lay", {**CUT, "at": at})
    joined.send()
    joined.pass_on()
    assert (joined.arrived(), cut.is_done) == (1, False)
    healed = joined.begin("lay", whole)
    joined.turn(after_s=0.9)
    assert (cut.is_done, healed.is_done) == (False, False)
    joined.turn(after_s=0.2)
    joined.pass_on()
    for done in (cut, healed):
        assert done.result().fields["at"] >= at
    joined.send()
    joined.pass_on()
    assert joined.arrived() == 1, "the heal came last, as it was ordered"
    late = near.order("lay", {**CUT, "at": joined.clock.at + 1.0})
    joined.turn()
    near.order("reset", {"seed": ""})
    joined.turn()
    assert late.error is not None
    assert "reset before that came into force" in late.error.message


@ORDERS
def test_an_order_does_not_wait_for_a_trunk_that_stalls(
    joined: Joined, op: str, fields: Mapping[str, object]
) -> None:
    """The run is unknown in any case; a reset closes the trunk, as what is in it is of no use."""
    joined.send()
    done = joined.begin(op, fields)
    for _ in range(3):
        joined.turn(after_s=0.4 * STALL_S)
    assert done.is_done
    again = joined.sides[0].order("counters", {})
    trunks = joined.sides[0].order("trunks", {})
    joined.turn()
    is_reset = op == "reset"
    assert again.result().fields["own"] == ({} if is_reset else {"trunk": 1})
    assert trunks.result().fields["machines"] == ([] if is_reset else [2])


def test_a_reset_closes_a_trunk_that_died_while_it_was_idle(joined: Joined) -> None:
    """A firewall forgets connections: the first packet of the next run would be lost in it."""
    near = joined.sides[0]
    done = joined.begin("reset", {"seed": ""})
    for _ in range(3):
        joined.turn(after_s=0.4 * STALL_S)
    assert done.is_done
    trunks, counted = near.order("trunks", {}), near.order("counters", {})
    joined.turn()
    assert trunks.result().fields["machines"] == []
    assert counted.result().fields["own"] == {}


def test_an_order_does_not_wait_for_a_trunk_that_is_lost(joined: Joined) -> None:
    """Nothing more will arrive."""
    joined.send()
    done = joined.begin("darken", {"name": "n1"})
    joined.sides[0].wire.close()
    joined.turn()
    assert done.is_done


def test_the_switch_of_a_node_alone_takes_it_off_the_network(joined: Joined) -> None:
    """A power cut is one moment for all: nothing comes from a dark node, and nothing to it."""
    near, far = joined.sides
    near.order("darken", {"name": "n1"})
    joined.turn()
    joined.send()
    far.node.send(packets.frame_of(_HEADER[:12] + _HEADER[16:] + _HEADER[12:16] + bytes(9)))
    joined.turn()
    joined.pass_on()
    assert joined.arrived() == 0
    with pytest.raises(BlockingIOError):
        near.node.recv(4096)
