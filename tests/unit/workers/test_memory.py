"""Whether the kernel has killed for lack of memory between two looks at its counters."""

from __future__ import annotations

from pytest_elastic.workers.memory import MemoryKills, count_memory_kills

OLD = "/sys/fs/cgroup/old/memory.events"
NEW = "/sys/fs/cgroup/new/memory.events"


def kills(file: str, count: int, *, since_start: bool = True) -> MemoryKills:
    """Return a reading."""
    return MemoryKills(file=file, count=count, since_start=since_start)


def test_a_counter_that_grew_is_a_kill() -> None:
    """One that stands still is none, however high it stands."""
    assert kills(OLD, 3).has_grown_to(kills(OLD, 4))
    assert not kills(OLD, 3).has_grown_to(kills(OLD, 3))


def test_a_process_that_was_moved_reads_another_counter() -> None:
    """A new group's kills are recent; that it has none says that there was none."""
    assert not kills(OLD, 3).has_grown_to(kills(NEW, 0))
    assert kills(OLD, 1).has_grown_to(kills(NEW, 1))
    assert not kills(OLD, 0).has_grown_to(kills("/proc/vmstat", 7, since_start=False))


def test_this_machine_counts_somewhere() -> None:
    """At least /proc/vmstat does."""
    found = count_memory_kills()
    assert found is not None
    assert found.count >= 0
