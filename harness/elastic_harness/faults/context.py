"""What a fault needs from the world to be injected, proven and undone.

Faults are written as generators: they take the values of operations, which are futures, and yield
what else they wait for:

    def inject(self, context, targets, *, id):
        yield from context.cluster.power_cut("n2")      # the cluster has answered, or it raises
        yield IN_FORCE                                  # from here on it acts
        yield Until(lambda: "n2" not in context.cluster.nodes, 5.0, "n2 is still up")
        return Evidence(text="n2 is gone")              # what proves that it acted

So every wait has a deadline and a sentence, the same code runs in the runner's single-threaded loop
and under a test's virtual time, and no fault needs a thread.
"""

from __future__ import annotations

import enum
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from elastic_harness.cluster.cluster import Cluster, having
from elastic_harness.cluster.facets import Strangers
from elastic_harness.cluster.process import ProcessRef, is_running
from elastic_harness.faults.evidence import Evidence
from elastic_harness.faults.layers import (
    ClockLayers,
    DiskLayers,
    LimitLayers,
    LinkLayers,
    NameLayers,
    StopLayers,
)
from elastic_harness.future import Future, Scheduler, Sleep, Until, Within, within
from elastic_harness.future import Wait as Waiting
from elastic_harness.observe.ends import ProcessEnds
from elastic_harness.scenario.planning.seed import Seed
from elastic_harness.toxiproxy.stream import Direction, Toxic
from pytest_elastic.errors import ElasticError

__all__ = [
    "IN_FORCE",
    "PROOF_S",
    "Evidence",
    "FaultContext",
    "FaultImpossible",
    "HealOrdered",
    "InForce",
    "Launchers",
    "Probes",
    "Proved",
    "Proxies",
    "Sleep",
    "Steps",
    "Until",
    "Wait",
    "Waits",
    "Within",
    "wait_for_proof",
    "within",
]

T = TypeVar("T")

# A job that has not met a fault within this time is not bothered by it: agents of any launcher in
# use beat every 5 s or more often, and checkpoints are written every so many steps.
PROOF_S: Final = 30.0
_LOOK_S: Final = 0.1


class FaultImpossible(ElasticError):
    """A fault could not be injected, or did not do what it is for."""


class HealOrdered(Exception):
    """Thrown into a fault that is to be healed before it was proven: the last chance to look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proved:
    """The fault was seen to act; its steps go on until it is healed, or there is nothing to do."""

    evidence: Evidence | str


class InForce(enum.Enum):
    """The fault acts from now on.

    `NEEDS_JOB`: only the running job can show that it does, so that no rank is held for the proof.
    """

    NOW = "now"
    NEEDS_JOB = "needs job"


IN_FORCE: Final = InForce.NOW

# What a fault yields: waits, and what it says of itself.
Wait: TypeAlias = Waiting | Proved | InForce
Waits: TypeAlias = Generator[Wait, None, T]
Steps: TypeAlias = Generator[Wait, None, Evidence | str]


class Launchers(Protocol):
    """What the run has started on its nodes."""

    def start_node(self, node: str, *, keep_disk: bool) -> Future[None]:
        """Start a node and its launcher; done once the launcher runs."""

    def launcher_of(self, node: str) -> ProcessRef | None:
        """Return the node's launcher while it runs."""

    def store_endpoint(self, which: str) -> tuple[str, int] | None:
        """Return node and port of the store of the "rendezvous", or of the newest "workers"."""

    def run_command(self, node: str, argv: Sequence[str], *, name: str) -> Future[int]:
        """Run a command on a node, for the entry `name`; the answer is its exit code."""

    def end_commands(self, name: str) -> None:
        """Kill what still runs for the entry `name`."""


class Probes(Protocol):
    """What rides in each worker."""

    def enter_again(self, node: str) -> None:
        """Have a node's workers enter their working folder by its path, where an overlay may be."""

    def order(self, process: ProcessRef, order: Mapping[str, Any]) -> bool:
        """Send an order to a worker's probe, done in its step hook; False when it has no probe.

        `by` in the order is the entry that gives it.
        """

    def answer_of(self, process: ProcessRef, by: str) -> Mapping[str, Any]:
        """Return what a worker's probe last said of an order by that entry: act, phase, detail."""

    def steps_of(self, process: ProcessRef) -> int:
        """Return how many steps that very worker has completed, as far as the probe can tell."""


