"""Layers of several owners in one place."""

from __future__ import annotations

from elastic_harness.network.overlay import Overlay


def test_the_newest_layer_is_the_last_and_each_owner_takes_away_its_own() -> None:
    """In any order; what an owner lays anew is its newest."""
    overlay: Overlay[str, int] = Overlay()
    assert overlay.impose("a", ["n1", "n2"], 1) == {"n1": {"a": 1}, "n2": {"a": 1}}
    assert overlay.impose("b", ["n2"], 2) == {"n2": {"a": 1, "b": 2}}
    assert list(overlay.impose("a", ["n2"], 3)["n2"].items()) == [("b", 2), ("a", 3)]
    assert overlay.lift("b") == {"n2": {"a": 3}}
    assert overlay.lift("b") == {}
    assert overlay.lift("a") == {"n1": {}, "n2": {}}
    assert (overlay.of("n1"), overlay.of("n3")) == ({}, {})
