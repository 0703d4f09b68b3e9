# ruff: noqa: INP001 (a folder of PYTHONPATH, not a package)
# ruff: noqa: ANN401 (torch's objects have no type where torch may not be imported)
"""Which samples a script is given by its data loaders; loaded only where that is asked for.

This stands between a DataLoader's iterator and its sampler. A *pass* is one walk through a sampler.
The indices of each batch are noted as the sampler gives them, and count when the script is given
the batch: loader processes fetch ahead. A pass in which no step is made is no training, if another
one of the same name goes on: a validation is such a pass. What belongs to which epoch is the
sampler's own word (`epoch`), or a count of the passes that were used.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # `import typing` alone would cost more than all of this file
if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Iterator
    from types import ModuleType
    from typing import Any

    from elastic_harness.observe.probe.elastic_probe_worker import Probe

else:
    from _collections import deque

__all__ = ["Loaders"]

# Batch sampler, shard of a rank, sampler, and what a framework puts between.
_MOST_SAMPLERS = 6
_ITERABLE = 1  # torch.utils.data._DatasetKind.Iterable


class _Pass:
    """One walk of one iterator through its sampler."""

    def __init__(
        self, iterator: Any, label: str, size: int | None, counted: int, before: _Pass | None
    ) -> None:
        self.walk = iterator._sampler_iter  # noqa: SLF001 (torch's own iterator)
        self.label, self.size, self.counted = label, size, counted
        self.is_over = False
        self.is_resumed = False  # another pass of the same name has given batches between its own
        self.began_at: int | None = None  # the steps that were made before its first batch
        self._sampler = iterator._index_sampler  # noqa: SLF001 (torch's own iterator)
        self.kept = _epoch_of(self._sampler)
        # Who does not shuffle need not say which epoch it is.
        is_unsaid = before is not None and before.kept == self.kept and self._is_in_order()
        self._first_epoch = self._last_epoch = None if is_unsaid else self.kept
        self._number = 0
        self._fetched: deque[tuple[Any, tuple[int | None, str]]] = deque()
        self._ahead: list[tuple[list[int], tuple[int | None, str]]] = []
        try:
            self._length = len(self._sampler)
        except TypeError:
            self._length = 0  # it may go on for ever, and count its epochs on the way

    def _is_in_order(self) -> bool:
        return any(getattr(s, "shuffle", None) is False for s in _samplers_below(self._sampler))

    def fetch(self, batch: Any) -> None:
        """Note what the sampler gave."""
        # Within its length a pass is of one epoch: some samplers count on with their last index.
        self._number += 1
        known: tuple[int | None, str] = (self._first_epoch, "sampler")
        if self._first_epoch is None:
            known = (self.counted, "counted")
        elif self._number > self._length:
            # Where the length is not known, the batch at which the count moves may be of both.
            epoch = _epoch_of(self._sampler)
            known = (epoch if epoch == self._last_epoch else None, "sampler")
            self._last_epoch = epoch
        self._fetched.append((batch, known))

    def hand_out(self, *, is_ahead: bool) -> list[tuple[list[int], tuple[int | None, str]]]:
        """Return what the script is given as its loader is asked for the next batch."""
        batch, epoch = self._fetched.popleft()
        given = [(_indices_of(batch), epoch)]
        if is_ahead:
            given, self._ahead = self._ahead, given
        return given

    def end(self) -> list[tuple[list[int], tuple[int | None, str]]]:
        """Return what is left to be given when the sampler has no more."""
        self.is_over = True
        given, self._ahead = self._ahead, []
        return given


class Loaders:
    """Follows every DataLoader of this process."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._newest: dict[str, _Pass] = {}
        self._giver: dict[str, _Pass] = {}
        self._unseen: set[str] = set()

    def watch(self, module: ModuleType) -> None:
        """Stand behind the iterators of `torch.utils.data.dataloader`."""
        from functools import wraps

        kind = module._BaseDataLoaderIter  # noqa: SLF001 (torch has no hook here)
        next_index, next_batch = kind._next_index, kind.__next__  # noqa: SLF001

        @wraps(next_index)
        def _next_index(iterator: Any) -> Any:
            current = self._begin(iterator)
            batch = next_index(iterator)
            if current is not None:
                try:
                    current.fetch(batch)
                except Exception:  # noqa: BLE001 (an `epoch` of the user's that raises)
                    self._do_not_see(current.label, "indices")
            return batch

        @wraps(next_batch)
        def __next__(iterator: Any) -> Any:  # noqa: N807 (takes its place)
            try:
                data = next_batch(iterator)
            except StopIteration:
                self._give(iterator, is_end=True)
                raise
            # Accelerate fetches one batch ahead of the one that it hands out.
            caller = sys._getframe(1).f_globals.get("__name__")  # noqa: SLF001
            self._give(iterator, is_ahead=caller == "accelerate.data_loader")
            return data

        kind._next_index, kind.__next__ = _next_index, __next__  # noqa: SLF001

    def _begin(self, iterator: Any) -> _Pass | None:
        """Return the pass that an iterator is on, maybe a new one; None where it is not seen."""
        try:
            current: _Pass | None = iterator.__dict__.get("_elastic_pass")
            if current is not None and current.walk is iterator._sampler_iter:  # noqa: SLF001
                return current
            label, size = _label_of(iterator)
            if (why := _why_unseen(iterator)) is not None:
                self._do_not_see(label, why)
                return None
            before, counted, whole = self._newest.get(label), 0, None
            if before is not None:
                # Neither a look at the first batches nor a validation is a pass of the training.
                is_used = self._is_used(before)
                if is_used and before.is_over:
                    whole = before
                else:
                    self._probe.forget_drawn(label)
                counted = before.counted + is_used
            current = _Pass(iterator, label, size, counted, whole)
            iterator.__dict__["_elastic_pass"] = self._newest[label] = current
        except Exception:  # noqa: BLE001 (never the reason why a loader fails)
            return None
        return current

    def _give(self, iterator: Any, *, is_ahead: bool = False, is_end: bool = False) -> None:
        """Note what the script has got."""
        current: _Pass | None = iterator.__dict__.get("_elastic_pass")
        if current is None:
            return
        try:
            given = current.end() if is_end else current.hand_out(is_ahead=is_ahead)
            if given:
                self._take_turn(current)
            newest = self._newest[current.label]
            if given and newest is not current and newest.is_over:
                # It was between two batches of this pass.
                if not self._is_used(newest):
                    self._probe.forget_drawn(current.label)
                self._newest[current.label] = current
            if given and current.began_at is None:
                current.began_at = self._probe.steps.count
            for batch, epoch in given:
                self._probe.drew(current.label, current.size, epoch, batch)
        except Exception:  # noqa: BLE001 (keys that are no numbers, for example)
            self._do_not_see(current.label, "indices")

    def _take_turn(self, current: _Pass) -> None:
        """Tell two loaders that are used in turns from a training and its validations.

        A validation is a new pass each time. Where each of two passes of one name goes on after
        the other one has given a batch, nothing tells which samples are whose.
        """
        before = self._giver.get(current.label, current)
        if before is not current and current.began_at is not None:
            current.is_resumed = True
            if before.is_resumed:
                self._do_not_see(current.label, "alike")
        self._giver[current.label] = current

    def _is_used(self, one: _Pass) -> bool:
        """Tell whether a step was made since the first batch of a pass."""
        return one.began_at not in (None, self._probe.steps.count)

    def _do_not_see(self, label: str, why: str) -> None:
        if label not in self._unseen:
            self._unseen.add(label)
            self._probe.did_not_see(label, why)


