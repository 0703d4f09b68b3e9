"""The switch on a clock that the test turns: packets of a flow stay in the order they were sent in.

Devices are pairs of sockets that keep packets apart, as a TUN device does.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import pytest
from elastic_harness.conversation import Conversation
from elastic_harness.future import wait_for
from elastic_harness.network import packets
from elastic_harness.network.link_model import HEALTHY, LinkMode, LinkPolicy
from elastic_harness.network.switch import Switch

from pytest_elastic.loop import Loop

HOLDS = LinkPolicy(up=False, mode=LinkMode.HOLD)
_HEADER = bytes((0x45, 0, 0, 29, 0, 0, 0, 0, 64, 17, 0, 0, 10, 77, 0, 1, 10, 77, 0, 2))
_PORTS = bytes(8)


class TurnedClock:
    """Goes on when it is told to; behind the kernel's, so that every alarm rings at once."""

    def __init__(self) -> None:
        self.at = 100.0
        self.tick = 0.0

    def now(self) -> float:
        """Return the time; each reading takes as long as the test wants."""
        self.at += self.tick
        return self.at


class Table:
    """A switch with two nodes, n1 and n2."""

    def __init__(self) -> None:
        self.clock = TurnedClock()
        self.loop = Loop(self.clock)
        ours, theirs = socket.socketpair()
        self.switch = Switch(self.loop, theirs)
        self._control = Conversation(self.loop, ours, on_closed=lambda _: None)
        self._nodes: list[socket.socket] = []
        for octet in (1, 2):
            node, device = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            node.setblocking(False)
            self._nodes.append(node)
            with device:
                self._ask("attach", {"name": f"n{octet}", "octet": octet}, [device.fileno()])

    def close(self) -> None:
        """Close everything."""
        self._control.close()
        self.switch.close()
        for node in self._nodes:
            node.close()
        self.loop.close()

    def change(self, policy: LinkPolicy) -> None:
        """Put a policy in force from n1 to n2."""
        layers = [["", msgspec.to_builtins(policy)]]
        self._ask("lay", {"pairs": [["n1", "n2"]], "layers": layers, "traffic": None})

    def send(self, *numbers: int) -> None:
        """Send packets of one flow, and let the switch look at them."""
        for number in numbers:
            packet = _HEADER + _PORTS + bytes((number,))
            self._nodes[0].send(packets.frame_of(packet))
        self.turn()

    def turn(self) -> None:
        """Have the switch do all that there is to do now."""
        for _ in range(5):
            self.loop.run_once(0)

    def arrived(self) -> list[int]:
        """Return the numbers of the packets that have come to n2, in order."""
        self.turn()
        found: list[int] = []
        while True:
            try:
                found.append(self._nodes[1].recv(4096)[-1])
            except BlockingIOError:
                return found

    def _ask(self, op: str, fields: Mapping[str, object], fds: Sequence[int] = ()) -> None:
        wait_for(self.loop, self._control.call(op, fields, fds=fds, timeout_s=1e6))


@pytest.fixture
def table() -> Iterator[Table]:
    """Lend a switch."""
    made = Table()
    yield made
    made.close()


def test_what_becomes_due_while_its_link_holds_is_not_passed_by_what_was_sent_later(
    table: Table,
) -> None:
    """It is held before those that came to the link after it."""
    table.change(LinkPolicy(latency_s=0.02))
    table.send(1, 2)
    table.change(HOLDS)
    table.send(3, 4)
    table.clock.at += 0.03
    assert table.arrived() == []
    table.send(5)
    table.change(HEALTHY)
    assert table.arrived() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("after", [HEALTHY, LinkPolicy(rate_bytes_per_s=1e9)])
def test_what_becomes_due_while_its_link_holds_is_not_passed_by_what_was_sent_off_later(
    table: Table, after: LinkPolicy
) -> None:
    """Others of its flow are still on their way when the link lets go; it is decided, as they."""
    table.change(LinkPolicy(latency_s=0.02))
    table.send(1)
    table.clock.at += 0.01
    table.send(2, 3)
    table.change(HOLDS)
    table.clock.at += 0.015
    table.send(4)
    table.change(after)
    table.clock.at += 1.0
    assert table.arrived() == [1, 2, 3, 4]


@pytest.mark.parametrize("after", [HEALTHY, LinkPolicy(rate_bytes_per_s=1e9)])
def test_what_becomes_due_while_a_policy_changes_is_not_passed_by_what_was_held(
    table: Table, after: LinkPolicy
) -> None:
    """However long the change itself takes."""
    table.change(LinkPolicy(latency_s=0.02))
    table.send(1)
    table.change(HOLDS)
    table.send(2, 3)
    table.clock.tick = 0.019
    table.change(after)
    table.send(4)
    table.clock.tick = 0.0
    table.clock.at += 1.0
    assert table.arrived() == [1, 2, 3, 4]
