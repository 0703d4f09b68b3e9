"""Which packets belong to which class of traffic."""

from __future__ import annotations

import pytest
from elastic_harness.network.packets import Ends
from elastic_harness.network.traffic import TrafficTable, check_class

from pytest_elastic.errors import UsageError


def test_packets_belong_to_the_classes_of_their_ends() -> None:
    """In both directions; what touches no known endpoint is between workers."""
    table = TrafficTable()
    table.learn({"rendezvous": [(1, 29400)], "store": [(1, 29400), (2, 31000)]})
    assert table.classes_of(Ends(3, 40000, 1, 29400)) == ("rendezvous", "store")
    assert table.classes_of(Ends(1, 29400, 3, 40000)) == ("rendezvous", "store")
    assert table.classes_of(Ends(2, 31000, 1, 40000)) == ("store",)
    assert table.classes_of(Ends(3, 29400, 2, 40000)) == ("collectives",)
    assert table.classes_of(None) == ()


def test_what_is_learned_takes_the_place_of_what_was_known() -> None:
    """A worker store of an earlier round is not one any more."""
    table = TrafficTable()
    table.learn({"store": [(1, 31000)]})
    table.learn({"store": [(1, 32000)], "liveness": [(2, 5)]})
    assert table.classes_of(Ends(1, 31000, 2, 40000)) == ("collectives",)
    assert table.classes_of(Ends(2, 5, 1, 32000)) == ("liveness", "store")


def test_ports_are_told_apart_once_somebody_asks_for_them() -> None:
    """Beside the class that the packet belongs to anyway."""
    table = TrafficTable()
    assert table.classes_of(Ends(1, 22, 2, 40000)) == ("collectives",)
    table.mind_port("port:22")
    table.mind_port("store")
    assert table.classes_of(Ends(1, 22, 2, 40000)) == ("collectives", "port:22")


@pytest.mark.parametrize("name", ["gradients", "port:", "port:0", "port:70000", "port:x", ""])
def test_unknown_classes_are_refused(name: str) -> None:
    """With those that there are."""
    with pytest.raises(UsageError, match=r"there is no (traffic|port)"):
        check_class(name)
