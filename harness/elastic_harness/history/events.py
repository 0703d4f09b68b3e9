"""The facts a harness states about a run, beside those the launcher states about itself.

They share `Event` and `Record` with `pytest_elastic.events.model`, so that one history holds both
in one order. `Record.source` is "worker" for what the probe saw, "cluster" for nodes and processes,
"fault" for what was injected, "engine" for the run itself. Process ids are the global ones, as seen
outside the cluster, unless a name says `node_pid`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from pytest_elastic.events.model import Event

__all__ = [
    "HISTORY_FORMAT",
    "ClauseJudged",
    "ClausePlanned",
    "ClockCompared",
    "FaultEffective",
    "FaultFired",
    "FaultHealed",
    "FaultIneffective",
    "FaultPlanned",
    "FileWritten",
    "FilesUnseen",
    "GroupFormed",
    "HarnessFailed",
    "LastLinesSeen",
    "LogMatched",
    "NodeStarted",
    "NodeStopped",
    "OutputRead",
    "ParametersHashed",
    "PoliciesSpread",
    "ProcessExited",
    "ProcessStarted",
    "PythonTestFailed",
    "RankHeld",
    "RankReleased",
    "ReferenceObserved",
    "ResumeObserved",
    "RunClosed",
    "RunEnded",
    "RunStarted",
    "SamplesDrawn",
    "SamplesUnseen",
    "StackSeen",
    "StepCompleted",
    "SurvivorFound",
    "SurvivorsSought",
    "SwitchDropped",
    "WorkerEnded",
    "WorkerFinished",
    "WorkerGone",
    "WorkerHello",
    "WorkerRaised",
    "WriterHeld",
]

# Counts up when a history of before can no longer be judged: 2 says what was planned and judged.
HISTORY_FORMAT: Final = 2


class WorkerHello(Event):
    """A worker said hello, before its script's first line.

    `round` is what our launcher names in the environment, None under launchers that do not.
    `start_time` is the kernel's (clock ticks since boot): with `pid` it names a process for good.
    `alive_before` lists pids of earlier rounds' workers of the same node that were still alive.
    `local_world_size` and `group_world_size` are workers of its node, and nodes, as it was told.
    """

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
    local_world_size: int | None = None
    group_world_size: int | None = None


class GroupFormed(Event):
    """A worker's default process group exists.

    `nonce` was written into the group's store by whichever rank came first: workers with one nonce
    are one world, under any launcher.
    """

    pid: int
    rank: int
    world_size: int
    nonce: str


class StepCompleted(Event):
    """An optimizer step ended.

    `count` is from 1 in each process; `step` is the global step, or None where it cannot be known
    (`step_source`: "state", "parameters", "script", "log" or "process"). `began_at` is when the
    step's work began: the end of the step before, or the hello. `learning_rate` is the optimizer's,
    of its first group, where it was asked for. `parameters` is a digest of some of what the step
    has left, where an optimizer counts no steps: a worker that begins with the same ones goes on
    from there.
    """

    pid: int
    rank: int
    count: int
    step: int | None
    step_source: str
    began_at: float
    learning_rate: float | None = None
    parameters: str | None = None


class RankHeld(Event):
    """A worker waits in its step hook until the fault pinned to that step has fired."""

    pid: int
    rank: int
    step: int


class RankReleased(Event):
    """A held worker goes on."""

    pid: int
    rank: int
    step: int


class ResumeObserved(Event):
    """A worker said where it resumes: at its first step, or before it.

    `step` steps were already done (0 when it starts afresh), by the state of its primary optimizer,
    by the parameters that it began with, or by the script's own report. A later one of the same
    worker is better known; None takes an earlier one back: what was said since contradicts it.
    `parameters` is a digest of those that it began with, where they tell the step: then steps are
    counted from where the run began.
    """

    pid: int
    rank: int
    step: int | None
    parameters: str | None = None


class SamplesDrawn(Event):
    """What one DataLoader handed to the script between two steps, on request.

    `count` and `step` are those of the step that followed. `loader` names the loader so that it
    is the same one after a restart, `size` is its dataset's length (None where it has none).
    `epoch` is what the sampler says (`epoch_source` is "sampler"), or the script ("script", maybe
    None), or how often the loader was gone through before in this process ("counted").
    `batches` holds the indices of each batch.
    """

    pid: int
    rank: int
    count: int
    step: int | None
    loader: str
    size: int | None
    epoch: int | None
    batches: tuple[tuple[int, ...], ...]
    epoch_source: str = "sampler"


class SamplesUnseen(Event):
    """A data loader is used whose samples cannot be seen.

    `reason` is "iterable" (an IterableDataset has no indices), "indices" (they are no numbers),
    "alike" (two loaders of this name take turns), or "order" (with `in_order=False` samples arrive
    in another order than they are asked for).
    """

    pid: int
    rank: int
    loader: str
    reason: str


class ParametersHashed(Event):
    """What a worker's training ended with, on request, taken when its process ended normally.

    `digest` is SHA-256 over the primary optimizer's parameters (None: there is none, for `reason`);
    `optimizer` is one over its state and its settings. `norm` and `sketch` say how far two that
    differ are apart: the squared differences of two sketches add up to the squared distance, about.
    `norms` are those of the sketch's blocks of tensors, which take turns in it.
    `sharded` names what of it ("parameters", "optimizer") is divided among the ranks. `random` are
    digests of the states of random numbers (torch, cuda, python, numpy). `losses` are the scalars
    that `backward()` was called on in the last steps of this process, the newest last (None: nan or
    inf).
    """

    pid: int
    rank: int
    step: int | None
    digest: str | None
    reason: str = ""
    norm: float | None = None
    norms: tuple[float, ...] = ()
    sketch: tuple[float, ...] = ()
    is_finite: bool = True
    optimizer: str | None = None
    optimizer_is_finite: bool = True
    optimizer_norm: float | None = None
    optimizer_norms: tuple[float, ...] = ()
    optimizer_sketch: tuple[float, ...] = ()
    lr: tuple[float, ...] = ()
    sharded: tuple[str, ...] = ()
    random: Mapping[str, str] = msgspec.field(default_factory=dict)
    losses: tuple[float | None, ...] = ()


class ReferenceObserved(Event):
    """What the same job ended with when nothing disturbed it: told before the run itself.

    `step` is the last global step (None: not known); `states` is what each rank's
    `ParametersHashed` said, by rank.
    """

    world_size: int
    step: int | None
    states: tuple[Mapping[str, Any], ...]


class WorkerFinished(Event):
    """A worker's interpreter is going down by itself (atexit).

    `dropped` is how many of its records were lost, because they were not read in time.
    """

    pid: int
    rank: int
    dropped: int = 0


class WorkerGone(Event):
    """A worker that had said hello is dead, by its pidfd."""

    pid: int
    rank: int


class WorkerEnded(Event):
    """How a worker that is gone has ended; negative: by that signal.

    The kernel tells it (from Linux 6.15), once the worker's parent has taken note of the end, or
    its launcher states it. Else there is no such record.
    """

    pid: int
    rank: int
    exit_code: int


class WorkerRaised(Event):
    """An uncaught exception ended a worker's main thread, or another one (`thread`).

    `error` is the exception's class; `frames` are where it came by, innermost first
    ("/path/train.py:88 in save"), at most twenty.
    """

    pid: int
    rank: int
    error: str
    message: str
    frames: tuple[str, ...] = ()
    thread: str = ""


class LastLinesSeen(Event):
    """What the worker that failed first had printed last, as far as its node's logs can tell.

    `file` is the log, relative to the node's folder. Where workers share one, `lines` may be those
    of another worker of the node.
    """

    pid: int
    rank: int
    file: str
    lines: tuple[str, ...]


class StackSeen(Event):
    """Where a living worker stood when a run ended that hung.

    `frames` are its main thread's, innermost first ("/path/train.py:88 in save"), `others` those of
    its other threads. `source` is the line of the script that it was in. Where there are no
    frames, `reason` says why.
    """

    pid: int
    rank: int
    frames: tuple[str, ...] = ()
    others: tuple[tuple[str, ...], ...] = ()
    source: str = ""
    reason: str = ""


class NodeStarted(Event):
    """A node is up. `incarnation` counts starts of this name from 1."""

    address: str
    incarnation: int


class NodeStopped(Event):
    """A node is gone: `cause` is power_cut, crash, left, preempted or teardown."""

    cause: str


class ProcessStarted(Event):
    """A process was started on a node by the harness; `role` is launcher or auxiliary."""

    pid: int
    role: str
    argv: tuple[str, ...]


class ProcessExited(Event):
    """A process that the harness started ended (`exit_code` negative: by that signal)."""

    pid: int
    role: str
    exit_code: int


class SurvivorFound(Event):
    """A process outlived its launcher; looked for inside the node before teardown."""

    pid: int
    command: str


class ClockCompared(Event):
    """Times that were stated on a node, whose machine has a clock of its own, are off by this much.

    At most: they are translated, and `error_s` bounds what that does not know.
    """

    error_s: float


class PoliciesSpread(Event):
    """Links of several machines changed at moments that differ by this much at most.

    From the order to the last acknowledgement, of the order that took longest.
    """

    within_s: float


class SwitchDropped(Event):
    """The switch lost packets, or kept them back, by its own doing: the run cannot be judged."""

    packets: int


class LogMatched(Event):
    """A line of a launcher's or worker's output matched a pattern the scenario waits for.

    `by` is launcher, worker, a worker's rank ("rank 3"), or nothing where that is not known.
    `was_there`: it had been written before the pattern was asked for, at an unknown time.
    """

    pattern: str
    line: str
    by: str = ""
    was_there: bool = False


class OutputRead(Event):
    """How much of the output was read for the patterns that were asked for, near a run's end.

    `unread` are the files of which some was not, with the reason if there is one: that a line was
    not seen in them says nothing. `left_out` counts, by pattern, matching lines that are not in the
    history because others of the same node and source are.
    """

    unread: tuple[str, ...]
    left_out: Mapping[str, int] = msgspec.field(default_factory=dict)


class FileWritten(Event):
    """A file below the checkpoint directory was written, by any process of the job.

    `path` is relative to that directory; `how` is written (its writer has closed it) or moved
    (it was given this name); `size` is in bytes, None where it is gone again.
    """

    path: str
    how: str
    size: int | None


class FilesUnseen(Event):
    """From now on files may be written that no `FileWritten` tells of, for this reason."""

    reason: str


class WriterHeld(Event):
    """A process of a node is held in the middle of a write: half of it is in `file`.

    `pattern` and `path` are those of the trigger; `file` is below the overlaid path.
    """

    pattern: str
    path: str | None
    file: str


class FaultFired(Event):
    """A fault was injected: `targets` are the selectors' outcome at that moment (sorted text).

    The same for programs: `nodes` and `workers` (node, rank, pid) are those that it hits itself,
    not the nodes of such workers; `links` are (source, target). What kind of fault it is, its
    class has declared: `pauses` (processes stand still, and finish what they were about to do once
    it is healed), `disturbs` (False for one that only looks), `may_end_launchers` (nodes whose
    launcher's exit code says nothing about the job, unless the fault is healed before).
    """

    id: str
    fault: str
    targets: tuple[str, ...]
    parameters: Mapping[str, Any] = msgspec.field(default_factory=dict)
    nodes: tuple[str, ...] = ()
    workers: tuple[tuple[str, int, int], ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    pauses: bool = False
    disturbs: bool = True
    may_end_launchers: tuple[str, ...] = ()


class FaultEffective(Event):
    """A fault was seen to have done what it is for; `facts` is what `evidence` rests on."""

    id: str
    evidence: str
    facts: Mapping[str, Any] = msgspec.field(default_factory=dict)


class FaultIneffective(Event):
    """A fault did nothing, or could not be injected; `is_optional`: no check depends on it."""

    id: str
    reason: str
    is_optional: bool = False


class FaultHealed(Event):
    """A fault was undone; `by` is schedule, action or teardown."""

    id: str
    by: str


class RunStarted(Event):
    """The first record of a history: what is run, with which seed and settings.

    `settings` are `log_patterns`, the lines that were watched for; `gives_max_restarts`, which
    tells whether the launcher was given `max_restarts` by the option that torchrun has for it; and
    `counts_by_node`, whether it counts the restarts of each node.
    `format` is `HISTORY_FORMAT` of the version that wrote it (0: a version before there was one).
    """

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
    settings: Mapping[str, Any] = msgspec.field(default_factory=dict)
    format: int = 0


class FaultPlanned(Event):
    """A fault is to be injected; no check depends on one that `is_optional`."""

    id: str
    fault: str
    is_optional: bool = False


class ClausePlanned(Event):
    """Something is to hold, and will be judged.

    `key` is its place: `finally[0]`, `default[2]`, `crash-check[0]`. With a `checker` it is judged
    by the whole history, else by what a later `ClauseJudged` says. `expected` is what the checker
    is given, as a scenario file has it; `is_negated`: the clause wants the opposite. `log` is the
    pattern of a line that is waited for, if it is one, and `event` the kind of an event.
    """

    key: str
    bucket: str
    text: str
    checker: str = ""
    expected: Any = None
    is_negated: bool = False
    is_optional: bool = False
    log: str = ""
    event: str = ""


class ClauseJudged(Event):
    """What was found of a clause while the job ran: `outcome` is valid, invalid or unknown.

    `proof` are the numbers of the records that show it. A key that was never planned is something
    that a test has waited for: the test itself knows what to make of it.
    """

    key: str
    text: str
    outcome: str
    reason: str
    proof: tuple[int, ...] = ()


class PythonTestFailed(Event):
    """The test that made the run has failed by itself: an assertion of its own, an error."""

    test: str
    reason: str


class HarnessFailed(Event):
    """Something went wrong in the harness itself, so that the run cannot be trusted."""

    what: str


class SurvivorsSought(Event):
    """The processes of these nodes, whose launchers had ended, were looked through."""

    nodes: tuple[str, ...]


class RunEnded(Event):
    """The run is decided; what comes later is the teardown's doing, or says how things just stood.

    `outcome` is succeeded, failed or drained; or limit (it ran too long), unmet (a clause could not
    be met any more), stopped (its test has ended it) or aborted (the harness could not go on, or a
    fault's code crashed).
    `ended_by_faults` are the nodes whose launcher a fault has ended, so that its end says nothing.
    `planned` is how many clauses and faults had been planned.
    """

    outcome: str
    reason: str = ""
    exit_codes: Mapping[str, int] = msgspec.field(default_factory=dict)
    ended_by_faults: tuple[str, ...] = ()
    planned: int | None = None


class RunClosed(Event):
    """Everything is undone, and nothing more can happen: a history without this is cut off.

    `digest` is the SHA-256 of all lines before, so that a file that was changed since is noticed.
    """

    digest: str
