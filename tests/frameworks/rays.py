"""Three machines with a Ray on them, and a fourth without one: namespaces of this machine."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from elastic_harness.cluster import process_table

from tests.machines import NETWORK, Machine, Network, wait_for_end
from tests.plugin.place import Called, Place

__all__ = ["ADDRESS", "Rays", "rays_on_machines"]

ADDRESS = f"{NETWORK}.1:6379"
_RAY = (sys.executable, "-m", "ray.scripts.scripts")
_STARTED = ("--object-store-memory=80000000", "--disable-usage-stats")
# Otherwise a worker that nobody has asked for may stay, if the first job ends before it is there.
_ENVIRON = "RAY_prestart_worker_first_driver=0"
_HEAD = ("--head", "--port=6379", "--include-dashboard=false", "--include-log-monitor=false")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rays:
    """The machines; `own` is what Ray itself has started on them."""

    network: Network
    folder: str
    own: frozenset[int]

    @property
    def head(self) -> Machine:
        """The machine where Ray's head is."""
        return self.network.machines[0]

    @property
    def outside(self) -> Machine:
        """The machine without a raylet."""
        return self.network.machines[3]

    def command(self, place: Place, *arguments: str, on: Machine | None = None) -> list[str]:
        """Return the command that calls pytest on a machine, for tests in a folder."""
        called = (sys.executable, "-m", "pytest", "--elastic-cluster=ray", *arguments)
        return (on or self.head).enter("env", "-C", str(place.folder), *called)

    def pytest(
        self,
        place: Place,
        *arguments: str,
        on: Machine | None = None,
        address: str = f"--elastic-ray={ADDRESS}",
    ) -> Called:
        """Call pytest on a machine, with all machines of Ray."""
        given = (address,) if address else ()
        return place.call(self.command(place, *given, *arguments, on=on))

    def check_refused(
        self,
        place: Place,
        message: str,
        *arguments: str,
        on: Machine | None = None,
        address: str = f"--elastic-ray={ADDRESS}",
    ) -> None:
        """Check that pytest ends with one error, before anything runs."""
        place.add("test_it.py", "def test_it(elastic_job): print('it ran')")
        called = self.pytest(place, *arguments, on=on, address=address)
        assert called.code == pytest.ExitCode.USAGE_ERROR, called.out
        assert message in called.out
        assert "Traceback" not in called.out
        assert "it ran" not in called.out

    def left(self) -> list[process_table.ProcessRow]:
        """Return what runs on the machines and belongs to no Ray."""
        rows = self.network.rows()
        parents = {row.pid: row.ppid for row in rows}

        def is_rays(pid: int) -> bool:
            return pid in self.own or (pid in parents and is_rays(parents[pid]))

        return [row for row in rows if not is_rays(row.pid)]

    def check_clean(self) -> None:
        """Wait until nothing of ours runs on any machine."""
        wait_for_end(self.left, within_s=30.0)

    def start_head(self, number: int, *, cpus: int, path: str = "") -> None:
        """Start a head on a machine; `path` is a folder with another Ray than the installed one."""
        start = (*_RAY, "start", *_HEAD, f"--temp-dir={self.folder}")
        self._run(number, *start, *_node(number), *_STARTED, f"--num-cpus={cpus}", path=path)

    def join(self, number: int, *, cpus: int, more: tuple[str, ...] = ()) -> None:
        """Add a machine to the Ray of the first."""
        start = (*_RAY, "start", f"--address={ADDRESS}", *more)
        self._run(number, *start, *_node(number), *_STARTED, f"--num-cpus={cpus}")

    def stop(self, number: int, *, path: str = "") -> None:
        """Stop the Ray of a machine."""
        self._run(number, *_RAY, "stop", "--force", path=path)

    def _run(self, number: int, *command: str, path: str = "") -> None:
        more = (f"PYTHONPATH={path}",) if path else ()
        self.network.machines[number - 1].run("env", _ENVIRON, *more, *command)


@contextlib.contextmanager
def rays_on_machines(*, cpus: int) -> Iterator[Rays]:
    """Make the machines, each with so many processors for Ray; all is gone at the end.

    The second has two "slots" too, the third one, and the label zone=b.

    Ray keeps its files in a folder of each machine, whose path has to be short.
    """
    folder = tempfile.mkdtemp(prefix="er-")
    mounts = (f"mount -t tmpfs none {path}" for path in (folder, "/dev/shm"))
    network = Network(4, prepare="; ".join(mounts))
    try:
        starting = Rays(network=network, folder=folder, own=frozenset())
        starting.start_head(1, cpus=cpus)
        starting.join(2, cpus=cpus, more=('--resources={"slots": 2}',))
        starting.join(3, cpus=cpus, more=('--resources={"slots": 1}', "--labels=zone=b"))
        own = frozenset(row.pid for row in network.rows())
        yield Rays(network=network, folder=folder, own=own)
    finally:
        network.end()
        os.rmdir(folder)


def _node(number: int) -> tuple[str, ...]:
    """Return where a raylet is to listen."""
    return (f"--node-ip-address={NETWORK}.{number}",)
