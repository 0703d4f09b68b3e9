"""Having a group of version 2 hand its controllers down to ours, for as long as a session lasts.

A service, a container or a scope that was delegated to us has its controllers, but hands none down
while processes are in it, which pytest is itself. So they move to a group below it, the shelter,
and back when the last session ends that needs it. Sessions beside each other share what the first
has done: each holds a lock on the group, which the kernel takes back when its holder is killed.
What was handed down is written in the shelter's name, so any later session can take it back.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time

from elastic_harness.cluster.limits import cgroups
from elastic_harness.cluster.limits.cgroup_layout import HandingDown

__all__ = ["HeldGroup", "hand_down"]

_SHELTER = "pytest-elastic-shelter"
# Processes that fork as fast as they can were all moved after three rounds.
_ROUNDS = 20
# Another session takes back what it did in a few milliseconds; each second is a grace period.
_LOCK_LIMIT_S = 5.0
_LOOK_AGAIN_S = 0.005


class HeldGroup:
    """What a session has of groups that hand down: nothing of it changes until `release`."""

    def __init__(self, folder: str = "", lock: int = -1) -> None:
        self._folder = folder
        self._lock = lock

    def release(self) -> None:
        """Let go; where nobody else holds it, take back what was done. Twice is harmless."""
        if self._lock < 0:
            return
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _take_back(self._folder)
        self.forget()

    def forget(self) -> None:
        """Let go without taking anything back: for a child that was forked, which has a copy."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def hand_down() -> HeldGroup:
    """Have controllers handed down that are not, where that can be done; else nothing changes.

    Groups are found by `cgroups.find_hierarchies` afterwards. Never raises for lack of rights.
    """
    for _ in range(_ROUNDS):
        folder = _wanted()
        if folder is None:
            break
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            break
        if not _lock_shared(lock):
            os.close(lock)
            break
        held = HeldGroup(folder, lock)
        if _wanted() != folder:  # whoever had the lock has changed something
            held.forget()
            continue
        handing_down = cgroups.find_handing_down()
        if handing_down is not None and not _give(handing_down):
            held.release()
            break
        return held
    return HeldGroup()


def _wanted() -> str | None:
    """Return the group that has to hand down, or that does because of us."""
    handing_down = cgroups.find_handing_down()
    if handing_down is not None:
        return handing_down.folder
    for hierarchy in cgroups.find_hierarchies().values():
        if hierarchy.version == 2 and _shelters(hierarchy.folder):
            return hierarchy.folder
    return None


def _lock_shared(lock: int) -> bool:
    deadline = time.monotonic() + _LOCK_LIMIT_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(_LOOK_AGAIN_S)
        except OSError:
            return False
        else:
            return True


def _give(handing_down: HandingDown) -> bool:
    """Make the shelter, move processes there, hand down; tell whether anything is handed down."""
    folder = handing_down.folder
    handed_down = cgroups.read_words(f"{folder}/cgroup.subtree_control")
    new = [name for name in handing_down.controllers if name not in handed_down]
    shelter = f"{folder}/{'-'.join((_SHELTER, *new))}"
    given = False
    try:
        os.makedirs(shelter, exist_ok=True)
        for name in new:
            for _ in range(_ROUNDS):
                if handing_down.is_crowded:
                    _move_all(folder, shelter)
                try:
                    cgroups.write(f"{folder}/cgroup.subtree_control", f"+{name}")
                except OSError as error:
                    if error.errno != errno.EBUSY:
                        break  # this one cannot be handed down; others may
                else:
                    given = True
                    break
        # Some controllers are handed down beside processes too, to groups that take none.
        for _ in range(_ROUNDS if handing_down.is_crowded else 0):
            if not cgroups.read_words(f"{folder}/cgroup.procs"):
                break
            _move_all(folder, shelter)
    except OSError:
        pass  # a process that is not ours to move: what was done is taken back
    return given


def _take_back(folder: str) -> None:
    """Undo what `_give` has done, whichever session did it."""
    for shelter in _shelters(folder):
        path = f"{folder}/{shelter}"
        with contextlib.suppress(OSError):
            for name in shelter.removeprefix(_SHELTER).split("-")[1:]:
                cgroups.write(f"{folder}/cgroup.subtree_control", f"-{name}")
            for _ in range(_ROUNDS):
                _move_all(path, folder)
                with contextlib.suppress(OSError):
                    os.rmdir(path)
                    break


def _move_all(source: str, target: str) -> None:
    for pid in cgroups.read_words(f"{source}/cgroup.procs"):
        with contextlib.suppress(ProcessLookupError):
            cgroups.write(f"{target}/cgroup.procs", pid)


def _shelters(folder: str) -> list[str]:
    with contextlib.suppress(OSError):
        return sorted(name for name in os.listdir(folder) if name.startswith(_SHELTER))
    return []
