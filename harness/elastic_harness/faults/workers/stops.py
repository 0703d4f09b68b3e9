"""Several faults that stop one process or one node: it goes on when the last of them is healed.

Pure: which faults stop what, and what follows from it. A paused node may be one whose every process
was sent SIGSTOP, so that a process of it is continued only after the node.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from elastic_harness.cluster.process import ProcessRef

__all__ = ["Stops"]


@dataclass(slots=True)
class _Stopped:
    process: ProcessRef
    owners: set[str] = field(default_factory=set)

    def may_be(self, other: ProcessRef) -> bool:
        """Tell whether this is that one of the same number, as far as start times are known."""
        times = {self.process.start_time, other.start_time}
        return len(times) == 1 or 0 in times


class Stops:
    """Who keeps what from running; an owner that is named twice counts once."""

    def __init__(self) -> None:
        # By node and pid: some faults know the start time of a process, and some do not.
        self._processes: dict[tuple[str, int], _Stopped] = {}
        self._nodes: dict[str, set[str]] = {}
        self._waiting: dict[str, list[ProcessRef]] = {}  # to go on with their node, in order

    def stop(self, owner: str, process: ProcessRef) -> None:
        """Note that `owner` stops a process."""
        key = process.node, process.pid
        known = self._processes.get(key)
        if known is None or not known.may_be(process):
            known = self._processes[key] = _Stopped(process)
        known.owners.add(owner)

    def owners_of(self, process: ProcessRef) -> tuple[str, ...]:
        """Return the owners that stop a process, or pause its node."""
        known = self._processes.get((process.node, process.pid))
        own = known.owners if known is not None and known.may_be(process) else set()
        return tuple(sorted(own | self._nodes.get(process.node, set())))

    def release(self, owner: str) -> tuple[ProcessRef, ...]:
        """Take back all that `owner` has stopped; return what is to go on now."""
        free = []
        for stopped in [each for each in self._processes.values() if owner in each.owners]:
            stopped.owners.remove(owner)
            if stopped.owners:
                continue
            node = stopped.process.node
            del self._processes[node, stopped.process.pid]
            if node in self._nodes:
                self._waiting.setdefault(node, []).append(stopped.process)
            else:
                free.append(stopped.process)
        return tuple(free)

    def pause(self, owner: str, node: str) -> None:
        """Note that `owner` pauses a node."""
        self._nodes.setdefault(node, set()).add(owner)

    def resume(self, owner: str, node: str) -> bool:
        """Take that back; tell whether the node is to go on now."""
        owners = self._nodes.get(node, set())
        if owner not in owners:
            return False
        owners.remove(owner)
        if not owners:
            del self._nodes[node]
        return not owners

    def after_resume(self, node: str) -> tuple[tuple[ProcessRef, ...], tuple[ProcessRef, ...]]:
        """Return what goes on with a node that was resumed, and what stays stopped there."""
        if node in self._nodes:
            return (), ()
        released = self._waiting.pop(node, [])
        held = tuple(each.process for each in self._processes.values() if each.process.node == node)
        free = (each for each in released if (node, each.pid) not in self._processes)
        return tuple(free), held

    def forget(self, node: str) -> None:
        """Note that a node is gone, with all that was stopped there."""
        self._nodes.pop(node, None)
        self._waiting.pop(node, None)
        for key in [key for key in self._processes if key[0] == node]:
            del self._processes[key]
