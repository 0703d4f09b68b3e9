"""`options:` of a job: which no launcher knows, which stand elsewhere, whose values cannot be.

Pure. Known options are written down here, because neither launcher's parser may be asked (ours is a
face's, torch's needs torch); tests compare them, and their values, with both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from elastic_harness.history.parameters import did_you_mean
from elastic_harness.scenario.checks.finding import Finding
from elastic_harness.scenario.checks.option_values import why_no_value
from elastic_harness.scenario.model import Clause, Job, Scenario
from elastic_harness.scenario.reading.yaml_tree import AstPath
from elastic_harness.scenario.stage.speakers import ANY
from elastic_harness.scenario.triggers import LogCondition

__all__ = [
    "FLAGS",
    "OPTIONS",
    "OWN_OPTIONS",
    "GivenOption",
    "check_options",
    "read_options",
    "tells_workers_apart",
]

# Options with a value, and flags, of torchrun and of ours; then those of ours alone.
OPTIONS: Final = (
    "--nnodes", "--nproc-per-node", "--rdzv-backend", "--rdzv-endpoint", "--rdzv-id",
    "--rdzv-conf", "--max-restarts", "--monitor-interval", "--start-method",
    "--event-log-handler", "--role", "--log-dir", "--redirects", "--tee", "--local-ranks-filter",
    "--duplicate-stdout-filters", "--duplicate-stderr-filters", "--node-rank", "--master-addr",
    "--master-port", "--local-addr", "--logs-specs", "--numa-binding", "--signals-to-handle",
    "--shutdown-timeout", "-r", "-t",
)  # fmt: skip
FLAGS: Final = (
    "--standalone", "--module", "--no-python", "--run-path", "--virtual-local-rank", "--help",
    "-m", "-h",
)  # fmt: skip
OWN_OPTIONS: Final[Mapping[str, bool]] = {
    "--failure-grace": True,
    "--node-name": True,
    "--preload": True,
    "--rdzv-token-file": True,
    "--worker-start": True,
    "--pass-local-rank": False,
    "--use-env": False,
}

_SHORT: Final[Mapping[str, str]] = {
    "-h": "--help",
    "-m": "--module",
    "-r": "--redirects",
    "-t": "--tee",
}
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
_OURS: Final = "pytest-elastic"


@dataclass(frozen=True, slots=True)
class GivenOption:
    """One option as a launcher reads it; `value` is None of a flag, or where there is none."""

    name: str
    value: str | None
    path: AstPath


def check_options(scenario: Scenario) -> Iterator[Finding]:
    """Yield options that a known launcher would refuse, or that the scenario says elsewhere."""
    job = scenario.job
    is_torchrun = _is_torchrun(job)
    given: dict[str, GivenOption] = {}
    for each in _read(job):
        if isinstance(each, Finding):
            yield each
            continue
        given[each.name] = each
        why = _why_not(scenario, each, is_torchrun=is_torchrun)
        if why is not None:
            yield Finding(path=each.path, message=why)
    yield from _check_together(job, given)


def read_options(job: Job) -> tuple[GivenOption, ...]:
    """Return the options of a job as a known launcher reads them; what is wrong is left out."""
    return tuple(each for each in _read(job) if isinstance(each, GivenOption))


def tells_workers_apart(scenario: Scenario) -> bool:
    """Tell whether some condition asks for lines of workers, or of one of them."""
    expect = scenario.expect
    conditions: list[object] = [
        *(entry.when for entry in scenario.timeline),
        *(entry.until for entry in scenario.timeline),
        *(clause.condition for clause in expect.eventually),
        *(each for each in (*expect.sometimes, *expect.never) if not isinstance(each, Clause)),
    ]
    return any(isinstance(each, LogCondition) and each.by not in {None, ANY} for each in conditions)


def _is_torchrun(job: Job) -> bool:
    return job.launcher is not None and job.launcher != _OURS


def _read(job: Job) -> Iterator[GivenOption | Finding]:
    """Read the words as argparse does: `--name=value`, `--name value`, `-r3`."""
    own = {} if _is_torchrun(job) else OWN_OPTIONS
    known = {**dict.fromkeys(OPTIONS, True), **dict.fromkeys(FLAGS, False), **own}
    awaited: str | None = None  # the option whose value comes next
    for index, word in enumerate(job.options):
        path: AstPath = ("job", "options", index)
        if awaited is not None:
            if _looks_like_an_option(word):
                message = f"{awaited} needs a value, and {word!r} would be another option"
                yield Finding(path=path, message=message)
                return
            yield GivenOption(awaited, word, path)
            awaited = None
            continue
        if not word.startswith("-") or word in {"-", "--"}:
            yield Finding(
                path=path,
                message=f"{word!r} is no option: what the program is given stands in `args`",
            )
            return
        said, value = _split(word)
        name = _SHORT.get(said, said)
        if said not in known:
            yield Finding(
                path=path,
                message=f"{job.launcher or _OURS} has no option {said!r}",
                suggestion=did_you_mean(said, [each for each in known if each.startswith("--")]),
            )
        elif value is not None and not known[said]:
            yield Finding(path=path, message=f"{said} is a flag, and takes no value")
        elif value is None and known[said]:
            awaited = name
        else:
            yield GivenOption(name, value, path)
    if awaited is not None:
        last = len(job.options) - 1
        yield Finding(path=("job", "options", last), message=f"{awaited} needs a value")


def _split(word: str) -> tuple[str, str | None]:
    """Return an option's name and its value, None if the word has none."""
    if not word.startswith("--"):
        return word[:2], word[2:].removeprefix("=") if len(word) > 2 else None
    name, equals, value = word.partition("=")
    return name.replace("_", "-"), value if equals else None


def _looks_like_an_option(word: str) -> bool:
    """Tell whether argparse would take a word for an option, and not for a negative number."""
    return word.startswith("-") and not re.fullmatch(r"-|-\d+|-\d*\.\d+|-.* .*", word)


def _why_not(scenario: Scenario, given: GivenOption, *, is_torchrun: bool) -> str | None:
    """Say why an option with its value cannot be given here, or return None."""
    name = given.name
    if name in _SAID_ELSEWHERE:
        return f"{name} is what {_SAID_ELSEWHERE[name]} says"
    if given.value is not None:
        why = why_no_value(name, given.value, is_torchrun=is_torchrun)
        if why is not None:
            return why
    if name in _OF_ONE_NODE and scenario.nodes.max > 1:
        return f"{name} would be the same on every node: leave it out"
    if name in _OF_APART and tells_workers_apart(scenario):
        return f"{name} is what the harness says where a condition has `by`: leave it out"
    return None


def _check_together(job: Job, given: Mapping[str, GivenOption]) -> Iterator[Finding]:
    """Find options that contradict each other, or the kind of program."""
    if "--run-path" in given and job.script is None:
        yield Finding(
            path=given["--run-path"].path,
            message="--run-path runs a file: a job with a module or a command has none",
        )
    if "--use-env" in given and "--pass-local-rank" in given:
        yield Finding(
            path=given["--pass-local-rank"].path,
            message="--use-env and --pass-local-rank contradict each other: leave one out",
        )
