"""The facts a harness states about a run, beside those the launcher states about itself.

They share `Event` and `Record` with `pytest_elastic.events.model`, so that one history holds both
in one order. `Record.source` is "worker" for what the probe saw, "cluster" for nodes and processes,
"fault" for what was injected, "engine" for the run itself. Process ids are the global ones, as seen
outside the cluster, unless a name says `node_pid`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pytest_elastic.events.model import Event, register

__all__ = [
    "ExpectationMet",
    "FaultEffective",
    "FaultFired",
    "FaultHealed",
    "FaultIneffective",
    "GroupFormed",
    "LogMatched",
    "NodeStarted",
    "NodeStopped",
    "ParametersHashed",
    "ProcessExited",
    "ProcessStarted",
    "RankHeld",
    "RankReleased",
    "ReferenceObserved",
    "ResumeObserved",
    "RunEnded",
    "RunStarted",
    "SamplesDrawn",
    "SamplesUnseen",
    "StepCompleted",
    "SurvivorFound",
    "SwitchDropped",
    "WorkerFinished",
    "WorkerGone",
    "WorkerHello",
]


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerHello(Event):
    """A worker said hello, before its script's first line.

    `round` is what our launcher names in the environment, None under launchers that do not.
    `start_time` is the kernel's (clock ticks since boot): with `pid` it names a process for good.
    `alive_before` lists pids of earlier rounds' workers of the same node that were still alive.
    """

    kind: ClassVar[str] = "worker_hello"
    pid: int
    start_time: int
    rank: int
    local_rank: int
    group_rank: int | None
    world_size: int
    restart_count: int | None
    max_restarts: int | None
    master_addr: str
    master_port: int
    run_id: str
    round: int | None
    argv: tuple[str, ...] = ()
    alive_before: tuple[int, ...] = ()


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFormed(Event):
    """A worker's default process group exists.

    `nonce` was written into the group's store by whichever rank came first: workers with one nonce
    are one world, under any launcher.
    """

    kind: ClassVar[str] = "group_formed"
    pid: int
    rank: int
    world_size: int
    nonce: str


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class StepCompleted(Event):
    """An optimizer step ended.

    `count` is from 1 in each process; `step` is the global step, or None where it cannot be known
    (`step_source`: "state", "script", "log" or "process"). `began_at` is when the step's work
    began: the end of the step before, or the hello.
    """

    kind: ClassVar[str] = "step_completed"
    pid: int
    rank: int
    count: int
    step: int | None
    step_source: str
    began_at: float


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class RankHeld(Event):
    """A worker waits in its step hook until the fault pinned to that step has fired."""

    kind: ClassVar[str] = "rank_held"
    pid: int
    rank: int
    step: int


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class RankReleased(Event):
    """A held worker goes on."""

    kind: ClassVar[str] = "rank_released"
    pid: int
    rank: int
    step: int


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeObserved(Event):
    """A worker said where it resumes: at its first step, or before it.

    `step` steps were already done (0 when it starts afresh), by the state of its primary optimizer
    or by the script's own report. A later one of the same worker is better known; None takes an
    earlier one back: what was said since contradicts it.
    """

    kind: ClassVar[str] = "resume_observed"
    pid: int
    rank: int
    step: int | None


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class SamplesDrawn(Event):
    """What one DataLoader handed to the script between two steps, on request.

    `count` and `step` are those of the step that followed. `loader` names the loader so that it
    is the same one after a restart, `size` is its dataset's length (None where it has none).
    `epoch` is what the sampler says (`epoch_source` is "sampler"), or the script ("script", maybe
    None), or how often the loader was gone through before in this process ("counted").
    `batches` holds the indices of each batch.
    """

    kind: ClassVar[str] = "samples_drawn"
    pid: int
    rank: int
    count: int
    step: int | None
    loader: str
    size: int | None
    epoch: int | None
    batches: tuple[tuple[int, ...], ...]
    epoch_source: str = "sampler"


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class SamplesUnseen(Event):
    """A data loader is used whose samples cannot be seen.

    `reason` is "iterable" (an IterableDataset has no indices), "indices" (they are no numbers), or
    "order" (with `in_order=False` they arrive in another order than they are asked for).
    """

    kind: ClassVar[str] = "samples_unseen"
    pid: int
    rank: int
    loader: str
    reason: str


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class ParametersHashed(Event):
    """What a worker's training ended with, on request, taken when its process ended normally.

    `digest` is SHA-256 over the primary optimizer's parameters (None: there is none, for `reason`);
    `optimizer` is one over its state and its settings. `norm` and `sketch` say how far two that
    differ are apart: the squared differences of two sketches add up to the squared distance, about.
    `sharded` names what of it ("parameters", "optimizer") is divided among the ranks. `random` are
    digests of the states of random numbers (torch, cuda, python, numpy).
    """

    kind: ClassVar[str] = "parameters_hashed"
    pid: int
    rank: int
    step: int | None
    digest: str | None
    reason: str = ""
    norm: float | None = None
    sketch: tuple[float, ...] = ()
    is_finite: bool = True
    optimizer: str | None = None
    optimizer_norm: float | None = None
    optimizer_sketch: tuple[float, ...] = ()
    lr: tuple[float, ...] = ()
    sharded: tuple[str, ...] = ()
    random: Mapping[str, str] = field(default_factory=dict)


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceObserved(Event):
    """What the same job ended with when nothing disturbed it: told before the run itself.

    `step` is the last global step (None: not known); `states` is what each rank's
    `ParametersHashed` said, by rank.
    """

    kind: ClassVar[str] = "reference_observed"
    world_size: int
    step: int | None
    states: tuple[Mapping[str, Any], ...]


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFinished(Event):
    """A worker's interpreter is going down by itself (atexit).

    `dropped` is how much of what it had to say was lost, because nobody listened.
    """

    kind: ClassVar[str] = "worker_finished"
    pid: int
    rank: int
    dropped: int = 0


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerGone(Event):
    """A worker that had said hello is dead, by its pidfd."""

    kind: ClassVar[str] = "worker_gone"
    pid: int
    rank: int


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStarted(Event):
    """A node is up. `incarnation` counts starts of this name from 1."""

    kind: ClassVar[str] = "node_started"
    address: str
    incarnation: int


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStopped(Event):
    """A node is gone: `cause` is power_cut, crash, left, preempted or teardown."""

    kind: ClassVar[str] = "node_stopped"
    cause: str


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStarted(Event):
    """A process was started on a node by the harness; `role` is launcher or auxiliary."""

    kind: ClassVar[str] = "process_started"
    pid: int
    role: str
    argv: tuple[str, ...]


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessExited(Event):
    """A process that the harness started ended (`exit_code` negative: by that signal)."""

    kind: ClassVar[str] = "process_exited"
    pid: int
    role: str
    exit_code: int


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class SurvivorFound(Event):
    """A process outlived its launcher; looked for inside the node before teardown."""

    kind: ClassVar[str] = "survivor_found"
    pid: int
    command: str


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchDropped(Event):
    """The switch lost packets by its own doing: the run cannot be judged."""

    kind: ClassVar[str] = "switch_dropped"
    packets: int


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class LogMatched(Event):
    """A line of a launcher's or worker's output matched a pattern the scenario waits for.

    `by` is launcher, worker, a worker's rank ("rank 3"), or nothing where that is not known.
    """

    kind: ClassVar[str] = "log_matched"
    pattern: str
    line: str
    by: str = ""


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class FaultFired(Event):
    """A fault was injected: `targets` are the selectors' outcome at that moment (sorted text)."""

    kind: ClassVar[str] = "fault_fired"
    id: str
    fault: str
    targets: tuple[str, ...]
    parameters: Mapping[str, Any] = field(default_factory=dict)


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class FaultEffective(Event):
    """A fault was seen to have done what it is for."""

    kind: ClassVar[str] = "fault_effective"
    id: str
    evidence: str


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class FaultIneffective(Event):
    """A fault did nothing, or could not be injected; `is_optional`: nobody depends on it."""

    kind: ClassVar[str] = "fault_ineffective"
    id: str
    reason: str
    is_optional: bool = False


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class FaultHealed(Event):
    """A fault was undone; `by` is schedule, action or teardown."""

    kind: ClassVar[str] = "fault_healed"
    id: str
    by: str


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(Event):
    """The first record of a history: what is run, with which seed and settings."""

    kind: ClassVar[str] = "run_started"
    scenario: str
    seed: int
    launcher: str
    cluster: str
    nodes_initial: int
    nodes_min: int
    nodes_max: int
    nproc_per_node: int
    max_restarts: int
    limit_s: float
    settings: Mapping[str, Any] = field(default_factory=dict)


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectationMet(Event):
    """A clause of `expect` was seen to hold."""

    kind: ClassVar[str] = "expectation_met"
    clause: str


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded(Event):
    """The last record before teardown: `outcome` is succeeded, failed, drained or limit.

    `ended_by_faults` are the nodes whose launcher a fault has ended, so that its end says nothing.
    """

    kind: ClassVar[str] = "run_ended"
    outcome: str
    exit_codes: Mapping[str, int] = field(default_factory=dict)
    ended_by_faults: tuple[str, ...] = ()
