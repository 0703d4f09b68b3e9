"""Which samples the training used, epoch by epoch, by the last execution of each step."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from statistics import median_high, mode
from typing import Literal

from elastic_harness.history.checkers.registry import Parameters, checker
from elastic_harness.history.checkers.training import NO_GLOBAL_STEP, forgotten
from elastic_harness.history.events import SamplesDrawn, SamplesUnseen
from elastic_harness.history.history import Entry, History
from elastic_harness.history.verdict import Verdict, invalid, unknown, valid
from elastic_harness.history.worlds import WorkerView, World

__all__ = ["epochs", "samples", "samples_by_epoch"]

_REPORT = (
    "`elastic_harness.observe.report_samples(indices, epoch=epoch, size=size)` before each step "
    "says which they are"
)
_NOT_OBSERVED = (
    "no samples were seen. Those that a DataLoader takes from a dataset with indices are, where a "
    f"clause asks for them; for any other, {_REPORT}"
)
_UNSEEN = {
    "iterable": "an IterableDataset has no indices",
    "indices": "its sampler gives no numbers",
    "alike": "two loaders take turns that look alike (kind and length of dataset, and sampler)",
    "order": "with in_order=False batches come in another order than they are drawn",
}
_SHOWN_PROOF = 8
_NO_EPOCH = (
    "its sampler keeps no `epoch`, and a process that resumes does not show which one it goes on "
    "with: `loader.sampler.epoch = epoch` before each epoch says it, or a sampler with `set_epoch`"
)


class SamplesParameters(Parameters):
    """`samples: {each_epoch: exactly_once}`.

    `padding: allowed` forgives the samples that a DistributedSampler repeats so that all ranks have
    equally many (where the number of ranks changes, one less than there are); a number forgives so
    many in each epoch. `dropped: 8` forgives as many samples that `drop_last` leaves out of each
    epoch. A last epoch that is not complete is unknown, because a script may stop there on purpose:
    `last_epoch: may_be_cut` says that it may, `complete` that it may not. `loader` chooses among
    several data loaders by a part of its name; without it, the one that most steps used is judged.
    """

    each_epoch: Literal["exactly_once", "at_least_once", "at_most_once"]
    padding: Literal["allowed", "forbidden"] | int = "forbidden"
    dropped: int = 0
    last_epoch: Literal["complete", "may_be_cut"] | None = None
    loader: str | None = None

    def model_post_init(self, context: object) -> None:
        if self.dropped < 0 or (isinstance(self.padding, int) and self.padding < 0):
            raise ValueError("padding and dropped are numbers of samples: 0 or more is expected")


class EpochsParameters(Parameters):
    """`epochs: 3`: so many complete epochs, and nothing beyond.

    `dropped` and `loader` are those of `samples`.
    """

    exactly: int
    dropped: int = 0
    loader: str | None = None

    def model_post_init(self, context: object) -> None:
        if self.exactly < 1 or self.dropped < 0:
            raise ValueError("one epoch or more is expected, and 0 dropped samples or more")


class _NotKnown(Exception):
    """What was used cannot be told; the text is the reason."""


@dataclass(slots=True, kw_only=True)
class _Epochs:
    """What was used of one data loader's samples; `begins_late`: by a job that was resumed.

    `padding` is the most that a DistributedSampler repeats of an epoch, `per_step` what all ranks
    use for one step.
    """

    loader: str
    size: int
    padding: int
    per_step: int
    begins_late: bool
    uses: dict[int, Counter[int]]
    proof: dict[int, list[Entry[SamplesDrawn]]]

    @property
    def first(self) -> int:
        return min(self.uses)

    @property
    def last(self) -> int:
        return max(self.uses)

    @property
    def skipped(self) -> list[int]:
        """The epochs of which nothing was used, between others."""
        return [each for each in range(self.first, self.last) if each not in self.uses]

    def missing(self, epoch: int) -> list[int]:
        """Return the samples that an epoch has not used."""
        return [sample for sample in range(self.size) if sample not in self.uses[epoch]]

    def last_proof(self, epoch: int) -> list[int]:
        """Return the last records of an epoch: as many as a person reads."""
        return [each.seq for each in self.proof[epoch]][-_SHOWN_PROOF:]

    def told(self) -> str:
        """Say what was seen of each epoch, those alike in one."""
        groups: list[tuple[int, int, str]] = []
        for epoch in sorted(self.uses):
            used, extra = len(self.uses[epoch]), self.uses[epoch].total() - len(self.uses[epoch])
            text = f"all {self.size} samples" if used == self.size else f"{used} of {self.size}"
            text += f", {extra} of them again" if extra else ""
            if groups and groups[-1][2] == text and groups[-1][1] == epoch - 1:
                groups[-1] = (groups[-1][0], epoch, text)
            else:
                groups.append((epoch, epoch, text))
        return "; ".join(
            f"epoch {first}: {text}" if first == last else f"epochs {first} to {last}: {text}"
            for first, last, text in groups
        )


@checker("samples", SamplesParameters, shorthand="each_epoch", observes=("samples",))
def samples(history: History, asked: SamplesParameters) -> Verdict:
    """Each sample of an epoch is used as often as asked, by the last execution of each step."""
    try:
        found = _epochs_of(history, asked.loader)
    except _NotKnown as reason:
        return unknown(str(reason))
    for epoch in sorted(found.uses):
        if asked.each_epoch != "at_least_once":
            repeated = _find_repeated(found, epoch, asked)
            if repeated is not None:
                return repeated
    if asked.each_epoch == "at_most_once":
        return valid(f"no sample twice: {found.told()}")
    if found.skipped:
        return invalid(f"epoch {_first(found.skipped)} was skipped: {found.told()}")
    cut: list[str] = []
    for epoch in sorted(found.uses):
        missing = found.missing(epoch)
        if len(missing) <= asked.dropped:
            continue
        said = f"epoch {epoch} never used {len(missing)} of {found.size} samples"
        if epoch == found.first and found.begins_late:
            cut.append(f"{said}, and the job began in the middle of it")
        elif epoch == found.last and asked.last_epoch is None:
            cut.append(
                f"{said}: it was the last one, and it is not known whether the script was to end "
                "there (`last_epoch: may_be_cut`, or `complete`)"
            )
        elif epoch != found.last or asked.last_epoch == "complete":
            return invalid(
                f"{said}, first {_first(missing)} ({found.told()})", found.last_proof(epoch)
            )
    if cut:
        return unknown(f"{cut[0]} ({found.told()})")
    return valid(f"{asked.each_epoch.replace('_', ' ')}: {found.told()}")


def _find_repeated(found: _Epochs, epoch: int, asked: SamplesParameters) -> Verdict | None:
    counts = found.uses[epoch]
    repeated = sorted(sample for sample, count in counts.items() if count > 1)
    allowed = asked.padding if isinstance(asked.padding, int) else 0
    if asked.padding == "allowed":
        allowed = found.padding
    if sum(counts[sample] - 1 for sample in repeated) <= allowed:
        return None
    said = f"epoch {epoch} used {len(repeated)} samples more than once, first {_first(repeated)}"
    times = set(counts.values())
    if len(repeated) == found.size and len(times) == 1 and len(found.uses) == 1:
        said += f" (all of them {times.pop()} times: does the script call set_epoch?)"
    proof = [each.seq for each in found.proof[epoch] if _uses(each, repeated[0])]
    return invalid(f"{said} ({found.told()})", proof)


@checker("epochs", EpochsParameters, shorthand="exactly", observes=("samples",))
def epochs(history: History, asked: EpochsParameters) -> Verdict:
    """The job used so many complete epochs of its samples, and nothing beyond."""
    try:
        found = _epochs_of(history, asked.loader)
    except _NotKnown as reason:
        return unknown(str(reason))
    if found.begins_late:
        return unknown(f"the job began after its first step: {found.told()}")
    complete = [each for each in found.uses if len(found.missing(each)) <= asked.dropped]
    # What fills up a last step is no more of an epoch; what was gone through again is.
    most = min(found.per_step, found.size - 1)
    again = [each for each, uses in found.uses.items() if uses.total() - len(uses) > most]
    if len(complete) == len(found.uses) == asked.exactly and not found.skipped and not again:
        return valid(found.told())
    said = f", and epoch {_first(again)} was gone through again" if again else ""
    return invalid(
        f"{len(complete)} complete epochs, {asked.exactly} were expected{said} ({found.told()})",
        found.last_proof(found.last),
    )


def samples_by_epoch(history: History) -> tuple[int, dict[int, Counter[int]]] | str:
    """Return the size of the training's data set, and how often each epoch used each sample.

    Steps that a restart rolled back do not count. Where it cannot be told, a text says why.
    """
    try:
        found = _epochs_of(history, None)
    except _NotKnown as reason:
        return str(reason)
    return found.size, found.uses


# --- what was used -------------------------------------------------------------------------------


def _epochs_of(history: History, wanted: str | None) -> _Epochs:
    """Return what was used of each epoch; raises _NotKnown."""
    loader, drawn = _of_one_loader(history, wanted)
    workers = _workers_of(history, drawn)
    for _, worker in workers.values():
        if worker.dropped:
            raise _NotKnown(f"{worker.dropped} reports of rank {worker.rank} were lost")
    sizes = {entry.event.size for entry in drawn if entry.event.size is not None}
    if not sizes or any(entry.event.epoch is None for entry in drawn):
        raise _NotKnown(f"the epoch or the size of {loader} is not known: {_REPORT}")
    if len(sizes) > 1:
        told = ", ".join(map(str, sorted(sizes)))
        raise _NotKnown(f"the size of {loader} is not known: the job told {told}")
    first = min(world.ordinal for world, _ in workers.values())
    resumed = [
        worker.resumed_at_step for world, worker in workers.values() if world.ordinal == first
    ]
    counting = {entry.event.pid for entry in drawn if entry.event.epoch_source == "counted"}
    for world, worker in (workers[pid] for pid in counting):
        start = worker.resumed_at_step
        if start != 0 and (start is not None or world.ordinal != first):
            raise _NotKnown(f"the epoch of {loader} is not known: {_NO_EPOCH}")
    uses: dict[int, Counter[int]] = defaultdict(Counter)
    proof: dict[int, list[Entry[SamplesDrawn]]] = defaultdict(list)
    for entry, batches in _used(drawn, _last_executions(history, drawn, workers), workers):
        assert entry.event.epoch is not None, "looked for above"
        proof[entry.event.epoch].append(entry)
        for batch in batches:
            uses[entry.event.epoch].update(batch)
    size = sizes.pop()
    worlds = {world.world_size for world, _ in workers.values()}
    ranks = max(worlds)
    usual = median_high(sum(map(len, entry.event.batches)) for entry in drawn)
    return _Epochs(
        loader=loader,
        size=size,
        padding=-size % ranks if len(worlds) == 1 else ranks - 1,
        per_step=ranks * usual,
        begins_late=any(resumed),
        uses={epoch: counts for epoch, counts in uses.items() if counts},
        proof=proof,
    )


def _of_one_loader(history: History, wanted: str | None) -> tuple[str, list[Entry[SamplesDrawn]]]:
    """Return the training's loader, and what was drawn of it.

    That is the one that most steps used, if none is named; of those that the script itself reports,
    if it reports any: it knows which one the training is.
    """
    drawn = history.of_kind(SamplesDrawn)
    reported = [entry for entry in drawn if entry.event.epoch_source == "script"]
    unseen = {
        entry.event.loader: entry.event.reason
        for entry in history.of_kind(SamplesUnseen)
        if (wanted or "") in entry.event.loader
    }
    if wanted is None and reported:
        drawn = reported
    elif unseen:
        loader, reason = min(unseen.items())
        also = " (`loader` says which one is meant, if it is another)" if drawn else ""
        raise _NotKnown(
            f"the samples of {loader} cannot be seen, since {_UNSEEN.get(reason, reason)}: "
            f"{_REPORT}{also}"
        )
    if not drawn:
        raise _NotKnown(_NOT_OBSERVED)
    counts = Counter(entry.event.loader for entry in drawn)
    name = max(
        (name for name in counts if (wanted or "") in name), key=counts.__getitem__, default=None
    )
    if name is None:
        raise _NotKnown(f"no data loader is called {wanted!r}: there are {', '.join(counts)}")
    return name, [entry for entry in drawn if entry.event.loader == name]


def _workers_of(
    history: History, drawn: Iterable[Entry[SamplesDrawn]]
) -> dict[int, tuple[World, WorkerView]]:
    found: dict[int, tuple[World, WorkerView]] = {}
    for entry in drawn:
        worker = history.worlds.worker_of(entry.event.pid)
        if worker is None:
            raise _NotKnown(
                f"samples were drawn by a process ({entry.event.pid}) that is no worker"
            )
        found[entry.event.pid] = worker
    return found


def _last_executions(
    history: History,
    drawn: list[Entry[SamplesDrawn]],
    workers: dict[int, tuple[World, WorkerView]],
) -> list[Entry[SamplesDrawn]]:
    """Leave out what a later round rolled back: all steps after the one that it resumed at."""
    resumed: dict[int, int] = {}
    stepped = [
        (world, worker)
        for world in history.worlds.rounds
        for worker in world.workers.values()
        if worker.steps
    ]
    if len({world.ordinal for world, _ in stepped}) < 2:
        return drawn  # then nothing was rolled back, whatever the steps are called
    if (unsure := forgotten(history)) is not None:
        raise _NotKnown(unsure.reason)
    for world, worker in stepped:
        start = worker.resumed_at_step
        if start is None:
            raise _NotKnown(NO_GLOBAL_STEP)
        resumed[world.ordinal] = min(start, resumed.get(world.ordinal, start))
    kept = []
    seen: dict[int, int] = {worker.pid: worker.last_step or 0 for _, worker in stepped}
    for entry in drawn:
        world, worker = workers[entry.event.pid]
        step = _step_of(entry.event, worker)
        seen[worker.pid] = max(step, seen.get(worker.pid, step))
        if all(step <= at for ordinal, at in resumed.items() if ordinal > world.ordinal):
            kept.append(entry)
    for world, worker in workers.values():
        later = [at for ordinal, at in resumed.items() if ordinal > world.ordinal]
        furthest = max(seen[each.pid] for each in world.workers.values() if each.pid in seen)
        # It was killed with what it was about to say.
        if later and seen[worker.pid] < later[0] <= furthest:
            raise _NotKnown(
                f"rank {worker.rank} of round {world.ordinal} was last seen at step "
                f"{seen[worker.pid]}, and the job went on from step {later[0]}"
            )
    return kept


def _step_of(event: SamplesDrawn, worker: WorkerView) -> int:
    """Return the global step that samples were used for.

    Before the script's first report its step is not known at once, but from that report.
    """
    if event.step is not None:
        return event.step
    known = next((step for step in worker.steps if step.step is not None), None)
    start = worker.resumed_at_step
    if known is None or start is None or known.step != start + known.count:
        raise _NotKnown(NO_GLOBAL_STEP)
    return start + event.count


def _used(
    drawn: list[Entry[SamplesDrawn]],
    kept: list[Entry[SamplesDrawn]],
    workers: dict[int, tuple[World, WorkerView]],
) -> Iterator[tuple[Entry[SamplesDrawn], tuple[tuple[int, ...], ...]]]:
    """Yield what was kept with the batches that were used.

    Before its first step a process that resumes may draw what it leaves out, to get to its place.
    """
    numbers: Counter[tuple[int, int]] = Counter()
    for entry in drawn:
        numbers[entry.event.pid, entry.event.count] += len(entry.event.batches)
    usual = mode(numbers.values())
    left_out = {pid: number - usual for (pid, count), number in numbers.items() if count == 1}
    for entry in kept:
        batches, pid = entry.event.batches, entry.event.pid
        if entry.event.count == 1 and left_out[pid] > 0:
            worker = workers[pid][1]
            if not worker.resumed_at_step:
                raise _NotKnown(
                    f"rank {worker.rank} drew {left_out[pid]} batches more before its first step "
                    f"than a step uses, and had nothing to leave out: {_REPORT}"
                )
            batches = batches[left_out[pid] :]
            left_out[pid] -= len(entry.event.batches)
        yield entry, batches


def _uses(entry: Entry[SamplesDrawn], sample: int) -> bool:
    return any(sample in batch for batch in entry.event.batches)


def _first(values: list[int]) -> str:
    return ", ".join(map(str, values[:5])) + (" ..." if len(values) > 5 else "")
