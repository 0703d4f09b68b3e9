"""Files of a job are found and damaged, and no others, whatever the pattern says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from elastic_harness.cluster.cluster import ClusterError
from elastic_harness.cluster.files.damage import Place, corrupt_newest

from tests.unit.faults.bench import World

DATA = bytes(range(1, 101))


@pytest.fixture
def places(tmp_path: Path) -> list[Place]:
    """Return two places, the second as a node sees it; beside them lies a secret."""
    for folder in ("checkpoints/deep", "disk"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "secret.pt").write_bytes(DATA)
    for number, name in enumerate(["a.pt", "deep/b.pt", "c.txt"]):
        path = tmp_path / "checkpoints" / name
        path.write_bytes(DATA)
        os.utime(path, ns=(number, number))
    return [
        Place(name=str(tmp_path / "checkpoints"), path=str(tmp_path / "checkpoints")),
        Place(name="/tmp/disk", path=str(tmp_path / "disk")),
    ]


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("torn", DATA[:50] + bytes(50)),
        ("truncate", DATA[:50]),
        ("flip", DATA[:50] + bytes([DATA[50] ^ 1]) + DATA[51:]),
    ],
)
def test_the_newest_file_that_matches_is_damaged_and_says_how(
    places: list[Place], how: str, expected: bytes
) -> None:
    """At any depth; its time of change stays, so that it is still the newest for the job."""
    what = corrupt_newest(places, "*.pt", how)
    damaged = Path(places[0].path, "deep/b.pt")
    assert damaged.read_bytes() == expected
    assert damaged.stat().st_mtime_ns == 1
    assert "deep/b.pt, the newest of 2: " in what
    assert Path(places[0].path, "a.pt").read_bytes() == DATA


def test_a_pattern_may_name_a_folder(places: list[Place]) -> None:
    """Then it is that folder's files."""
    assert "/deep/b.pt, the newest of 1" in corrupt_newest(places, "deep/*.pt", "flip")


def test_an_absolute_pattern_is_as_the_node_sees_it(places: list[Place]) -> None:
    """The innermost place is meant."""
    Path(places[1].path, "x.pt").write_bytes(DATA)
    assert corrupt_newest(places, "/tmp/disk/*.pt", "flip").startswith("/tmp/disk/x.pt")


@pytest.mark.parametrize("pattern", ["/etc/*", "/tmp/diskette/*.pt"])
def test_what_lies_outside_is_refused(places: list[Place], pattern: str) -> None:
    """And the message says what lies inside."""
    with pytest.raises(ClusterError, match=r"is outside of what the job may lose: .*/tmp/disk"):
        corrupt_newest(places, pattern, "torn")


def test_links_lead_nowhere(places: list[Place], tmp_path: Path) -> None:
    """Neither one to a file outside, nor one to a folder outside."""
    Path(places[1].path, "link.pt").symlink_to(tmp_path / "secret.pt")
    Path(places[1].path, "folder").symlink_to(tmp_path)
    with pytest.raises(ClusterError, match="no file in /tmp/disk matches"):
        corrupt_newest(places, "/tmp/disk/*.pt", "torn")
    with pytest.raises(ClusterError, match="no file"):
        corrupt_newest(places, "/tmp/disk/folder/*.pt", "torn")
    assert (tmp_path / "secret.pt").read_bytes() == DATA


def test_what_cannot_be_damaged_is_no_proof(places: list[Place]) -> None:
    """Zeros over zeros, an empty file."""
    zeros = Path(places[1].path, "zeros.pt")
    zeros.write_bytes(bytes(100))
    with pytest.raises(ClusterError, match="was there already"):
        corrupt_newest(places, "/tmp/disk/*.pt", "torn")
    zeros.write_bytes(b"")
    with pytest.raises(ClusterError, match="0 bytes"):
        corrupt_newest(places, "/tmp/disk/*.pt", "torn")


def test_a_file_is_damaged_where_it_is_asked_for() -> None:
    """In what all nodes share, or on each of some nodes."""
    world = World()
    path = world.write("model.pt", b"x" * 200)
    world.fire("corrupt", "*.pt")
    assert world.story[-1].startswith(f"proved: {path}, the newest of 1: ")
    assert path.read_bytes() == b"x" * 100 + bytes(100)
    world.fire("corrupt", {"file": "/tmp/disk/*", "node": ["n1", "n3"], "how": "truncate"})
    assert world.story[-1].count("/tmp/disk/model.pt, the newest of 1: ") == 2
    assert path.stat().st_size == 50
