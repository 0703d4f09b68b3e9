"""Disks that are full, read-only, failing or slow below one path: proven by what was refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

import pytest
from elastic_harness.cluster.disks.policy import (
    DiskCounters,
    DiskPolicy,
    combine,
)
from elastic_harness.cluster.files.local_files import LocalFiles
from elastic_harness.faults.registry import built_in_faults

from pytest_elastic.loop import Loop
from tests.unit.faults.bench import World


@pytest.mark.parametrize(
    ("action", "more", "policy", "counted", "evidence"),
    [
        ("disk_full", {}, DiskPolicy(free_bytes=0), "refused_full", "for lack of space"),
        ("disk_read_only", {}, DiskPolicy(is_read_only=True), "refused_read_only", "read-only"),
        ("disk_error", {"on": ["read"]}, DiskPolicy(fails=("read",)), "failed", "failed"),
        ("disk_error", {"on": "sync"}, DiskPolicy(fails=("sync",)), "failed", "failed"),
        (
            "disk_slow",
            {"latency": "1s", "rate": "1MB"},
            DiskPolicy(latency_s=1.0, rate=10**6),
            "delayed",
            "delayed",
        ),
    ],
)
def test_each_is_laid_over_a_path_and_proven_by_its_counter(
    action: str, more: dict[str, object], policy: DiskPolicy, counted: str, evidence: str
) -> None:
    """Then taken away; twice is harmless."""
    world = World()
    world.fire(action, {"node": "n2", "path": "/tmp/disk", **more})
    world.pass_time(0.5)
    assert world.cluster.disks.policies == {("n2", "/tmp/disk"): policy}
    assert world.story == ["in force, needs job"]
    world.cluster.disks.counts = DiskCounters(by_owner={"x": {counted: 3}})
    world.pass_time(0.5)
    assert world.story[-1].endswith(": n2 3")
    assert evidence in world.story[-1]
    world.heal()
    world.heal()
    world.pass_time(0.5)
    assert world.cluster.disks.policies == {}
    assert world.story[-1] == "undone"


def test_workers_enter_their_folder_again_once_a_directory_is_covered_and_not_before() -> None:
    """A process that is in a folder goes past what is mounted over it, by relative names."""
    world = World()
    world.fire("disk_full", "n2")
    assert world.entered == []
    world.pass_time(0.5)
    assert world.cluster.disks.policies
    assert world.entered == ["n2"]


def test_a_disk_that_is_met_at_once_and_healed_has_acted() -> None:
    """A job may have met it, said so and had it healed before anything else was read."""
    world = World()
    world.fire("disk_full", {"node": "n2", "path": "/tmp/disk"})
    while not world.cluster.disks.policies:
        world.pass_time(0.01)
    world.cluster.disks.counts = DiskCounters(by_owner={"x": {"refused_full": 3}})
    while world.story != ["in force, needs job"]:
        world.pass_time(0.01)
    world.heal()
    world.pass_time(0.5)
    assert world.story[-2].endswith(": n2 3")


def test_a_disk_that_nobody_uses_shows_nothing() -> None:
    """Said after a while; a heal looks once more."""
    world = World()
    world.fire("disk_full", "n2")
    world.pass_time(35)
    assert (
        world.story[-1] == "failed: in force, but no operation was refused for lack of space on n2"
    )
    world = World()
    world.fire("disk_full", "n2")
    world.pass_time(0.15)
    world.cluster.disks.counts = DiskCounters(by_owner={"x": {"refused_full": 1}})
    world.heal()
    world.pass_time(0.5)
    assert world.story[-2:] == ["proved: operations refused for lack of space: n2 1", "undone"]


@pytest.mark.parametrize("after_s", [0.005, 0.015, 0.115, 0.125, 0.205])
def test_a_heal_that_comes_while_the_disk_is_asked_waits_for_the_answer(after_s: float) -> None:
    """Whenever it comes, what was refused until then is seen."""
    world = World()
    world.fire("disk_full", "n2")
    world.pass_time(0.025)
    world.cluster.disks.counts = DiskCounters(by_owner={"x": {"refused_full": 1}})
    world.fire("disk_slow", {"node": "n3", "latency": "1s"}, entry_id="y")
    world.pass_time(after_s - 0.004)
    world.heal("y")
    world.heal()
    world.pass_time(0.5)
    assert "proved: operations refused for lack of space: n2 1" in world.story
    assert world.story.count("undone") == 2


def test_several_policies_on_one_path_are_all_met() -> None:
    """The narrowest holds, delays add up."""
    one = DiskPolicy(free_bytes=5, latency_s=0.1, fails=("sync",))
    two = DiskPolicy(is_read_only=True, latency_s=0.2, rate=7.0, fails=("read",))
    both = combine([one, two])
    assert both == DiskPolicy(
        is_read_only=True, free_bytes=5, fails=("read", "sync"), latency_s=0.1 + 0.2, rate=7.0
    )
    assert combine([]) == DiskPolicy()


@pytest.mark.parametrize("rate", ["1250kB", "1250kB/s", "1.25MB/s", "10mbit", "10mbit/s"])
def test_a_rate_may_be_written_as_for_disks_or_as_for_links(rate: str) -> None:
    """And is written down in one way."""
    fault = built_in_faults().parse("disk_slow", {"node": "n1", "rate": rate})
    assert fault.describe()["rate"] == "1250kB"


def test_a_file_of_a_node_is_damaged_where_that_node_has_it(tmp_path: Path) -> None:
    """A folder that it has for itself is called alike on all nodes."""
    world = World()
    own: Mapping[str, Mapping[str, str]] = {"n1": {}, "n2": {"/data": str(tmp_path)}}
    world.cluster.files = LocalFiles(cast("Loop", world.time), lambda node: own[node])
    (tmp_path / "model.pt").write_bytes(b"x" * 400)
    world.fire("corrupt", {"file": "/data/*.pt", "node": "n2"})
    world.pass_time(0.5)
    assert world.story[0] == "in force"
    assert "/data/model.pt" in world.story[1]
    assert (tmp_path / "model.pt").read_bytes() != b"x" * 400
