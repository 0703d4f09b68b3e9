"""Reads of environment variables are recorded, whatever way of Python they take."""

from __future__ import annotations

import os

from pytest_elastic.boot import variables


def test_every_way_of_reading_one_variable_is_recorded() -> None:
    """Also of variables that are not set; what is written or deleted is not taken for read."""
    with variables.recorded() as reads:
        os.environ.get("V_GET")
        os.getenv("V_GETENV", "x")
        os.getenvb(b"V_GETENVB")
        assert "V_IN" not in os.environ
        os.environ["V_SET"] = "1"
        del os.environ["V_SET"]
    assert reads.names == {"V_GET", "V_GETENV", "V_GETENVB", "V_IN"}
    assert not reads.by_all
    os.environ.get("V_LATER")
    assert "V_LATER" not in reads.names


def test_to_go_through_all_variables_is_noticed() -> None:
    """Nobody can tell which of them it was about."""
    with variables.recorded() as reads:
        dict(os.environ)
    assert reads.by_all == {__name__.partition(".")[0]}
