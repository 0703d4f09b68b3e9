"""Reports of probes and launchers on other machines, passed on by the agent there.

On the machine the agent listens at a Unix socket of its own and passes on what it hears, in order:
a process that has ended is told of before anything that connects afterwards.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from elastic_harness.cluster.facets import Connection
from elastic_harness.cluster.local_reporters import LocalConnection, LocalReporters
from elastic_harness.cluster.machines.link import DRIFT
from elastic_harness.cluster.machines.machine import Machine
from pytest_elastic.channel import JsonObject
from pytest_elastic.loop import Loop

__all__ = ["RemoteConnection", "RemoteReporters", "ReportsRelay"]

Tell = Callable[[str, Mapping[str, Any]], None]

# Bytes as text, one for one: what probes say is ASCII, what programs print need not be text at all.
ENCODING: Final = "latin-1"


class ReportsRelay:
    """The agent's side. `stand_ins` are its own sockets, by the path that pytest listens at.

    They lie in the scratch folder of the agent's cluster, which goes with it in any case.
    """

    def __init__(self, loop: Loop, tell: Tell, scratch: Callable[[], str]) -> None:
        self.stand_ins: dict[str, str] = {}
        self._loop = loop
        self._tell = tell
        self._scratch = scratch
        self._stops: dict[str, Callable[[], None]] = {}
        self._connections: dict[int, LocalConnection] = {}
        self._watched: dict[int, LocalConnection] = {}
        self._last_id = 0

    def obey(self, event: str, told: JsonObject) -> None:
        """Do what pytest says of its connections."""
        match event:
            case "listen":
                self._listen(told["path"])
            case "unlisten":
                self._unlisten(told["path"])
            case "order" if told["id"] in self._connections:
                self._connections[told["id"]].send(told["data"].encode(ENCODING))
            case "hang_up" if told["id"] in self._connections:
                self._connections.pop(told["id"]).close()

    def close(self) -> None:
        """Hang up, and remove the sockets."""
        for path in tuple(self._stops):
            self._unlisten(path)

    def _listen(self, path: str) -> None:
        # Not at pytest's path: a socket's must be short, and machines may share that folder.
        folder = tempfile.mkdtemp(prefix="reports-", dir=self._scratch())
        self.stand_ins[path] = os.path.join(folder, "s")
        stop = LocalReporters(self._loop).listen(self.stand_ins[path], self._accept)

        def stop_and_remove() -> None:
            stop()
            with contextlib.suppress(FileNotFoundError):  # the cluster has ended before
                os.rmdir(folder)

        self._stops[path] = stop_and_remove

    def _unlisten(self, path: str) -> None:
        if path not in self._stops:
            return
        self._stops.pop(path)()
        del self.stand_ins[path]
        for connection in (*self._connections.values(), *self._watched.values()):
            connection.close()
            connection.unwatch_end()
        self._connections.clear()
        self._watched.clear()

    def _accept(self, connection: LocalConnection) -> None:
        for id, watched in tuple(self._watched.items()):
            if watched.has_ended():
                self._on_ended(id)
        self._last_id += 1
        id = self._last_id
        self._connections[id] = connection
        facts = {
            "id": id,
            "pid": connection.pid,
            "start_time": connection.start_time,
            "ancestors": list(connection.ancestors()),
        }
        self._tell("reporter", facts)

        def on_data(data: bytes) -> None:
            self._tell("said", {"id": id, "data": data.decode(ENCODING)})

        def on_closed() -> None:
            self._connections.pop(id, None)
            self._tell("hung_up", {"id": id})

        connection.open(on_data, on_closed)
        # From now on: it may have ended before pytest has heard of it.
        self._watched[id] = connection
        connection.watch_end(lambda: self._on_ended(id))

    def _on_ended(self, id: int) -> None:
        connection = self._watched.pop(id, None)
        if connection is not None:
            connection.read()
            connection.unwatch_end()
            self._tell("died", {"id": id})


class RemoteConnection:
    """Pytest's side of one connection (`facets.Connection`)."""

    def __init__(
        self,
        loop: Loop,
        tell: Tell,
        id: int,
        *,
        pid: int,
        start_time: int,
        above: Sequence[int],
        clock_offset_s: float,
    ) -> None:
        self.pid = pid
        self.start_time = start_time
        self.clock_offset_s = clock_offset_s
        self.is_closed = False
        self._loop = loop
        self._tell = tell
        self._id = id
        self._above = above
        self._has_ended = False
        self._on_data: Callable[[bytes], None] = lambda _: None
        self._on_closed: Callable[[], None] = lambda: None
        self._on_ended: Callable[[], None] = lambda: None

    def ancestors(self) -> Sequence[int]:
        return self._above

    def open(self, on_data: Callable[[bytes], None], on_closed: Callable[[], None]) -> None:
        self._on_data, self._on_closed = on_data, on_closed

    def read(self) -> None:
        """Nothing waits here: what was said arrives before the news of an end."""

    def send(self, data: bytes) -> None:
        if not self.is_closed:
            self._tell("order", {"id": self._id, "data": data.decode(ENCODING)})

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._tell("hang_up", {"id": self._id})

    def watch_end(self, on_ended: Callable[[], None]) -> None:
        self._on_ended = on_ended
        if self._has_ended:
            self._loop.call_soon(self._say_that_it_ended)

    def has_ended(self) -> bool:
        return self._has_ended

    def unwatch_end(self) -> None:
        self._on_ended = lambda: None

    def _say_that_it_ended(self) -> None:
        self._on_ended()

    def hear(self, event: str, told: JsonObject) -> None:
        """Take what the agent says of it."""
        match event:
            case "said" if not self.is_closed:
                self._on_data(told["data"].encode(ENCODING))
            case "hung_up" if not self.is_closed:
                self.is_closed = True
                self._on_closed()
            case "died":
                self._has_ended = True
                self._say_that_it_ended()


