"""Faults of files that a job has written: torn, cut short, changed in one bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator

from elastic_harness.cluster.cluster import ClusterError
from elastic_harness.faults.context import IN_FORCE, Evidence, FaultContext, FaultImpossible, Steps
from elastic_harness.faults.disks.job_directories import outside_of_the_job
from elastic_harness.faults.fault import Fault
from elastic_harness.finding import Finding
from elastic_harness.scenario.actions import CheckedScenario
from elastic_harness.scenario.engine.situation import Situation, Targets
from elastic_harness.scenario.fields import Select
from elastic_harness.scenario.selectors import resolve_nodes

__all__ = ["CorruptFile"]


def _pattern(value: str) -> str:
    parts = value.split("/")
    if not value.strip("/") or ".." in parts:
        raise ValueError(
            f"{value!r} is no pattern for files of the job: write for example *.pt (in the "
            "checkpoint directory) or /tmp/disk/*.pt (on a node's own disk)"
        )
    return value


class CorruptFile(Fault):
    """The newest file that matches `file` is damaged: `how` is torn, truncate or flip.

    `file` is a pattern such as `*.pt`, relative to ELASTIC_CHECKPOINT_DIR, or absolute and on a
    disk of `node`, as it sees it. Only files of the job can be meant. `torn`: the second half is
    zeros, its size is right; `truncate`: the second half is missing; `flip`: one bit in the middle
    is the other one. Stands for a crash between write and flush, a file system
    that lost a tail, a disk that lies. Does not stand for: a write that fails while it is made
    (that is `disk_full` or `disk_error`).
    """

    name = "corrupt"
    layer = "resource"
    proof = "read back right after it was written: the bytes or the size differ from before"
    shorthand: ClassVar[str | None] = "file"
    sometimes_needs: ClassVar[str] = "shared_files (without `node`)"

    file: Annotated[str, AfterValidator(_pattern)]
    node: Select | None = None
    how: Literal["torn", "truncate", "flip"] = "torn"

    @property
    def needs(self) -> str | None:
        return "shared_files" if self.node is None else None

    def findings(self, scenario: CheckedScenario) -> Iterator[Finding]:
        yield from super().findings(scenario)
        yield from outside_of_the_job(scenario, "file", self.file)

    def resolve(self, situation: Situation, *, stream: str) -> Targets:
        if self.node is None:
            return Targets()
        return Targets(nodes=resolve_nodes(self.node, situation, stream=stream))

    def inject(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        done = []
        nodes: list[str | None] = [node.name for node in targets.nodes]
        for node in nodes or [None]:
            if node is not None and node not in context.cluster.nodes:
                raise FaultImpossible(f"{node} is not up any more")
            damaged = context.cluster.files.corrupt(
                self.file, self.how, folders=context.data_folders, node=node
            )
            try:
                done.append((yield from damaged))
            except ClusterError as error:
                raise FaultImpossible(error.message) from error
        yield IN_FORCE
        return Evidence(text="; ".join(done), facts={"damaged": done})
