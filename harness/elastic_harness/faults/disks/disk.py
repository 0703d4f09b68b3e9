"""Faults of what a node sees below one path: full, read-only, failing, slow."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Annotated, ClassVar, Final, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator

from elastic_harness.cluster.disks.policy import DiskPolicy
from elastic_harness.faults.context import (
    Evidence,
    FaultContext,
    FaultImpossible,
    Steps,
    Waits,
    wait_for_proof,
)
from elastic_harness.faults.disks.job_directories import outside_of_the_job
from elastic_harness.faults.nodes.node import NodeFault, names_of, read_each
from elastic_harness.finding import Finding
from elastic_harness.scenario.actions import CheckedScenario
from elastic_harness.scenario.engine.situation import Targets
from elastic_harness.scenario.fields import Listed, Seconds, Size, format_size, parse_rate

__all__ = ["DiskError", "DiskFull", "DiskReadOnly", "DiskSlow"]

_LONGEST_S: Final = 60.0


def _directory(value: str | None) -> str | None:
    if value is not None and (not value.startswith("/") or value.rstrip("/") == ""):
        raise ValueError(
            f"{value!r} is no directory of a node: an absolute path below / is expected, or none "
            "for the checkpoint directory"
        )
    if value is not None and ".." in value.split("/"):
        raise ValueError(f"{value!r} leads out of where it begins: write the path itself")
    return value


def _to_bytes_a_second(value: object) -> object:
    """Read 100kB/s, 100kB and, as rates of links are written, 10mbit; else it is no size."""
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            return format_size(int(parse_rate(value) / 8))
        return value.removesuffix("/s").rstrip()
    return value


def _not_empty(value: tuple[str, ...]) -> tuple[str, ...]:
    # `min_length` would say this of a list with a wrong item, too.
    if not value:
        raise ValueError("at least 1 item is expected: write, read or sync")
    return value


_Operation = Literal["write", "read", "sync"]
_Operations = Annotated[
    Listed[_Operation],
    AfterValidator(_not_empty),
    BeforeValidator(lambda value: (value,) if isinstance(value, str) else value),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": list(get_args(_Operation))},
                {"type": "array", "items": {"enum": list(get_args(_Operation))}, "minItems": 1},
            ]
        }
    ),
]
_BytesASecond = Annotated[
    Size,
    BeforeValidator(_to_bytes_a_second),
    WithJsonSchema(
        {"type": "string", "pattern": r"^\d+(\.\d+)? ?(([kMG]|[KMG]i)?B(/s)?|[kmg]?bit(/s)?)$"}
    ),
]


class _DiskFault(NodeFault):
    """What happens below `path` on a node: the checkpoint directory if none is named."""

    layer = "resource"
    capability = "disk_faults"
    may_end_launchers: ClassVar[bool] = False
    is_healable: ClassVar[bool] = True
    _counter: ClassVar[str]
    _done: ClassVar[str]

    path: Annotated[str | None, AfterValidator(_directory)] = None

    def findings(self, scenario: CheckedScenario) -> Iterator[Finding]:
        yield from super().findings(scenario)
        yield from outside_of_the_job(scenario, "path", self.path)

    def policy(self) -> DiskPolicy:
        """Return what is laid over the path."""
        raise NotImplementedError

    def inject(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        for node in targets.nodes:
            yield from context.disks.set(id, node.name, self.path, self.policy())
        acted = yield from wait_for_proof(context, lambda: self._count(context, targets, id))
        if not acted:
            raise FaultImpossible(
                f"in force, but no operation was {self._done} on {names_of(targets.nodes)}"
            )
        counted = ", ".join(f"{node} {number}" for node, number in acted.items())
        return Evidence(text=f"operations {self._done}: {counted}", facts={self._counter: acted})

    def heal(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        for node in targets.nodes:
            yield from context.disks.set(id, node.name, self.path, None)
        return f"the disk of {names_of(targets.nodes)} as before"

    def _count(self, context: FaultContext, targets: Targets, owner: str) -> Waits[dict[str, int]]:
        """Return how many operations this policy has acted on, by node."""
        nodes = [node.name for node in targets.nodes]
        count = partial(context.disks.count, path=self.path)
        found = yield from read_each(context, nodes, count)
        acted = {node: each.by_owner.get(owner, {}) for node, each in found.items()}
        return {n: number for n, each in acted.items() if (number := each.get(self._counter, 0))}


class DiskFull(_DiskFault):
    """Writing below a path of a node ends with ENOSPC, once `free` more bytes have been written.

    Names can still be made and files be cut, as on most disks that are full: an old checkpoint that
    is opened for writing is lost. What is open already is not affected. Stands for a disk or quota
    that is used up. Does not stand for: a disk that is out of inodes; other nodes see the same
    files, and can write.
    """

    name = "disk_full"
    proof = "writes were refused with ENOSPC by this policy"
    _counter = "refused_full"
    _done = "refused for lack of space"

    free: Size = 0

    def policy(self) -> DiskPolicy:
        return DiskPolicy(free_bytes=self.free)


class DiskReadOnly(_DiskFault):
    """Every change below a path of a node ends with EROFS; reading goes on.

    What is open already is not affected. Stands for a file system that the kernel remounted
    read-only after an error, a volume attached elsewhere. Does not stand for: permissions (EACCES).
    """

    name = "disk_read_only"
    proof = "changes were refused with EROFS by this policy"
    _counter = "refused_read_only"
    _done = "refused because the disk is read-only"

    def policy(self) -> DiskPolicy:
        return DiskPolicy(is_read_only=True)


class DiskError(_DiskFault):
    """Operations below a path of a node end with EIO: `on` is write, read or sync, or several.

    What is open already is not affected. Stands for a broken disk, a network file system whose
    server is gone. Does not stand for: data that is lost without an error (that is `corrupt`).
    """

    name = "disk_error"
    proof = "operations ended with EIO by this policy"
    _counter = "failed"
    _done = "failed"

    on: _Operations = ("write", "sync")

    def policy(self) -> DiskPolicy:
        return DiskPolicy(fails=tuple(self.on))


class DiskSlow(_DiskFault):
    """Each operation below a path of a node takes `latency` longer, and data passes at `rate`.

    A rate is written as for disks (100kB/s) or as for links (10mbit). One operation after the
    other, as on one disk. What is open already is not affected. Stands for a busy network file
    system, a throttled volume. Does not stand for: a cache that hides the first gigabytes, a slow
    machine.
    """

    name = "disk_slow"
    proof = "operations were delayed by this policy"
    _counter = "delayed"
    _done = "delayed"

    latency: Seconds = Field(default=0.0, le=_LONGEST_S)
    rate: _BytesASecond | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _does_something(self) -> DiskSlow:
        if not self.latency and self.rate is None:
            raise ValueError("`disk_slow` needs `latency` (per operation), `rate` (a second), both")
        return self

    def policy(self) -> DiskPolicy:
        return DiskPolicy(latency_s=self.latency, rate=self.rate)