class RemoteReporters:
    """`Reporters` of all machines together."""

    def __init__(self, loop: Loop, machines: Callable[[], Sequence[Machine]]) -> None:
        self._loop = loop
        self._machines = machines
        # The offset that a connection began with is kept for all that it states.
        self._errors: dict[Machine, list[tuple[float, float]]] = {}
        self._path = ""
        self._on_connection: Callable[[Connection], None] | None = None
        self._connections: dict[tuple[Machine, int], RemoteConnection] = {}

    def listen(self, path: str, on_connection: Callable[[Connection], None]) -> Callable[[], None]:
        """Have all agents listen; one run at a time."""
        self._path, self._on_connection = path, on_connection
        self._errors.clear()
        for machine in self._machines():
            machine.tell("listen", {"path": path})
        return lambda: self._stop(path)

    def hear(self, machine: Machine, event: str, told: JsonObject) -> bool:
        """Take what an agent says of connections; False when it speaks of something else."""
        key = (machine, told.get("id", 0))
        match event:
            case "reporter":
                connection = RemoteConnection(
                    self._loop,
                    machine.tell,
                    told["id"],
                    pid=machine.pid_here(told["pid"]),
                    start_time=told["start_time"],
                    above=[machine.pid_here(pid) for pid in told["ancestors"]],
                    clock_offset_s=machine.clock_offset_s,
                )
                self._errors.setdefault(machine, []).append(
                    (machine.clock_error_s, self._loop.now())
                )
                if self._on_connection is not None:
                    self._connections[key] = connection
                    self._on_connection(connection)
            case "said" | "hung_up" | "died":
                if key in self._connections:
                    self._connections[key].hear(event, told)
            case _:
                return False
        return True

    def clock_error_s(self, machine: Machine) -> float:
        """Return by how much times may be off that a machine has stated since we listen."""
        now = self._loop.now()
        errors = self._errors.get(machine, ())
        return max((error_s + DRIFT * (now - at) for error_s, at in errors), default=0.0)

    def _stop(self, path: str) -> None:
        if path == self._path:
            self._path, self._on_connection = "", None
            self._connections.clear()
            for machine in self._machines():
                machine.tell("unlisten", {"path": path})
