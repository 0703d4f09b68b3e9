"""Where control groups go and what is written into them, on layouts recorded on other machines.

What version 2 does on the kernel at hand is in `tests/integration/test_cgroup_v2.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from elastic_harness.cluster.limits import cgroup_layout as layout
from elastic_harness.cluster.limits.cgroup_layout import GroupReadings, Hierarchy

# A virtual machine of a CI service: systemd, version 2 only, a job below a service.
CI_MOUNTS = "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
CI_CGROUP = "0::/system.slice/runner.service\n"
CI_OWN = "/sys/fs/cgroup/system.slice/runner.service"
CI_ENABLED = {
    "/sys/fs/cgroup": "cpuset cpu io memory hugetlb pids rdma misc",
    "/sys/fs/cgroup/system.slice": "cpu io memory pids",
    "/sys/fs/cgroup/system.slice/runner.service": "",
}
# A container with a cgroup namespace of its own: its root is all that it sees.
CONTAINER_MOUNTS = "901 890 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup rw,nsdelegate\n"
CONTAINER_CGROUP = "0::/\n"
# A machine with version 1 for all controllers, and an empty version 2 beside it.
OLD_MOUNTS = """\
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
37 31 0:34 / /sys/fs/cgroup/freezer rw,relatime - cgroup cgroup rw,freezer
39 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
OLD_CGROUP = """\
9:name=systemd:/
8:pids:/
6:freezer:/
4:memory:/jobs/7
1:cpu,cpuacct:/
0::/
"""


def find(
    mounts: str,
    cgroup: str,
    enabled: Mapping[str, str] | None = None,
    *,
    is_writable: Callable[[str], bool] = lambda _: True,
) -> dict[str, Hierarchy]:
    """Look for places on a recorded machine."""
    texts = {f"{folder}/cgroup.subtree_control": text for folder, text in (enabled or {}).items()}
    return layout.find(
        mounts, cgroup, read=lambda path: texts.get(path, ""), is_writable=is_writable
    )


def below(folder: str) -> Callable[[str], bool]:
    """Return the rights of somebody to whom a group was delegated, and all that is in it."""
    return lambda path: path == folder or path.startswith(f"{folder}/")


def test_version_2_goes_below_the_nearest_ancestor_that_has_the_most_enabled() -> None:
    """Our own group has processes, so it can have none enabled; all features share one place."""
    found = find(CI_MOUNTS, CI_CGROUP, CI_ENABLED)
    place = Hierarchy(
        version=2, folder="/sys/fs/cgroup/system.slice", controllers=("cpu", "memory", "pids")
    )
    assert found == dict.fromkeys(("freeze", "cpu", "memory", "process"), place)


def test_version_2_without_rights_above_can_freeze_and_no_more() -> None:
    """An ordinary user, in a group that was not delegated."""
    mine = "/sys/fs/cgroup/system.slice/runner.service"
    found = find(CI_MOUNTS, CI_CGROUP, CI_ENABLED, is_writable=below(mine))
    assert found == {"freeze": Hierarchy(version=2, folder=mine)}


def test_a_container_whose_root_has_nothing_enabled_can_freeze_and_no_more() -> None:
    """Above the root of a cgroup namespace there is nothing to be had."""
    found = find(CONTAINER_MOUNTS, CONTAINER_CGROUP)
    assert found == {"freeze": Hierarchy(version=2, folder="/sys/fs/cgroup")}


def test_a_container_that_may_write_nothing_has_no_groups() -> None:
    """The usual read-only mount."""
    assert find(CONTAINER_MOUNTS, CONTAINER_CGROUP, is_writable=lambda _: False) == {}


def test_nothing_goes_below_a_group_that_has_controllers_beside_processes() -> None:
    """It has become the root of threads: groups below it take no processes."""
    texts = {
        "/sys/fs/cgroup/cgroup.subtree_control": "cpu pids",
        "/sys/fs/cgroup/cgroup.type": "domain threaded\n",
    }
    found = layout.find(
        CONTAINER_MOUNTS,
        CONTAINER_CGROUP,
        read=lambda path: texts.get(path, ""),
        is_writable=lambda _: True,
    )
    assert found == {}


