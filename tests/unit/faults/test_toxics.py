"""Toxics on proxies of a run: what may be said, what proves them, how they are undone."""

from __future__ import annotations

from typing import Any

import pytest
from elastic_harness.toxiproxy.toxics import TOXIC_TYPES

from tests.unit.faults.bench import World

ALL: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "latency": ({"latency": "1s", "jitter": "50ms"}, {"latency": 1000, "jitter": 50}),
    "bandwidth": ({"rate": "8mbit"}, {"rate": 1000}),
    "slow_close": ({"delay": "2s"}, {"delay": 2000}),
    "timeout": ({}, {"timeout": 0}),
    "slicer": (
        {"average_size": 64, "size_variation": 16, "delay": "10ms"},
        {"average_size": 64, "size_variation": 16, "delay": 10_000},
    ),
    "limit_data": ({"bytes": 100}, {"bytes": 100}),
    "reset_peer": ({"timeout": "500ms"}, {"timeout": 500}),
    "noop": ({}, {}),
}


@pytest.mark.parametrize("kind", list(TOXIC_TYPES))
def test_all_toxics_can_be_said_in_the_units_of_scenarios(kind: str) -> None:
    """And reach the proxy in Toxiproxy's own."""
    said, sent = ALL[kind]
    world = World()
    order = world.fire("toxic", {"proxy": "db", "type": kind, "stream": "upstream", **said})
    world.pass_time(0.5)
    proxy, toxic = world.proxies.toxics["x"]
    assert (proxy, toxic.type, toxic.stream, toxic.attributes) == ("db", kind, "upstream", sent)
    assert order.targets.describe() == ("db",)


def test_a_toxic_is_proven_by_what_met_it_in_its_direction() -> None:
    """Nothing else went through the proxy that it could have harmed."""
    world = World()
    world.fire("toxic", {"proxy": "db", "type": "latency", "latency": "10ms"}, entry_id="slow")
    world.proxies.met["db", "slow", "upstream"] = 3
    world.pass_time(1)
    assert world.story == ["in force, needs job"]
    world.proxies.met["db", "slow", "downstream"] = 2
    world.pass_time(1)
    assert world.story[-1] == "proved: 2 reads of connections through 'db' met the toxic"
    for _ in range(2):
        world.heal("slow")
        world.pass_time(1)
    assert world.proxies.toxics == {}


def test_a_toxic_that_met_nothing_has_failed() -> None:
    """The job does not use the proxy, or not any more."""
    world = World()
    world.fire("toxic", {"proxy": "db", "type": "noop"})
    world.pass_time(31)
    where = "through the proxy 'db' downstream"
    assert world.story[-1] == f"failed: nothing went {where} that the toxic harms"


def test_a_proxy_is_off_until_it_heals_and_what_is_so_already_is_no_fault() -> None:
    """Healing twice is harmless, and takes away no other's switching."""
    world = World()
    world.fire("disable_proxy", "db", entry_id="off")
    world.pass_time(0.1)
    assert world.story == ["in force", "proved: the proxy 'db' refuses connections"]
    world.fire("disable_proxy", "db", entry_id="again")
    world.pass_time(0.1)
    assert world.story[-1] == "failed: the proxy 'db' is off already"
    world.heal("again")
    world.pass_time(0.1)
    assert not world.proxies.is_on("db")
    for _ in range(2):
        world.heal("off")
        world.pass_time(0.1)
    assert world.proxies.is_on("db")


def test_a_proxy_that_is_late_is_switched_on() -> None:
    """Which `enabled: false` is for."""
    world = World()
    world.fire("enable_proxy", {"proxy": "late"}, entry_id="on")
    world.pass_time(0.1)
    assert world.story[-1] == "proved: the proxy 'late' listens"
    world.fire("enable_proxy", {"proxy": "db"}, entry_id="no")
    world.pass_time(0.1)
    assert world.story[-1] == "failed: the proxy 'db' accepts connections already"
