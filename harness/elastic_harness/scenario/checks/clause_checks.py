"""What `expect` asks for and no run can have: clauses that contradict each other, or the job.

Pure. What is wrong with a clause by itself is said by its checker's parameters; here it is held
against the scenario that it stands in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from elastic_harness.history.checkers.registry import Registry
from elastic_harness.history.parameters import did_you_mean
from elastic_harness.scenario.checks.finding import Finding
from elastic_harness.scenario.engine.timeline import CHECK_ACTION
from elastic_harness.scenario.fields import format_duration
from elastic_harness.scenario.model import Clause, Scenario, read_check
from elastic_harness.scenario.planning.planned_clauses import NEED_NO_WORKERS, NO_WORKERS
from elastic_harness.scenario.planning.storm import STORM_ID
from elastic_harness.scenario.reading.yaml_tree import AstPath

__all__ = ["check_clauses", "why_no_world", "worlds_of"]

# Clauses that say one thing about the whole run: twice is once too often.
_SAID_ONCE: Final = frozenset({"job", "restarts", "world_sizes", "exit_codes"})
_AT_THE_END: Final = "finally"
# Of an entry: `crash`, `crash.fired` and `crash.healed`.
_MOMENTS: Final = ("", "fired", "healed")
# What may be witnessed beside occurrences: lines.
_LINES: Final = "log_contains"


def worlds_of(scenario: Scenario, nodes: Sequence[str]) -> range:
    """Return every world size that the job can have; `nodes` are all that there can be."""
    per_node = scenario.job.nproc_per_node
    most = min(scenario.nodes.max, len(nodes))
    return range(scenario.nodes.min * per_node, most * per_node + 1, per_node)


def why_no_world(size: int, worlds: range) -> str | None:
    """Say why there can be no world of this size, or return None."""
    if size in worlds:
        return None
    if not worlds:
        return f"there is no world of {size}: the job never has enough nodes"
    if size > worlds[-1]:
        return f"there is no world of {size}: the largest has {worlds[-1]} ranks"
    if size < worlds[0]:
        return f"there is no world of {size}: the smallest has {worlds[0]} ranks"
    return f"there is no world of {size}: each node has {worlds.step} ranks"


def check_clauses(
    scenario: Scenario, nodes: Sequence[str], checkers: Registry
) -> Iterator[Finding]:
    """Yield clauses about nodes, entries, worlds and restarts that no run can have."""
    expect = scenario.expect
    buckets = (
        ("always", expect.always),
        ("never", expect.never),
        ("sometimes", expect.sometimes),
        (_AT_THE_END, expect.finally_),
    )
    are_workers_ruled_out = any(
        clause.name == NO_WORKERS for clause in (*expect.always, *expect.finally_)
    )
    said: dict[str, str] = {}
    for bucket, clauses in buckets:
        for index, clause in enumerate(clauses):
            if not isinstance(clause, Clause):
                continue
            here: AstPath = ("expect", bucket, index)
            if are_workers_ruled_out and not clause.is_off and clause.name not in NEED_NO_WORKERS:
                message = (
                    f"`{clause.name}` is about workers, and `{NO_WORKERS}` says: none is started"
                )
                yield Finding(path=here, message=message)
                continue
            if bucket in {"never", "sometimes"}:
                yield from _check_witness(bucket, clause, here, checkers)
            else:
                yield from _check_no_occurrence(bucket, clause, here, checkers)
            yield from _check_nodes(clause, (*here, clause.name), nodes)
            yield from _check_time(scenario, bucket, clause, (*here, "within"))
            if bucket in {"never", "sometimes"}:
                continue
            yield from _check_against_the_job(scenario, clause, (*here, clause.name), nodes)
            if clause.name in said and clause.name in _SAID_ONCE and not clause.is_off:
                yield Finding(
                    path=here, message=f"`{clause.name}` stands here and in `{said[clause.name]}`"
                )
            said.setdefault(clause.name, bucket)
    for index, entry in enumerate(scenario.timeline):
        if entry.action.name == CHECK_ACTION:
            for clause in read_check(entry.action.value):
                here = ("timeline", index, CHECK_ACTION)
                yield from _check_no_occurrence("check", clause, here, checkers)
    both = {str(each) for each in expect.never} & {str(each) for each in expect.sometimes}
    for index, witness in enumerate(expect.never):
        if str(witness) in both:
            yield Finding(
                path=("expect", "never", index),
                message=f"`{witness}` stands in `sometimes` too: it cannot be seen and not be seen",
            )


def _check_witness(
    bucket: str, clause: Clause, here: AstPath, checkers: Registry
) -> Iterator[Finding]:
    """Find what is no occurrence: `never: agreement` would be a wish for the contrary."""
    if clause.name not in checkers.names or clause.name == _LINES:
        return
    if not checkers.find(clause.name).is_occurrence:
        occurrences = [name for name in checkers.names if checkers.find(name).is_occurrence]
        yield Finding(
            path=here,
            message=(
                f"`{clause.name}` is nothing that is seen or not: in `{bucket}` stand events, log "
                f"lines, {' and '.join(occurrences)}; what must hold stands in `finally`"
            ),
        )


def _check_no_occurrence(
    bucket: str, clause: Clause, here: AstPath, checkers: Registry
) -> Iterator[Finding]:
    """Find what is seen or not where something has to hold: `finally` would ask for it."""
    if clause.name in checkers.names and checkers.find(clause.name).is_occurrence:
        yield Finding(
            path=here,
            message=f"`{clause.name}` is seen or not seen, and nothing that holds: it stands in "
            f"`never` or `sometimes`, and not in `{bucket}`",
        )


def _check_nodes(clause: Clause, here: AstPath, nodes: Sequence[str]) -> Iterator[Finding]:
    if not isinstance(clause.expected, Mapping):
        return
    named = {"node": clause.expected.get("node")}
    if clause.name == "exit_codes":
        named = {name: name for name in clause.expected if name != "expected"}
    for key, name in named.items():
        if isinstance(name, str) and name not in nodes:
            yield Finding(
                path=(*here, key),
                message=f"there is no node {name!r}",
                suggestion=did_you_mean(name, nodes),
            )


def _check_against_the_job(
    scenario: Scenario, clause: Clause, here: AstPath, nodes: Sequence[str]
) -> Iterator[Finding]:
    """Find what the job's own numbers, or its timeline, rule out."""
    about: dict[str, Callable[[], str | None]] = {
        "restarts": lambda: _why_no_restarts(clause.expected, scenario.job.max_restarts),
        "world_sizes": lambda: _why_no_worlds(clause.expected, worlds_of(scenario, nodes)),
    }
    if clause.name in about and (why := about[clause.name]()) is not None:
        yield Finding(path=here, message=why)
    after = clause.expected.get("after") if isinstance(clause.expected, Mapping) else None
    if isinstance(after, str) and clause.name in {"recovery_time", "progress"}:
        known = _entries_of(scenario)
        id, _, moment = after.partition(".")
        if id.partition("#")[0] not in known or moment not in _MOMENTS:
            yield Finding(
                path=(*here, "after"),
                message=f"no entry of the timeline has the id {after!r}",
                suggestion=did_you_mean(after, known),
            )