@pytest.mark.parametrize(
    ("mounts", "cgroup", "controllers", "writable", "why"),
    [
        ("", "", "", "", "none are mounted"),
        (
            CONTAINER_MOUNTS.replace("rw,nosuid", "ro,nosuid"),
            CONTAINER_CGROUP,
            "cpu memory",
            "",
            "/sys/fs/cgroup is mounted read-only",
        ),
        (
            CI_MOUNTS,
            CI_CGROUP,
            "cpu memory",
            "",
            f"we may make none below {CI_OWN} (version 2)",
        ),
        (
            CI_MOUNTS,
            CI_CGROUP,
            "cpu pids",
            "/sys",
            "/sys/fs/cgroup has no controller 'memory' (it has cpu, pids)",
        ),
        (
            CI_MOUNTS,
            CI_CGROUP,
            "cpu memory",
            "/sys",
            f"the controller 'memory' is not enabled in a group above {CI_OWN} that is ours",
        ),
        (
            OLD_MOUNTS,
            OLD_CGROUP,
            "",
            "",
            "we may make none below /sys/fs/cgroup/memory/jobs/7 (version 1)",
        ),
    ],
)
def test_why_there_is_no_group_is_said(
    mounts: str, cgroup: str, controllers: str, writable: str, why: str
) -> None:
    """What a person has to change differs in each case."""
    texts = {"/sys/fs/cgroup/cgroup.controllers": controllers}
    said = layout.explain(
        "memory",
        mounts,
        cgroup,
        read=lambda path: texts.get(path, ""),
        is_writable=lambda path: bool(writable) and path.startswith(writable),
    )
    assert said == why


def test_version_1_goes_below_our_own_group_in_each_hierarchy() -> None:
    """Controllers may be mounted together; an empty version 2 serves to freeze."""
    found = find(OLD_MOUNTS, OLD_CGROUP)
    assert found == {
        "cpu": Hierarchy(version=1, folder="/sys/fs/cgroup/cpu,cpuacct"),
        "memory": Hierarchy(version=1, folder="/sys/fs/cgroup/memory/jobs/7"),
        "process": Hierarchy(version=1, folder="/sys/fs/cgroup/pids"),
        "freeze": Hierarchy(version=2, folder="/sys/fs/cgroup/unified"),
    }


@pytest.mark.parametrize(
    ("version", "share", "expected"),
    [
        (1, 0.2, [("cpu.cfs_period_us", "20000"), ("cpu.cfs_quota_us", "4000")]),
        (1, 0.001, [("cpu.cfs_period_us", "20000"), ("cpu.cfs_quota_us", "1000")]),
        (1, None, [("cpu.cfs_period_us", "20000"), ("cpu.cfs_quota_us", "-1")]),
        (2, 1.5, [("cpu.max", "30000 20000")]),
        (2, None, [("cpu.max", "max 20000")]),
    ],
)
def test_a_share_of_processor(
    version: int, share: float | None, expected: list[tuple[str, str]]
) -> None:
    """In microseconds of a period; never less than the kernel takes."""
    assert layout.limit(version, "cpu", share) == expected


def test_memory_is_limited_together_with_swap() -> None:
    """Otherwise the kernel would swap instead of killing."""
    assert layout.limit(2, "memory", 4096) == [("memory.max", "4096"), ("memory.swap.max", "0")]
    assert layout.limit(2, "memory", None) == [("memory.max", "max"), ("memory.swap.max", "max")]
    assert layout.limit(1, "memory", 4096) == [
        ("memory.memsw.limit_in_bytes", "-1"),
        ("memory.limit_in_bytes", "4096"),
        ("memory.memsw.limit_in_bytes", str((1 << 20) + 4096)),
    ]


def test_processes_are_limited_alike_in_both_versions() -> None:
    """By the pids controller."""
    assert layout.limit(1, "process", 5) == layout.limit(2, "process", 5) == [("pids.max", "5")]
    assert layout.limit(2, "process", None) == [("pids.max", "max")]


def test_what_the_kernel_counted_reads_alike_in_both_versions() -> None:
    """Recorded texts of a group that met all of its limits."""
    stat = "nr_periods 40\nnr_throttled 12\nthrottled_time 99\n"
    events = "low 0\nhigh 0\nmax 7\noom 1\noom_kill 1\noom_group_kill 0\n"
    expected = GroupReadings(
        throttled=12,
        memory=8192,
        memory_hits=7,
        memory_kills=1,
        processes=5,
        processes_refused=3,
    )
    common = {"cpu.stat": stat, "pids.current": "5\n", "pids.events": "max 3\n"}
    two = {**common, "memory.events": events, "memory.current": "8192\n"}
    one = {
        **common,
        "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
        "memory.failcnt": "7\n",
        "memory.usage_in_bytes": "8192\n",
    }
    assert layout.readings(one) == layout.readings(two) == expected
    for version, texts in ((1, one), (2, two)):
        wanted = [name for f in layout.FEATURES for name in layout.files_to_read(version, f)]
        assert sorted(wanted) == sorted(texts)


def test_a_group_that_was_never_made_has_counted_nothing() -> None:
    """Zeros, not errors."""
    assert layout.readings({}) == GroupReadings()
    assert layout.readings({"cpu.stat": ""}) == GroupReadings()
