"""What a job needs of a file that all nodes see: the leader, its lease, the decided round.

Here are the calls of `etcd_client` with a file in etcd's place. A leader has no lease that is
counted down: it adds one to a count while it leads, and a node that has seen the count stand still
for as long as the lease, by its own clock, may take its place. Clocks of two machines are never
compared.

Each call reads the file under `flock`, and puts another in its place unless only the count has
changed, so that a machine which loses its power leaves one or the other. So the file has to be on
one machine, or on a file system whose locks hold on all nodes (NFS version 4 does), in a folder
that can be written. All is called on threads only, `prepare` on one of the agent and the rest in
the store service: a file server that is gone blocks.

The file is one line of JSON, with an entry for each job that uses it, and for the last ones that
did: how a job ended stays until others have ended, as no clock is shared.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
import time
from collections.abc import Iterator, Mapping
from typing import Any

from pytest_elastic.errors import StoreUnreachable, UsageError

__all__ = ["campaign", "conclude", "prepare", "record", "refuse", "renew", "resign"]

_FORMAT = "pytest-elastic registry 1"
# A roster of a thousand nodes has a quarter of this.
_MAX_BYTES = 1024 * 1024
# How many jobs that are over it tells of: an end is a quarter of a kilobyte.
_ENDS = 64
# Where a count begins: it has as many digits for as long as a job runs, so that counting on changes
# nothing else in the file.
_COUNT_FROM = 10**9
# How often a held lock is tried again: it is held for milliseconds.
_LOCK_RETRY_S = 0.01
# What reading a text raises that no pytest-elastic wrote; a count may be said to be infinite.
_NOT_OURS = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)


def prepare(path: str, *, said: str) -> None:
    """Create the file if there is none, and see that it can be used; raises UsageError.

    `said` is the option or variable that named it.
    """
    what = f"{said}={path}"
    try:
        with _locked(path, deadline=time.monotonic()) as fd:
            _, text = _read(fd, path)
            _replace(fd, path, text)
    except _Busy:
        pass  # that is how it is used
    except OSError as error:
        folder = os.path.dirname(os.path.abspath(path))
        hint = "With --rdzv-conf store_type=file it names a file that all nodes can write."
        if error.errno in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
            hint = "Files cannot be locked there, which the nodes need: try another file system."
        elif error.errno == errno.ENOENT and not os.path.isdir(folder):
            raise UsageError(f"{what}: there is no folder {folder}", hint=hint) from error
        raise UsageError(f"{what}: {error.strerror}", hint=hint) from error
    except (ValueError, StoreUnreachable) as error:
        why = str(error).removeprefix(f"{path} ")
        raise UsageError(
            f"{what} {why}", hint="Name a file that is not there yet, or an empty one."
        ) from error


def refuse(path: str, why: str, *, said: str) -> None:
    """Raise UsageError, because `prepare` has not ended."""
    raise UsageError(
        f"{said}={path}: {why}",
        hint="Is the server of that file system there, and can this machine reach it?",
    )


def campaign(arguments: Mapping[str, Any], *, now: float | None = None) -> Mapping[str, Any]:
    """Find the leader, or become it if there is none; as `etcd_client.campaign`.

    `path`, `run_id`, `value` (JSON text with the candidate's `incarnation`), `ttl_s`. In the place
    of the revision is a number that rises with each coordinator of the job. An answer says in
    `seen` what was seen of the coordinator, and since when; the next call has to be given that, as
    the process of this one may be gone by then. `now` is on this machine's monotonic clock, which
    is read if it is not given.
    """
    value, ttl_s = str(arguments["value"]), int(arguments["ttl_s"])
    with _entry(arguments) as entry:
        holder = entry.get("holder", "")
        is_ours = _incarnation(holder) == _incarnation(value)
        at = time.monotonic() if now is None else now
        sight, since = [holder, entry.get("count")], at
        if (seen := arguments.get("seen")) and seen[0] == sight:
            since = float(seen[1])
        if holder and not is_ours and at - since <= float(entry["ttl_s"]):
            return {
                "is_won": False,
                "value": holder,
                "create_revision": entry["term"],
                "ending": entry.get("ending", ""),
                "seen": [sight, since],
            }
        # A new term, even if we won before: what is still under way, as a resignation that this has
        # overtaken, is said under that one.
        entry["term"] = max(int(entry.get("term", 0)) + 1, _term(value))
        count = int(entry.get("count", _COUNT_FROM)) + 1  # never one that was seen before
        entry.update(holder=value, ttl_s=ttl_s, count=count)
        return {
            "is_won": True,
            "value": value,
            "create_revision": entry["term"],
            "lease": "",
            "ttl_s": ttl_s,
            "record": entry.get("record", ""),
            "ending": entry.get("ending", ""),
        }


def renew(arguments: Mapping[str, Any]) -> int:
    """Count on; return for how many seconds that holds, 0 if another node leads."""
    # A reader is on this machine, or reads it once the file server has it.
    with _entry(arguments, is_lasting=False) as entry:
        if not _is_ours(arguments, entry):
            return 0
        entry["count"] += 1
        return int(entry["ttl_s"])


def record(arguments: Mapping[str, Any]) -> bool:
    """Write `record` down if we still decide, and tell whether we do."""
    with _entry(arguments) as entry:
        if not _is_ours(arguments, entry):
            return False
        entry["record"] = str(arguments["record"])
        return True


def conclude(arguments: Mapping[str, Any]) -> bool:
    """Write `ending` down in the place of the last round if we still decide; tell whether."""
    with _entry(arguments) as entry:
        if not _is_ours(arguments, entry):
            return False
        entry.update(record="", ending=str(arguments["ending"]))
        return True


def resign(arguments: Mapping[str, Any]) -> None:
    """Decide no more, so that another can at once."""
    with _entry(arguments) as entry:
        if _is_ours(arguments, entry):
            entry["holder"] = ""


# --- one entry -----------------------------------------------------------------------------------


def _is_ours(arguments: Mapping[str, Any], entry: Mapping[str, Any]) -> bool:
    is_same = _incarnation(entry.get("holder", "")) == _incarnation(str(arguments["value"]))
    return is_same and entry.get("term") == arguments["create_revision"]


@contextlib.contextmanager
def _entry(arguments: Mapping[str, Any], *, is_lasting: bool = True) -> Iterator[dict[str, Any]]:
    """Give the job's entry, and write the file again if it was changed; raises StoreUnreachable.

    `is_lasting`: it is to be there after the machine has lost its power.
    """
    path, run_id = str(arguments["path"]), str(arguments["run_id"])
    timeout_s = float(arguments["timeout_s"])
    try:
        with _locked(path, deadline=time.monotonic() + timeout_s) as fd:
            runs, old = _read(fd, path)
            entry = dict(runs.get(run_id, {}))
            yield entry
            if is_lasting:
                runs.pop(run_id, None)  # the last one now
            runs[run_id] = entry
            over = [name for name, each in runs.items() if _is_left(each)]
            for name in over[:-_ENDS]:
                del runs[name]
            new = _text(runs)
            if not is_lasting and len(new) == len(old):
                os.pwrite(fd, new.encode(), 0)  # some digits, however much of it is written
            elif new != old:
                _replace(fd, path, new)
    except _Busy as busy:
        raise StoreUnreachable(
            f"{path} was locked by another process for {timeout_s:g} s: is one that uses it frozen?"
        ) from busy
    except OSError as error:
        raise StoreUnreachable(f"{path}: {error.strerror}") from error


def _is_left(entry: Mapping[str, Any]) -> bool:
    """Tell whether an entry has no leader, and no round that could go on."""
    return not entry.get("holder") and not entry.get("record")


def _incarnation(value: str) -> str:
    try:
        return str(json.loads(value)["incarnation"])
    except _NOT_OURS:
        return ""


def _term(value: str) -> int:
    try:
        return int(json.loads(value)["term"])
    except _NOT_OURS:
        return 0


# --- the file ------------------------------------------------------------------------------------


class _Busy(Exception):
    """Another process has the lock."""


@contextlib.contextmanager
def _locked(path: str, *, deadline: float) -> Iterator[int]:
    """Open the file, which is made if need be, and hold its lock; raises OSError and _Busy."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC
    while True:
        fd = os.open(path, flags, 0o644)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise OSError(errno.EINVAL, "it is no plain file")
            while not _has_lock(fd):
                if time.monotonic() >= deadline:
                    raise _Busy
                time.sleep(_LOCK_RETRY_S)
            if _is_at(path, fd):
                yield fd
                return
        finally:
            os.close(fd)  # this gives the lock back


def _is_at(path: str, fd: int) -> bool:
    """Tell whether no other file has taken the place of one since it was opened."""
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False


def _has_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(fd: int, path: str) -> tuple[dict[str, Any], str]:
    """Return the entries by job, and the text they are in; raises StoreUnreachable."""
    data = os.pread(fd, _MAX_BYTES + 1, 0)
    line, end, _ = data.partition(b"\n")
    if not data:
        return {}, ""
    try:
        found = json.loads(line)
        if found["format"] != _FORMAT or not end:
            raise ValueError("another format")
        runs = {str(name): dict(entry) for name, entry in found["runs"].items()}
        for entry in runs.values():
            if entry.get("holder"):
                entry.update(
                    term=int(entry["term"]), count=int(entry["count"]), ttl_s=int(entry["ttl_s"])
                )
    except _NOT_OURS as error:
        raise StoreUnreachable(
            f"{path} holds {data[:40]!r}, which no pytest-elastic wrote"
        ) from error
    return runs, line.decode() + "\n"


def _text(runs: Mapping[str, Any]) -> str:
    return json.dumps({"format": _FORMAT, "runs": runs}) + "\n" if runs else ""


def _replace(fd: int, path: str, text: str) -> None:
    """Put a file with this text in the place of the one that is open; raises OSError.

    Its own words are on the disk before it has the name: a name without them would be a file that
    says nothing of any job.
    """
    path = os.path.realpath(path)
    unfinished = f"{path}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(unfinished)  # left by an earlier holder of the lock that was killed
    try:
        with open(unfinished, "x", encoding="utf-8") as file:
            os.fchmod(file.fileno(), stat.S_IMODE(os.fstat(fd).st_mode))
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)
        raise
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