def _why_unseen(iterator: Any) -> str | None:
    if iterator._dataset_kind == _ITERABLE:  # noqa: SLF001 (torch's own iterator)
        return "iterable"
    if getattr(iterator, "_in_order", True) is False and iterator._num_workers > 1:  # noqa: SLF001
        return "order"
    return None


def _indices_of(batch: Any) -> list[int]:
    if hasattr(batch, "tolist"):
        batch = batch.tolist()
    return [int(each) for each in (batch if isinstance(batch, list | tuple) else [batch])]


def _epoch_of(index_sampler: Any) -> int | None:
    """Return the epoch that a sampler keeps, or one that it stands on."""
    for sampler in _samplers_below(index_sampler):
        epoch = getattr(sampler, "epoch", None)
        if isinstance(epoch, int):
            return epoch
    return None


def _samplers_below(sampler: Any) -> Iterator[Any]:
    """Yield a sampler, and those that it stands on: a shard of a rank, what skips batches, ..."""
    for _ in range(_MOST_SAMPLERS):
        yield sampler
        below = getattr(sampler, "sampler", None)
        if below is None:
            below = getattr(sampler, "batch_sampler", None)
        if below is None:
            return
        sampler = below


def _label_of(iterator: Any) -> tuple[str, int | None]:
    """Return a name of a loader that is the same after a restart, and its dataset's length."""
    dataset = iterator._dataset  # noqa: SLF001 (torch's own iterator)
    # The innermost: a loader that resumes in an epoch may have a sampler that skips batches on top.
    *_, sampler = _samplers_below(iterator._index_sampler)  # noqa: SLF001
    try:
        size = len(dataset)
    except TypeError:
        size = None
    return f"{type(dataset).__name__}[{size}] by {type(sampler).__name__}", size
