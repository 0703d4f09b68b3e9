"""Reads of environment variables are recorded, whatever way of Python they take."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import pytest

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
    assert reads.names == {"": {"V_GET", "V_GETENV", "V_GETENVB", "V_IN"}}
    assert not reads.by_all
    os.environ.get("V_LATER")
    assert "V_LATER" not in reads.names[""]


def test_a_read_belongs_to_the_module_that_is_being_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And each module to the one that was the first to import it."""
    read = "import os; os.environ.get('V_{}')\n"
    (tmp_path / "v_outer.py").write_text("import v_inner\n" + read.format("OUTER"))
    (tmp_path / "v_inner.py").write_text(
        "import importlib.util\nassert importlib.util.find_spec('v_last')\n" + read.format("INNER")
    )
    (tmp_path / "v_last.py").write_text("import v_inner\n" + read.format("LAST"))
    monkeypatch.syspath_prepend(tmp_path)
    with variables.recorded() as reads:
        monkeypatch.setattr(sys, "meta_path", [reads, *sys.meta_path])
        importlib.import_module("v_outer")
        importlib.import_module("v_last")
    assert reads.names == {"v_outer": {"V_OUTER"}, "v_inner": {"V_INNER"}, "v_last": {"V_LAST"}}
    assert reads.imported_by == {"v_outer": "", "v_inner": "v_outer", "v_last": ""}


def test_to_go_through_all_variables_is_noticed() -> None:
    """Nobody can tell which of them it was about."""
    with variables.recorded() as reads:
        dict(os.environ)
    assert reads.by_all == {__name__.partition(".")[0]}


def test_a_walk_through_all_variables_reads_none_of_them_by_name() -> None:
    """As networkx and tqdm look for their own: what they met on the way is not theirs."""
    with variables.recorded() as reads:
        assert not [value for name, value in os.environ.items() if name.startswith("V_NONE")]
        assert "V_NONE" not in list(os.environ.values())
    assert reads.by_all == {__name__.partition(".")[0]}
    assert not reads.names