class Proxies(Protocol):
    """The proxies of the run."""

    def add_toxic(self, owner: str, proxy: str, toxic: Toxic) -> Future[None]:
        """Add a toxic to a proxy of the run."""

    def remove_toxics(self, owner: str) -> Future[None]:
        """Remove the toxics of `owner`; harmless when there are none."""

    def switch(self, owner: str, proxy: str, *, enabled: bool) -> Future[None]:
        """Have a proxy accept connections, or close all it has and refuse new ones.

        Of several owners the last one holds; done once it is so.
        """

    def unswitch(self, owner: str) -> Future[None]:
        """Take that back; harmless when `owner` has switched nothing."""

    def is_on(self, proxy: str) -> bool:
        """Tell whether a proxy accepts connections."""

    def toxic_met(self, proxy: str, toxic: str, way: Direction) -> int:
        """Return how often connections had something for a toxic since it was added."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultContext:
    """The cluster, what is the run's own, and the layers that its faults have laid over both.

    Nothing here waits. `patience` multiplies every time that is waited for something to be seen;
    `directory` is the run's folder, `data_folders` are those whose files are the job's, the
    checkpoint directory first.
    """

    cluster: Cluster
    scheduler: Scheduler
    seed: Seed
    launchers: Launchers
    probes: Probes
    ends: ProcessEnds
    proxies: Proxies
    links: LinkLayers
    names: NameLayers
    limits: LimitLayers
    disks: DiskLayers
    clocks: ClockLayers
    stops: StopLayers
    directory: str = ""
    data_folders: Sequence[str] = ()
    patience: float = 1.0

    @property
    def strangers(self) -> Strangers:
        """Connections from nodes that are no part of the job."""
        return having(self.cluster.strangers, self.cluster.capabilities["node_sockets"])

    def now(self) -> float:
        """Return the time, in seconds on the runner's clock."""
        return self.scheduler.now()

    def chance(self, name: str) -> Random:
        """Return the run's source of chance for `name`: for one seed, always the same draws."""
        return self.seed.stream(name)

    # What faults of users called before there was `cluster` here; for one release.

    def signal(self, process: ProcessRef, signum: int) -> bool:
        """Send a signal; False when that very process has ended."""
        _warn("context.signal(...)", "yield from context.cluster.signal(...)")
        return self.cluster.signal(process, signum).result()

    def is_alive(self, process: ProcessRef) -> bool:
        """Tell whether that very process still runs."""
        _warn("context.is_alive(...)", "Until(context.ends.of(...), ...)")
        return is_running(self.cluster.state(process).result())


def _warn(old: str, new: str) -> None:
    warnings.warn(
        f"`{old}` goes with the next release: write `{new}` (docs/faults.md)",
        DeprecationWarning,
        stacklevel=3,
    )


def wait_for_proof(
    context: FaultContext,
    look: Callable[[], Waits[T]],
    *,
    within_s: float = PROOF_S,
    slowest_look_s: float = _LOOK_S,
) -> Waits[T | None]:
    """Look every 0.1 s until there is something to see; returns it, None after `within_s`.

    Where looking costs much, looks come further and further apart, up to `slowest_look_s`.

    `look` is called with the fault in force, which only the running job can show, and returns
    something true once it has been seen to act. When the fault is to be healed before that, it is
    called once more. `within_s` is in seconds, and the run's patience multiplies it.
    """
    yield InForce.NEEDS_JOB
    deadline = context.now() + within_s * context.patience
    pause_s, is_last = _LOOK_S, False
    while not is_last and context.now() < deadline:
        try:
            yield Sleep(seconds=pause_s)
        except HealOrdered:
            is_last = True
        pause_s = min(1.5 * pause_s, slowest_look_s)
        if seen := (yield from look()):
            return seen
    return None
