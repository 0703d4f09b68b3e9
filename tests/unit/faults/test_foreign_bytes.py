"""Strangers on a store's port: what they say, what proves that it was taken, and who is refused."""

from __future__ import annotations

from random import Random

import pytest
from elastic_harness.faults.links.foreign_bytes import WORDS, ForeignBytes
from elastic_harness.faults.registry import built_in_faults

from tests.unit.faults.bench import World
from tests.unit.faults.causes import served


def world_with_a_store() -> World:
    """Return a world in which n1 serves the rendezvous's store."""
    world = World()
    served(world)
    return world


def test_each_of_the_strangers_says_its_words_from_the_node() -> None:
    """To the port of the store, on as many connections as were asked for."""
    world = world_with_a_store()
    world.fire("foreign_bytes", {"send": "http", "node": "n2", "connections": 5})
    world.pass_time(2)
    (sent,) = world.strangers.sent["x"]
    assert (sent.node, sent.at, sent.connections) == ("n2", ("n1", 29400), 5)
    assert sent.words.startswith(b"GET / HTTP/1.1\r\n")
    size = len(sent.words)
    (story,) = world.story
    assert story == (
        f"proved: 5 connections from n2 to n1:29400, {size} bytes (http) on each: "
        "0 closed by the store, 5 still open"
    )


def test_a_store_that_hangs_up_has_taken_it_too() -> None:
    """And nobody waits any longer for what it does."""
    world = world_with_a_store()
    world.strangers.hangs_up = True
    world.fire("foreign_bytes", {"node": "n3"})
    world.pass_time(0.1)
    assert "3 closed by the store, 0 still open" in world.story[-1]


def test_a_store_is_given_a_moment_to_hang_up() -> None:
    """And not more: one that does not is told so after half a second."""
    world = world_with_a_store()
    world.fire("foreign_bytes", {"node": "n3"})
    world.pass_time(0.3)
    assert world.story == []
    world.strangers.hangs_up = True
    world.pass_time(0.1)
    assert "3 closed by the store, 0 still open" in world.story[-1]
    world = world_with_a_store()
    world.fire("foreign_bytes", {"node": "n3"})
    world.pass_time(0.45)
    assert world.story == []
    world.pass_time(0.15)
    assert "0 closed by the store, 3 still open" in world.story[-1]


def test_silence_is_proven_by_connections_that_were_accepted() -> None:
    """There are no bytes to be taken."""
    world = world_with_a_store()
    world.fire("foreign_bytes", {"send": "silence", "node": "n2"})
    world.pass_time(2)
    assert "3 connections from n2 to n1:29400, nothing said" in world.story[-1]


def test_a_stranger_who_is_refused_proves_nothing() -> None:
    """With what it met with; and nobody stays after the heal."""
    world = world_with_a_store()
    world.strangers.refuses = "Connection refused"
    world.fire("foreign_bytes", {"node": "n2"})
    world.pass_time(0.1)
    assert world.story == [
        "failed: n1:29400 took 0 of 3 connections of strangers (Connection refused)"
    ]
    world.heal()
    world.pass_time(0.1)
    assert world.strangers.sent == {}


def test_a_store_that_is_not_there_gets_no_strangers() -> None:
    """Not seen yet, or nobody at its port: said at once, and nothing is opened."""
    world = World()
    world.fire("foreign_bytes", "workers")
    assert world.story == ["failed: no store of the workers has been seen yet"]
    world = world_with_a_store()
    world.cluster.sockets.serving.clear()
    world.fire("foreign_bytes", "rendezvous")
    assert world.story == ["failed: no process listens at n1:29400"]
    assert world.strangers.sent == {}


@pytest.mark.parametrize("send", WORDS)
def test_words_follow_from_the_seed(send: str) -> None:
    """The same chance says the same; noise differs from one stream to the next."""
    assert WORDS[send](Random(1)) == WORDS[send](Random(1))
    is_noise = WORDS[send](Random(1)) != WORDS[send](Random(2))
    assert is_noise == (send in {"random", "stale"})


def test_every_kind_of_words_can_be_asked_for() -> None:
    """The table and the parameter name the same."""
    for send in WORDS:
        built_in_faults().parse("foreign_bytes", {"send": send})
    assert set(WORDS) == set(ForeignBytes.model_fields["send"].annotation.__args__)  # type: ignore[union-attr]
