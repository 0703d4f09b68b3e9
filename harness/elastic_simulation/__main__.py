"""The simulator's command: `python -m elastic_simulation`.

    --seed 812 --trace        one run, told again with a column for each node
    --seeds 0..10000 -j 2     many runs; one line for each that breaks a promise, one for all
    --swarm                   each seed has fault kinds of its own; without it, all may come
    --brisk --ledger FILE     a campaign of short runs, that can be stopped and goes on
    ledger FILE...            what campaigns have come to, a line for each kind
    crowd --nodes 10000       one round of many nodes: time, and messages for each node
    explore --depth 6         every order of things in small worlds, up to so many choices

The exit code is 1 if a promise was broken. The last line is then the command that repeats it.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from elastic_simulation.crowd import form_crowd
from elastic_simulation.explorer import SITUATIONS, explore, play
from elastic_simulation.plain_enums import plain_enums
from elastic_simulation.random_faults.campaign import (
    AGENTS,
    Finding,
    Tally,
    finding_of,
    run_seeds,
)
from elastic_simulation.random_faults.campaign import shrink as shrink_plan
from elastic_simulation.random_faults.ledger import Entry, Ledger, shown_seeds, summary
from elastic_simulation.random_faults.plan import (
    AIMED,
    KINDS,
    NAMED,
    QUORUMS,
    Options,
    Plan,
    draw_plan,
)
from elastic_simulation.random_faults.plan_run import PlanRun
from elastic_simulation.trace import told_again
from pytest_elastic.errors import UsageError
from pytest_elastic.unread import until_unread

__all__ = ["main"]

_CHUNK = 100
# So many worlds are let go at once: more of them do not fit into a processor's cache.
_STORMS_KEPT = 10
_ALL_KINDS = (*KINDS, *AIMED, *NAMED)
_PROGRAM = "python -m elastic_simulation"


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says; return the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _run(_parser().parse_args(given))
    except UsageError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=_PROGRAM,
        description="Random fault schedules over the launcher's machines, in virtual time.",
    )
    parser.add_argument(
        "what",
        nargs="?",
        choices=("runs", "crowd", "explore", "ledger"),
        default="runs",
        help="default: runs",
    )
    parser.add_argument("files", nargs="*", metavar="FILE", help="ledgers to be summed up")
    parser.add_argument("--seed", type=int, metavar="N", help="one run (default: 0)")
    parser.add_argument("--seeds", metavar="A..B", help="the runs from A up to, not with, B")
    parser.add_argument("-j", "--jobs", type=int, default=1, metavar="N", help="processes")
    parser.add_argument("--swarm", action="store_true", help="few fault kinds for each seed")
    parser.add_argument("--brisk", action="store_true", help="short runs, most of which count")
    parser.add_argument(
        "--aimed",
        action="store_true",
        help="add faults that hit a coordinator as it decides",
    )
    parser.add_argument("--ledger", metavar="FILE", type=Path, help="go on where FILE ends")
    parser.add_argument("--quiet", action="store_true", help="with --seeds: only the totals")
    parser.add_argument("--kinds", metavar="A,B", help=f"fault kinds: {', '.join(_ALL_KINDS)}")
    parser.add_argument("--nodes", type=int, metavar="N", help="nodes at the start (default: 2-5)")
    parser.add_argument("--quorum", choices=QUORUMS, help="default: coordinator")
    parser.add_argument(
        "--endpoints", type=int, default=1, metavar="N", help="default: 1; not with granted"
    )
    parser.add_argument("--agent", choices=tuple(AGENTS), default="played")
    parser.add_argument("--depth", type=int, default=6, metavar="N", help="choices to explore")
    parser.add_argument(
        "--deviations", type=int, metavar="N", help="of these, not the first (default: any number)"
    )
    parser.add_argument("--situation", choices=tuple(SITUATIONS), help="default: each of them")
    parser.add_argument("--choices", metavar="0,2,1", help="one execution of a situation")
    parser.add_argument("--trace", action="store_true", help="print what happened, node by node")
    parser.add_argument("--shrink", action="store_true", help="leave out what is not needed")
    return parser


def _run(given: argparse.Namespace) -> int:
    if given.files and given.what != "ledger":
        raise UsageError(f"cannot do anything with {given.files[0]!r}: only `ledger` takes files")
    if given.what == "ledger":
        return _sum_up([Path(name) for name in given.files])
    if given.what == "crowd":
        return _crowd(given.nodes or 10_000)
    if given.what == "explore":
        return _explore(given)
    if given.seeds is not None:
        return _campaign(given)
    return _one(given)


def _options(given: argparse.Namespace) -> Options:
    kinds = given.kinds.split(",") if given.kinds else KINDS
    unknown = [kind for kind in kinds if kind not in _ALL_KINDS]
    if unknown:
        raise UsageError(
            f"cannot draw faults of the kind {unknown[0]!r}", hint=f"known: {', '.join(_ALL_KINDS)}"
        )
    if given.nodes is not None and given.nodes < 1:
        raise UsageError(f"cannot have {given.nodes} nodes: at least 1 is expected")
    if given.endpoints < 1 or (given.endpoints > 1 and given.quorum == "granted"):
        raise UsageError(
            f"cannot have {given.endpoints} endpoints: at least 1 is expected, and one with "
            "--quorum granted"
        )
    return Options(
        nodes=given.nodes,
        quorum=given.quorum,
        kinds=tuple(kinds),
        is_swarm=given.swarm,
        is_brisk=given.brisk,
        endpoints=given.endpoints,
        is_aimed=given.aimed,
    )


def _repeat(given: argparse.Namespace, seed: int) -> str:
    return " ".join([_PROGRAM, f"--seed {seed}", *_words(given), "--trace"])


def _words(given: argparse.Namespace) -> list[str]:
    """Return the options that say which runs are drawn, as a command has them."""
    words = [f"--nodes {given.nodes}"] if given.nodes else []
    words += [f"--quorum {given.quorum}"] if given.quorum else []
    words += [f"--endpoints {given.endpoints}"] if given.endpoints > 1 else []
    words += [f"--kinds '{given.kinds}'"] if given.kinds else []
    words += ["--swarm"] if given.swarm else []
    words += ["--brisk"] if given.brisk else []
    words += ["--aimed"] if given.aimed else []
    words += [f"--agent {given.agent}"] if given.agent != "played" else []
    return words


# --- one run -----------------------------------------------------------------------------------


def _one(given: argparse.Namespace) -> int:
    seed = given.seed or 0
    agent_class = AGENTS[given.agent]
    plan = draw_plan(seed, _options(given))

    def is_broken(smaller: Plan) -> bool:
        return isinstance(finding_of(smaller, agent_class), Finding)

    if given.shrink and is_broken(plan):
        plan = shrink_plan(plan, is_broken)
    plan_run = PlanRun(plan, agent_class=agent_class, keeps_messages=given.trace)
    problem: Exception | None = None
    try:
        outcome = plan_run.run()
    except Exception as error:  # noqa: BLE001 (said below, with the trace before it)
        problem = error
    if given.trace:
        _say("\n".join(told_again(plan_run.world, plan_run.said)))
    if problem is not None:
        kind = "" if isinstance(problem, AssertionError) else f"{type(problem).__name__}: "
        _say(f"seed {seed}: BROKEN: {kind}{problem}")
        _say(f"repeat: {_repeat(given, seed)}")
        return 1
    _say(
        f"seed {seed}: kept, {outcome.faults} faults, {outcome.rounds} rounds, {outcome.ending}, "
        f"{outcome.virtual_s:.1f} s of virtual time"
    )
    return 0


# --- many ----------------------------------------------------------------------------------------


def _campaign(given: argparse.Namespace) -> int:
    seeds, kind = _seeds(given.seeds), " ".join(_words(given))
    ledger = Ledger(given.ledger)
    begin = seeds.start - seeds.start % _CHUNK  # the same chunks, wherever a range begins
    chunks = [
        range(max(first, seeds.start), min(first + _CHUNK, seeds.stop))
        for first in range(begin, seeds.stop, _CHUNK)
    ]
    began_s = time.monotonic()
    for entry in _entries(ledger.missing(kind, chunks), _options(given), given, kind):
        ledger.add(entry)
        for finding in entry.tally.findings:
            _say(f"seed {finding.seed}: BROKEN: {finding.message} ({finding.where})")
    entries = ledger.of(kind)
    if not given.quiet:
        _say(_described(entries, time.monotonic() - began_s))
    _say(f"total: {summary(entries)}")
    findings = [finding for entry in entries for finding in entry.tally.findings]
    if findings:
        _say(f"repeat: {_repeat(given, findings[0].seed)}")
    return 1 if findings else 0


def _described(entries: Sequence[Entry], wall_s: float) -> str:
    tally, cpu_s = Tally(), 0.0
    for entry in entries:
        tally.merge(entry.tally)
        cpu_s += entry.cpu_s
    endings = ", ".join(f"{count} {ending}" for ending, count in sorted(tally.endings.items()))
    kept = max(tally.runs - len(tally.findings), 1)
    return (
        f"{tally.runs} runs, {len(tally.findings)} broken: {tally.counted} schedules with a "
        f"fault and two rounds, {kept - tally.counted} without ({endings})\n"
        f"{tally.counted / cpu_s:.0f} schedules a second of processor time "
        f"({tally.runs / cpu_s:.0f} runs; {cpu_s:.1f} s used, {wall_s:.1f} s passed); a run "
        f"has {tally.faults / kept:.1f} faults, {tally.rounds / kept:.1f} rounds and "
        f"{tally.virtual_s / kept:.1f} s"
    )


def _sum_up(paths: Sequence[Path]) -> int:
    entries: list[Entry] = []
    for path in paths:
        if not path.exists():
            raise UsageError(f"cannot sum up {str(path)!r}: there is no such file")
        entries += Ledger(path).entries
    for kind in sorted({entry.kind for entry in entries}):
        own = [entry for entry in entries if entry.kind == kind]
        _say(f"{kind} --seeds {shown_seeds(own)}: {summary(own)}")
    _say(f"total: {summary(entries)}")
    return 1 if any(entry.tally.findings for entry in entries) else 0


def _seeds(text: str) -> range:
    first, dots, end = text.partition("..")
    if not (dots and first.isdigit() and end.isdigit() and int(first) < int(end)):
        raise UsageError(f"cannot take {text!r} for seeds", hint="A..B is expected: 0..1000")
    return range(int(first), int(end))


_Job = tuple[range, Options, str]


def _entries(
    chunks: Sequence[range], options: Options, given: argparse.Namespace, kind: str
) -> Iterator[Entry]:
    """Run in chunks, in order; yield what each came to."""
    jobs: list[_Job] = [(chunk, options, given.agent) for chunk in chunks]
    if given.jobs <= 1:
        results = map(_chunk, jobs)
        yield from (_entry(kind, seeds, each) for seeds, each in zip(chunks, results, strict=True))
        return
    with multiprocessing.get_context("fork").Pool(given.jobs) as pool:
        for seeds, result in zip(chunks, pool.imap(_chunk, jobs), strict=True):
            yield _entry(kind, seeds, result)


def _entry(kind: str, seeds: range, result: tuple[Tally, float]) -> Entry:
    tally, cpu_s = result
    return Entry(kind=kind, seeds=seeds, tally=tally, cpu_s=cpu_s)


def _chunk(job: _Job) -> tuple[Tally, float]:
    before_s = time.process_time()
    seeds, options, agent = job
    # Worlds are full of circles: one collection after some runs is cheaper than one every now and
    # then, and cheapest if it looks at nothing else.
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        with plain_enums():
            tally = Tally()
            for first in range(seeds.start, seeds.stop, _STORMS_KEPT):
                some = seeds[first - seeds.start : first - seeds.start + _STORMS_KEPT]
                tally.merge(run_seeds(some, options, agent))
                gc.collect()
    finally:
        gc.enable()
        gc.unfreeze()
    return tally, time.process_time() - before_s


# --- every order ---------------------------------------------------------------------------------


def _explore(given: argparse.Namespace) -> int:
    names = [given.situation] if given.situation else list(SITUATIONS)
    if given.choices is not None:
        return _play(names[0], [int(word) for word in given.choices.split(",") if word])
    broken: list[str] = []
    for name in names:
        before_s = time.process_time()
        result = explore(SITUATIONS[name], depth=given.depth, deviations=given.deviations)
        took_s = time.process_time() - before_s
        for found in result.found:
            choices = ",".join(map(str, found.choices))
            _say(f"{name} [{choices}]: BROKEN: {found.message}")
            broken.append(f"{_PROGRAM} explore --situation {name} --choices {choices}")
        _say(
            f"{name} ({SITUATIONS[name].what}): {result.states} states in {result.executions} "
            f"executions of up to {given.depth} choices, {len(result.found)} broken, {took_s:.1f} s"
        )
    if broken:
        _say(f"repeat: {broken[0]}")
        return 1
    return 0


def _play(name: str, choices: Sequence[int]) -> int:
    world, said, message = play(SITUATIONS[name], choices)
    _say("\n".join(told_again(world, said)))
    _say(f"{name} {list(choices)}: {'BROKEN: ' + message if message else 'kept'}")
    return 1 if message else 0


# --- a crowd -------------------------------------------------------------------------------------


def _crowd(nodes: int) -> int:
    before_s = time.process_time()
    crowd = form_crowd(nodes)
    took_s = time.process_time() - before_s
    _say(
        f"{nodes} nodes sealed and committed a round in {took_s:.1f} s of processor time: "
        f"{crowd.messages / nodes:.2f} messages for each node, {crowd.most_to_one} to the one that "
        f"got most, {crowd.virtual_s:.2f} s of virtual time"
    )
    return 0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(until_unread(main))
