"""A command as another user, also where the way to this repository is closed to others.

    python as_user.py UID COMMAND [ARGUMENT...]

Continuous integration often works below a folder that only its own user may enter, and so does a
person's home. In a mount namespace of its own, that folder is covered by an empty one with nothing
in it but what an interpreter with our packages takes, at the same paths. Nothing is copied, and all
of it goes with the last process. Only root can do that; without leave to mount, the command has
only what it may enter anyway.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
_NEW_MOUNTS, _PRIVATE, _RECURSIVE, _BIND = 0x00020000, 1 << 18, 1 << 14, 1 << 12
_libc = ctypes.CDLL(None, use_errno=True)


def needed() -> set[Path]:
    """Return the folders of this interpreter and its packages, by all the names they have."""
    named = {ROOT, Path(sys.prefix), Path(sys.base_prefix)}
    named |= {Path(entry) for entry in sys.path if os.path.isdir(entry)}
    named |= {path.resolve() for path in named}
    here = Path.cwd()
    if not any(here in path.parents for path in named):
        named.add(here)
    return named


def first_closed(path: Path, user: int, below: Path | None) -> Path | None:
    """Return the first folder on the way to a path, itself included, that a user may not enter.

    The way begins `below` a folder that is reachable already.
    """
    for folder in (*reversed(path.parents), path):
        if below is not None and below not in folder.parents:
            continue
        facts = folder.stat()
        if not facts.st_mode & (stat.S_IXUSR if facts.st_uid == user else stat.S_IXOTH):
            return folder
    return None


def open_up(paths: Iterable[Path], user: int) -> None:
    """Make folders reachable for a user, in a mount namespace of this process and its children."""
    closed: dict[Path, set[Path]] = {}
    reached: set[Path] = set()
    for path in sorted(set(paths)):
        above = max((each for each in reached if each in path.parents), default=None)
        if (gate := first_closed(path, user, above)) is not None:
            closed.setdefault(gate, set()).update(path.iterdir() if gate == path else [path])
        reached.add(path)
    if not closed:
        return
    _check(_libc.unshare(_NEW_MOUNTS), "unshare")
    _mount("none", "/", "", _RECURSIVE | _PRIVATE)
    held = {path: os.open(path, os.O_PATH) for behind in closed.values() for path in behind}
    for gate in sorted(closed):  # one may be behind another
        _mount("none", str(gate), "tmpfs", 0, "mode=755")
        for path in sorted(closed[gate]):
            fd = held.pop(path)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir() if stat.S_ISDIR(os.fstat(fd).st_mode) else path.touch()
            _mount(f"/proc/self/fd/{fd}", str(path), "", _RECURSIVE | _BIND)
            os.close(fd)


def _mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    words = (each.encode() for each in (source, target, kind))
    _check(_libc.mount(*words, ctypes.c_ulong(flags), data.encode()), f"mount {target}")


def _check(result: int, what: str) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), f"cannot {what}")


def main(user: int, command: Sequence[str]) -> None:
    """Become the user, and the command."""
    with contextlib.suppress(OSError):
        open_up(needed(), user)
    os.chdir(os.getcwd())  # what is now at that path
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
    os.execvp(command[0], list(command))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
