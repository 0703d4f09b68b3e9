"""`options:` of a job, as the launcher's own parser reads them.

A launcher that is a Python program names its parser (`Launcher.read_options`), which is asked here:
ours in this process, torchrun's in a child, once, where a job has options at all. What other
launchers refuse, they say themselves when the job starts.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from elastic_harness.finding import Finding
from elastic_harness.scenario.launchers import OURS, launcher_named
from elastic_harness.scenario.model import Job, Scenario
from pytest_elastic.errors import UsageError

__all__ = ["Reading", "check_options"]

# The words behind a launcher's own name.
CommandLine: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reading:
    """What a parser makes of a command line.

    `given` are its options by their longest names, `program` is the first word that is none, and
    `refusal` says why the line is refused, if it is.
    """

    given: frozenset[str] = frozenset()
    program: str = ""
    refusal: UsageError | None = None


OptionReader: TypeAlias = Callable[[Sequence[CommandLine]], Sequence[Reading]]

# What a scenario says itself, and where; or the harness.
_SAID_ELSEWHERE: Final[Mapping[str, str]] = {
    "--nnodes": "`nodes: {min: …, max: …}`",
    "--nproc-per-node": "`nproc_per_node`",
    "--max-restarts": "`max_restarts`",
    "--rdzv-backend": "`rdzv: {backend: …}`",
    "--rdzv-conf": "`rdzv: {conf: …}`",
    "--rdzv-endpoint": "`rdzv: {store_host: …}`, or `endpoints`,",
    "--rdzv-id": "the harness, for each run,",
    "--local-addr": "the harness, for each node,",
    "--standalone": "`nodes`",
    "--module": "`module`",
    "--no-python": "`command`",
    "--help": "pytest-elastic run --help",
}
# All nodes are given the same options, and these have to differ.
_OF_ONE_NODE: Final = frozenset({"--node-name", "--node-rank"})
# What the harness says itself where lines are told apart by who printed them.
_OF_APART: Final = frozenset({"--log-dir", "--tee"})


def check_options(scenario: Scenario) -> Iterator[Finding]:
    """Yield options that the job's launcher refuses, or that the scenario says elsewhere.

    A job that pins no launcher is checked for ours.
    """
    job = scenario.job
    try:
        launcher = launcher_named(OURS if job.launcher is None else job.launcher)
    except UsageError:
        return  # which `check_launch` says
    if not launcher.read_options:
        return
    # Both know the same backends: those of packages, too.
    meeting = (f"--rdzv-backend={job.rdzv.backend}", "--rdzv-endpoint=n1", "any")
    (found,) = _ask(launcher_named(OURS).read_options, (("--no-python", *meeting),))
    if found.refusal is not None:
        yield Finding(found.refusal.message, ("job", "rdzv", "backend"), found.refusal.hint)
    if not job.options:
        return
    # Where a line is refused for the first time as the whole one is, that word is to blame.
    program = _program(job)
    lines = [(*job.options[:count], *program) for count in range(len(job.options) + 1)]
    readings = _ask(launcher.read_options, lines)
    whole, known, is_said = readings[-1], readings[0].given, False
    for index, now in enumerate(readings[1:]):
        here = ("job", "options", index)
        for name in sorted(now.given & whole.given - known):
            if (why := _why_not(scenario, name)) is not None:
                is_said = True
                yield Finding(f"{name} {why}", here)
        known |= now.given
        if is_said:
            continue
        if now.program and now.program == whole.program != readings[0].program:
            yield Finding(
                f"{now.program!r} is no option: what the program is given stands in `args`", here
            )
            return
        if whole.refusal is not None and _is_same(now.refusal, whole.refusal):
            yield Finding(whole.refusal.message, here, whole.refusal.hint)
            return


def _program(job: Job) -> CommandLine:
    """Return words that name a program of the job's kind; a script is looked for by parsers.

    They begin with an option, so that one before them which lacks its value does not take a word.
    """
    if job.script is not None:
        return ("--monitor-interval=1", os.path.abspath(__file__))
    return ("--no-python" if job.command is not None else "--module", "any")


def _is_same(one: UsageError | None, other: UsageError) -> bool:
    return one is not None and one.message == other.message


def _why_not(scenario: Scenario, name: str) -> str | None:
    """Say why an option cannot be given here, whatever its value, or return None."""
    if name in _SAID_ELSEWHERE:
        return f"is what {_SAID_ELSEWHERE[name]} says"
    if name in _OF_ONE_NODE and scenario.nodes.max > 1:
        return "would be the same on every node: leave it out"
    if name in _OF_APART and scenario.tells_workers_apart:
        return "is what the harness says where a condition has `by`: leave it out"
    return None


def _ask(reader: str, lines: Sequence[CommandLine]) -> Sequence[Reading]:
    module, _, name = reader.partition(":")
    read: OptionReader = getattr(importlib.import_module(module), name)
    return read(lines)
