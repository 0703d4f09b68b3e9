"""On machines that were booted without IPv6, though their tables of hosts know addresses of it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.plugin.place import Place, scenario

_WITHOUT = Path(__file__).with_name("without_ipv6.py")


def test_nodes_find_each_other_without_ipv6(tmp_path: Path) -> None:
    """A node's name has addresses of both families there, and the store is found by one of them."""
    place = Place(tmp_path, preload="torch")
    place.add_ini()
    place.add_scripts()
    place.add("some.elastic.yaml", scenario("plain"))
    command = [sys.executable, str(_WITHOUT), sys.executable, "-m", "pytest", "-rA"]
    called = place.call(command)
    if called.out.startswith("cannot filter"):
        pytest.skip(called.out)
    assert called.outcomes == {"plain": "PASSED"}, called.out
