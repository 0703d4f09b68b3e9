"""A file that Python has found in place of a module of its own."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from pytest_elastic.cli.hidden_module import hidden_module


def test_it_is_told_beside_odd_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands in sys.modules need not be a module, nor have a name or a file."""
    for number, odd in enumerate([object(), None, SimpleNamespace(__name__=[], __file__=3)]):
        monkeypatch.setitem(sys.modules, f"odd {number}", odd)
    assert hidden_module(ValueError("x")) is None
    own = SimpleNamespace(__name__="tempfile", __file__="/somewhere/tempfile.py")
    monkeypatch.setitem(sys.modules, "tempfile", own)
    found = hidden_module(ValueError("it broke"))
    assert str(found).startswith(
        "/somewhere/tempfile.py is found in place of Python's own module tempfile (it broke)"
    )


@pytest.mark.parametrize("folder", ["site-packages", "dist-packages"])
def test_what_is_installed_hides_nothing(monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    """As setuptools brings a distutils."""
    brought = SimpleNamespace(__name__="tempfile", __file__=f"/usr/{folder}/x/tempfile.py")
    monkeypatch.setitem(sys.modules, "tempfile", brought)
    assert hidden_module(ValueError("x")) is None
