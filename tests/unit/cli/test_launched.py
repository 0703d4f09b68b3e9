"""What a check-up takes over from a command line of torchrun's, and what it says of the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_elastic.cli.launched import read_launched
from pytest_elastic.errors import UsageError


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Be in a folder with a script; return its name."""
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    return "train.py"


@pytest.mark.parametrize(
    ("words", "nodes", "job", "ignored"),
    [
        ("", None, {}, ""),
        ("--nnodes=2:4 --nproc-per-node=2", 4, {"nproc_per_node": 2}, ""),
        ("--max-restarts=0", None, {"max_restarts": 0}, ""),
        ("--nnodes=1 --nproc-per-node=auto", None, {}, "--nnodes, --nproc-per-node"),
        ("--rdzv-conf=join_timeout=9", None, {"rdzv": {"conf": {"join_timeout": "9"}}}, ""),
        (
            "--rdzv-conf=lease=10,is_host=1",
            None,
            {"rdzv": {"conf": {"lease": "10", "beat_interval": "2", "drift": "1"}}},
            "--rdzv-conf is_host",
        ),
        (
            "--rdzv-backend=etcd-v3 --rdzv-endpoint=e:2379 --rdzv-id=x --rdzv-conf=user=me",
            None,
            {},
            "--rdzv-backend, --rdzv-endpoint, --rdzv-id, --rdzv-conf",
        ),
        ("--pass-local-rank --role=trainer --tee=3", None, {}, "--role, --tee"),
    ],
)
def test_what_a_job_has_a_place_for_is_taken_over_and_the_rest_named(
    script: str, words: str, nodes: int | None, job: dict[str, Any], ignored: str
) -> None:
    """In one note; a lease comes with what follows from it."""
    found = read_launched([*words.split(), script], nodes=None, nproc=None)
    assert (found.nodes, found.job) == (nodes, job)
    assert found.words[0] == script
    named = found.note.partition(": ")[2].partition(" (")[0]
    assert named == ignored


@pytest.mark.parametrize(
    ("nodes", "nproc", "said"),
    [
        (5, None, "--nodes=5 and PET_NNODES=2:4 contradict each other: leave one out"),
        (None, 1, "--nproc-per-node=1 and --nproc-per-node=2 contradict each other"),
    ],
)
def test_what_is_said_twice_must_be_the_same(
    script: str, monkeypatch: pytest.MonkeyPatch, nodes: int | None, nproc: int | None, said: str
) -> None:
    """As a number of nodes between the two that torchrun is given is."""
    monkeypatch.setenv("PET_NNODES", "2:4")
    words = ["--nproc-per-node=2", script]
    with pytest.raises(UsageError, match=said):
        read_launched(words, nodes=nodes, nproc=nproc)
    assert read_launched(words, nodes=3, nproc=2).nodes == 4
