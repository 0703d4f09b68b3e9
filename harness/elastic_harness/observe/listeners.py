"""Who listens at a TCP port, by what the kernel says of processes and of their network."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from elastic_harness.cluster.process_table import row_of
from elastic_harness.scenario.engine.situation import ProcessRef

__all__ = ["find_listeners", "listening_inodes"]

_LISTENING = "0A"


def find_listeners(pids: Sequence[int], port: int) -> tuple[ProcessRef, ...]:
    """Return those of some processes that hold a socket listening at a port of their network."""
    found = []
    for pid in pids:
        inodes = {
            inode
            for table in ("tcp", "tcp6")
            for inode in listening_inodes(_lines(f"/proc/{pid}/net/{table}"), port)
        }
        if inodes and inodes & _sockets_of(pid):
            process = row_of(pid)
            if process is not None and process.is_alive:
                found.append(ProcessRef(pid=pid, start_time=process.start_ticks))
    return tuple(found)


def listening_inodes(lines: Iterable[str], port: int) -> set[str]:
    """Return the sockets that listen at a port, from the lines of /proc/net/tcp or tcp6."""
    found = set()
    for line in lines:
        fields = line.split()
        is_listening = len(fields) > 9 and fields[3] == _LISTENING
        if is_listening and int(fields[1].rpartition(":")[2], 16) == port:
            found.add(fields[9])
    return found


def _lines(path: str) -> list[str]:
    try:
        with open(path) as table:
            return table.readlines()
    except OSError:
        return []


def _sockets_of(pid: int) -> set[str]:
    found = set()
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            target = os.readlink(f"/proc/{pid}/fd/{name}")
            if target.startswith("socket:["):
                found.add(target[len("socket:[") : -1])
    except OSError:
        return found
    return found
