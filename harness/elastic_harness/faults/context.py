"""What a fault needs from the world to be injected, proven and undone.

Faults are written as generators. They call operations of a `FaultContext`, none of which waits, and
yield what they wait for:

    def inject(self, context, targets):
        done = context.power_cut("n2")
        yield Settled(done, within_s=5)                 # the cluster has answered
        yield IN_FORCE                                  # from here on it acts
        yield Until(lambda: not context.is_node_up("n2"), within_s=5, otherwise="n2 is still up")
        return Evidence(text="n2 is gone")              # what proves that it acted

So every wait has a deadline and a sentence, the same code runs in the runner's single-threaded loop
and under a test's virtual time, and no fault needs a thread.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final, Protocol

from elastic_harness.faults.evidence import Evidence
from elastic_harness.faults.links.visits import Visits
from elastic_harness.faults.nodes.resource_context import Resources
from elastic_harness.faults.ticket import FaultImpossible, Ticket
from elastic_harness.network.link_model import LinkCounters, LinkPolicy, Pair
from elastic_harness.network.names import NameChange
from elastic_harness.scenario.engine.situation import ProcessRef
from elastic_harness.toxiproxy.stream import Direction, Toxic

__all__ = [
    "IN_FORCE",
    "Evidence",
    "FaultContext",
    "FaultImpossible",
    "HealOrdered",
    "InForce",
    "Proved",
    "Settled",
    "Sleep",
    "Steps",
    "Ticket",
    "Until",
    "Wait",
]


class HealOrdered(Exception):
    """Thrown into a fault that is to be healed before it was proven: the last chance to look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Until:
    """Wait for a condition; when it does not come true in time, `otherwise` says what is wrong.

    What can only be said then is a function, called once.
    """

    condition: Callable[[], bool]
    within_s: float
    otherwise: str | Callable[[], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """Wait for an operation's answer; its error, or silence, ends the fault."""

    ticket: Ticket[Any]
    within_s: float
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sleep:
    """Let time pass: a notice, a stagger."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Proved:
    """The fault was seen to act; its steps go on until it is healed, or there is nothing to do."""

    evidence: Evidence | str


class InForce(enum.Enum):
    """The fault acts from now on.

    `NEEDS_JOB`: only the running job can show that it does, so that nobody is held for the proof.
    """

    NOW = "now"
    NEEDS_JOB = "needs job"


IN_FORCE: Final = InForce.NOW

Wait = Until | Settled | Sleep | Proved | InForce
Steps = Generator[Wait, None, Evidence | str]


class FaultContext(Protocol):
    """The world, as far as faults may touch it. Nothing here waits; pids are the global ones."""

    @property
    def patience(self) -> float:
        """What multiplies every time that is waited for something to be seen."""

    def now(self) -> float:
        """Return the time, in seconds on the runner's clock."""

    def chance(self, name: str) -> Random:
        """Return the run's source of chance for `name`: for one seed, always the same draws."""

    # --- processes

    def signal(self, process: ProcessRef, signum: int) -> bool:
        """Send a signal; False when that very process has ended."""

    def stop(self, owner: str, node: str, process: ProcessRef) -> bool:
        """Stop a process of a node by SIGSTOP; False when that very process has ended."""

    def stopped_by(self, node: str, process: ProcessRef) -> tuple[str, ...]:
        """Return which faults stop a process of a node, or pause the node."""

    def let_go_on(self, owner: str) -> None:
        """Continue the processes that `owner` has stopped and nobody else; harmless twice."""

    def is_alive(self, process: ProcessRef) -> bool:
        """Tell whether that very process still runs (a zombie does not)."""

    def process_state(self, process: ProcessRef) -> str:
        """Return the letter of /proc/PID/stat; "" when it has ended."""

    def watch_end(self, process: ProcessRef) -> bool:
        """Take note of how a process ends; False when that very process has ended already."""

    def exit_code_of(self, process: ProcessRef) -> int | None:
        """Return how a watched process has ended, negative: by that signal; None: nothing tells."""

    def order_worker(self, process: ProcessRef, order: Mapping[str, Any]) -> bool:
        """Send an order to a worker's probe, done in its step hook; False when it has no probe.

        `by` in the order is the entry that gives it.
        """

    def answer_of(self, process: ProcessRef, by: str) -> Mapping[str, Any]:
        """Return what a worker's probe last said of an order by that entry: act, phase, detail."""

    def steps_of(self, process: ProcessRef) -> int:
        """Return how many steps that very worker has completed, as far as the probe can tell."""

    def launcher_of(self, node: str) -> ProcessRef | None:
        """Return the node's launcher while it runs."""

    def run_command(self, node: str, argv: Sequence[str], *, name: str) -> Ticket[int]:
        """Run a command on a node, for the entry `name`; the answer is its exit code."""

    def end_commands(self, name: str) -> None:
        """Kill what still runs for the entry `name`."""

    def store_endpoint(self, which: str) -> tuple[str, int] | None:
        """Return node and port of the store of the "rendezvous", or of the newest "workers"."""

    # --- what nodes have of resources

    @property
    def resources(self) -> Resources:
        """Processor, memory, files and disks of nodes."""

    # --- nodes

    def is_node_up(self, node: str) -> bool:
        """Tell whether a node runs."""

    def crash_node(self, node: str) -> Ticket[None]:
        """End all processes of a node; its sockets close."""

    def power_cut(self, node: str) -> Ticket[None]:
        """End a node in silence."""

    def start_node(self, node: str, *, keep_disk: bool) -> Ticket[None]:
        """Start a node and its launcher; settled once the launcher runs."""

    def pause_node(self, owner: str, node: str) -> Ticket[None]:
        """Freeze every process of a node."""

    def resume_node(self, owner: str, node: str) -> Ticket[None]:
        """Let a frozen node go on, unless another owner has paused it too; harmless twice."""

    # --- links

    def impose(
        self,
        owner: str,
        pairs: Sequence[Pair],
        policy: LinkPolicy,
        *,
        traffic: str | None = None,
    ) -> Ticket[None]:
        """Lay a policy over links, on top of what others have laid there.

        With `traffic` it is for one class of what passes there (`network.traffic`).
        """

    def lift(self, owner: str) -> Ticket[None]:
        """Take away what `owner` has laid over links; harmless when that is nothing."""

    def counters(self) -> Ticket[Mapping[Pair, LinkCounters]]:
        """Read what links have done."""

    def capture(self, owner: str, pairs: Sequence[Pair]) -> Ticket[str]:
        """Write what passes over links into a file of the run; settled with its path."""

    def captured(self, owner: str) -> Ticket[int]:
        """Return how many packets the capture of `owner` has, all of them in its file."""

    def end_capture(self, owner: str) -> Ticket[int]:
        """End a capture; harmless when there is none."""

    # --- strangers

    def send_strangers(
        self, owner: str, node: str, at: tuple[str, int], words: bytes, *, connections: int
    ) -> None:
        """Open connections from `node` to a node and port; each says `words`, and stays open."""

    def visits(self, owner: str) -> Visits:
        """Return what has become of the connections of `owner` so far."""

    def send_strangers_away(self, owner: str) -> None:
        """Close the connections of `owner`; harmless when there are none."""

    # --- names

    def change_names(
        self, owner: str, node: str, changes: Mapping[str, NameChange]
    ) -> Ticket[Mapping[str, str]]:
        """Have a node take names for something else; settled with its table of hosts."""

    def restore_names(self, owner: str) -> Ticket[None]:
        """Undo what `owner` did to names; harmless when that is nothing."""

    def names_asked(self, node: str) -> Ticket[Mapping[str, Mapping[str, int]]]:
        """Return how often a node asked for which changed name, by whose change it is."""

    # --- proxies

    def add_toxic(self, owner: str, proxy: str, toxic: Toxic) -> Ticket[None]:
        """Add a toxic to a proxy of the run."""

    def remove_toxics(self, owner: str) -> Ticket[None]:
        """Remove the toxics of `owner`; harmless when there are none."""

    def switch_proxy(self, owner: str, proxy: str, *, enabled: bool) -> Ticket[None]:
        """Have a proxy of the run accept connections, or close all it has and refuse new ones.

        Of several owners the last one holds; settled once it is so.
        """

    def unswitch_proxy(self, owner: str) -> Ticket[None]:
        """Take that back; harmless when `owner` has switched nothing."""

    def is_proxy_on(self, proxy: str) -> bool:
        """Tell whether a proxy accepts connections."""

    def toxic_met(self, proxy: str, toxic: str, way: Direction) -> int:
        """Return how often connections had something for a toxic since it was added."""
