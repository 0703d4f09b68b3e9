"""Which backends can be named."""

from __future__ import annotations

import sys

import pytest

from pytest_elastic.backends.names import check_backend
from pytest_elastic.errors import UsageError


def test_an_unknown_backend_is_answered_with_the_known_ones() -> None:
    """And with the one that was meant, where that can be guessed."""
    with pytest.raises(UsageError) as caught:
        check_backend("etcd-v22")
    for name in ("c10d", "static", "etcd", "etcd-v2", "torchrun.handlers"):
        assert name in caught.value.message
    assert caught.value.hint == "Did you mean etcd-v2?"


def test_etcd_without_its_client_is_one_line_that_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Torch would raise from a stub, deep inside."""
    check_backend("etcd-v2")
    monkeypatch.setitem(sys.modules, "etcd", None)
    with pytest.raises(UsageError, match=r"pip install 'pytest-elastic\[etcd\]'"):
        check_backend("etcd-v2")