def _entries_of(scenario: Scenario) -> list[str]:
    """Return what the entries of a run are called, those of its storm at last."""
    names = [each.id or f"entry-{place}" for place, each in enumerate(scenario.timeline, start=1)]
    if scenario.storm is not None:
        names += [STORM_ID, *(f"{STORM_ID}-{n}" for n in range(1, scenario.storm.max + 1))]
    return names


def _check_time(
    scenario: Scenario, bucket: str, clause: Clause, path: AstPath
) -> Iterator[Finding]:
    if clause.within is None:
        return
    if bucket != _AT_THE_END:
        yield Finding(
            path=path, message=f"a clause of `{bucket}` has no time of its own", is_key=True
        )
    elif clause.within > scenario.limit:
        yield Finding(
            path=path,
            message=f"the run is over by then: `limit` is {format_duration(scenario.limit)}",
        )


def _why_no_restarts(expected: Any, budget: int) -> str | None:  # noqa: ANN401 (as YAML has it)
    wanted = expected if not isinstance(expected, Mapping) else None
    if isinstance(expected, Mapping):
        wanted = expected.get("exactly", expected.get("at_least"))
    if isinstance(wanted, int) and not isinstance(wanted, bool) and wanted > budget:
        return f"{wanted} restarts are more than the job may have: `max_restarts` is {budget}"
    return None


def _why_no_worlds(expected: Any, worlds: range) -> str | None:  # noqa: ANN401 (as YAML has it)
    sizes = expected.get("sizes") if isinstance(expected, Mapping) else expected
    for size in sizes if isinstance(sizes, (list, tuple)) else ():
        if isinstance(size, int) and (why := why_no_world(size, worlds)) is not None:
            return why
    return None
