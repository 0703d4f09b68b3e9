"""Names that one node takes for something else: wrong, missing, slow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from elastic_harness.future import wait_for
from elastic_harness.network.names import NameChange

from tests.cluster_bench import LIMIT_S, Bench

LOOK = """
import socket, sys, time
began = time.monotonic()
try:
    found = socket.getaddrinfo(sys.argv[1], 80, socket.AF_INET, socket.SOCK_STREAM)[0][4][0]
except socket.gaierror:
    found = "nothing"
print(sys.argv[1], found, time.monotonic() - began >= 0.3)
"""


@pytest.fixture
def bench(cluster_bench: Bench, tmp_path: Path) -> Iterator[Bench]:
    """Lend the server, with two nodes, and look for what the test left."""
    for lent in cluster_bench.borrow(tmp_path):
        lent.start("n1", "n2")
        yield lent


def change(bench: Bench, node: str, changes: Mapping[str, NameChange]) -> Mapping[str, str]:
    """Have a node take names for something else; return what it reads then."""
    return wait_for(bench.loop, bench.names.set_names(node, changes), within_s=LIMIT_S)


def looked_up(bench: Bench, node: str, name: str) -> tuple[str, bool]:
    """Return what a process of a node finds, and whether it always takes a while.

    On a busy machine anything may take a while now and then.
    """
    for _ in range(20):
        (bench.folder / "output").unlink(missing_ok=True)
        asked, found, is_slow = bench.output(bench.python(node, LOOK, name)).split()
        assert asked == name
        if is_slow == "False":
            return found, False
    return found, True


def test_a_wrong_name_leads_one_node_astray_until_it_is_healed(bench: Bench) -> None:
    """The others are told the truth; names of nodes that come later are known all the same."""
    wrong = {"n1": NameChange(address="10.77.0.99")}
    assert "n1" not in change(bench, "n2", wrong), "it must be asked for"
    assert looked_up(bench, "n2", "n1") == ("10.77.0.99", False)
    assert looked_up(bench, "n1", "n1") == ("10.77.0.1", False)
    bench.start("n3")
    assert looked_up(bench, "n2", "n3") == ("10.77.0.3", False)
    for _ in range(2):
        assert change(bench, "n2", {})["n1"] == "10.77.0.1"
    assert looked_up(bench, "n2", "n1") == ("10.77.0.1", False)


def asked(bench: Bench, node: str) -> Mapping[str, Mapping[str, int]]:
    """Return what a node has asked its name service for, by whose change it is."""
    return wait_for(bench.loop, bench.names.asked(node), within_s=LIMIT_S)


@pytest.mark.parametrize(
    "lie", [{"address": "10.77.0.99"}, {"is_missing": True}, {"slow_s": 0.1}], ids=str
)
def test_it_is_known_whose_lie_was_told(bench: Bench, lie: Mapping[str, Any]) -> None:
    """By name, and only of those who asked: a look at another name counts for nobody."""
    lies = {"n1": NameChange(**lie, owner="one"), "n3": NameChange(**lie, owner="other")}
    change(bench, "n2", lies)
    looked_up(bench, "n2", "n2")
    looked_up(bench, "n2", "elsewhere")
    assert asked(bench, "n2") == {}
    looked_up(bench, "n2", "n1")
    found = asked(bench, "n2")
    assert list(found) == ["one"]
    assert found["one"]["n1"] >= 1
    assert asked(bench, "n1") == {}


def test_a_missing_name_is_not_found(bench: Bench) -> None:
    """At once: the node's own name service says that there is none."""
    change(bench, "n2", {"n1": NameChange(is_missing=True)})
    assert looked_up(bench, "n2", "n1")[0] == "nothing"
    assert looked_up(bench, "n2", "n2")[0] == "10.77.0.2"


def test_a_slow_name_is_found_late(bench: Bench) -> None:
    """By a name service that only this node has."""
    change(bench, "n2", {"n1": NameChange(slow_s=0.3)})
    assert looked_up(bench, "n2", "n1") == ("10.77.0.1", True)
    change(bench, "n2", {})
    assert looked_up(bench, "n2", "n1") == ("10.77.0.1", False)
