"""The simulator's command: `python -m elastic_harness.simulation`.

    --seed 812 --trace        one storm, told again with a column for each node
    --seeds 0..10000 -j 2     many storms; one line for each that breaks a promise, one for all
    --swarm                   each seed has fault kinds of its own; without it, all may come
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

from elastic_harness.simulation.campaign import AGENTS, Finding, Tally, complaint_of, run_seeds
from elastic_harness.simulation.campaign import shrink as shrink_plan
from elastic_harness.simulation.crowd import form_crowd
from elastic_harness.simulation.explorer import SITUATIONS, explore, play
from elastic_harness.simulation.plan import KINDS, QUORUMS, Options, Plan, draw_plan
from elastic_harness.simulation.storm import Storm
from elastic_harness.simulation.trace import told_again
from pytest_elastic.errors import UsageError

__all__ = ["main"]

_CHUNK = 100
_PROGRAM = "python -m elastic_harness.simulation"


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
        prog=_PROGRAM, description="Storms over the launcher's machines, in virtual time."
    )
    parser.add_argument(
        "what",
        nargs="?",
        choices=("storms", "crowd", "explore"),
        default="storms",
        help="default: storms",
    )
    parser.add_argument("--seed", type=int, metavar="N", help="one storm (default: 0)")
    parser.add_argument("--seeds", metavar="A..B", help="the storms from A up to, not with, B")
    parser.add_argument("-j", "--jobs", type=int, default=1, metavar="N", help="processes")
    parser.add_argument("--swarm", action="store_true", help="few fault kinds for each seed")
    parser.add_argument("--kinds", metavar="A,B", help=f"fault kinds: {', '.join(KINDS)}")
    parser.add_argument("--nodes", type=int, metavar="N", help="nodes at the start (default: 2-5)")
    parser.add_argument("--quorum", choices=QUORUMS, help="default: coordinator")
    parser.add_argument("--agent", choices=tuple(AGENTS), default="played")
    parser.add_argument("--depth", type=int, default=6, metavar="N", help="choices to explore")
    parser.add_argument(
        "--deviations", type=int, metavar="N", help="of these, not the first (default: any number)"
    )
    parser.add_argument("--situation", choices=tuple(SITUATIONS), help="default: each of them")
    parser.add_argument("--choices", metavar="0,2,1", help="one execution of a situation")
    parser.add_argument("--trace", action="store_true", help="tell the storm again")
    parser.add_argument("--shrink", action="store_true", help="leave out what is not needed")
    return parser


def _run(given: argparse.Namespace) -> int:
    if given.what == "crowd":
        return _crowd(given.nodes or 10_000)
    if given.what == "explore":
        return _explore(given)
    if given.seeds is not None:
        return _campaign(given)
    return _one(given)


def _options(given: argparse.Namespace) -> Options:
    kinds = given.kinds.split(",") if given.kinds else KINDS
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        raise UsageError(
            f"cannot draw faults of the kind {unknown[0]!r}", hint=f"known: {', '.join(KINDS)}"
        )
    if given.nodes is not None and given.nodes < 1:
        raise UsageError(f"cannot have {given.nodes} nodes: at least 1 is expected")
    return Options(nodes=given.nodes, quorum=given.quorum, kinds=tuple(kinds), is_swarm=given.swarm)


def _repeat(given: argparse.Namespace, seed: int) -> str:
    words = [_PROGRAM, f"--seed {seed}"]
    words += [f"--nodes {given.nodes}"] if given.nodes else []
    words += [f"--quorum {given.quorum}"] if given.quorum else []
    words += [f"--kinds '{given.kinds}'"] if given.kinds else []
    words += ["--swarm"] if given.swarm else []
    words += [f"--agent {given.agent}"] if given.agent != "played" else []
    return " ".join([*words, "--trace"])


# --- one storm -----------------------------------------------------------------------------------


def _one(given: argparse.Namespace) -> int:
    seed = given.seed or 0
    agent_class = AGENTS[given.agent]
    plan = draw_plan(seed, _options(given))

    def is_broken(smaller: Plan) -> bool:
        return isinstance(complaint_of(smaller, agent_class), Finding)

    if given.shrink and is_broken(plan):
        plan = shrink_plan(plan, is_broken)
    storm = Storm(plan, agent_class=agent_class, keeps_messages=given.trace)
    problem: Exception | None = None
    try:
        outcome = storm.run()
    except Exception as error:  # noqa: BLE001 (said below, with the trace before it)
        problem = error
    if given.trace:
        _say("\n".join(told_again(storm.world, storm.said)))
    if problem is not None:
        kind = "" if isinstance(problem, AssertionError) else f"{type(problem).__name__}: "
        _say(f"seed {seed}: BROKEN: {kind}{problem}")
        _say(f"repeat: {_repeat(given, seed)}")
        return 1
    _say(
        f"seed {seed}: kept, {outcome.blows} blows, {outcome.rounds} rounds, {outcome.ending}, "
        f"{outcome.virtual_s:.1f} s of virtual time"
    )
    return 0


# --- many ----------------------------------------------------------------------------------------


def _campaign(given: argparse.Namespace) -> int:
    seeds = _seeds(given.seeds)
    options = _options(given)
    began_s, tally, cpu_s = time.monotonic(), Tally(), 0.0
    for part, part_cpu_s in _parts(seeds, options, given.agent, given.jobs):
        for finding in part.findings:
            _say(f"seed {finding.seed}: BROKEN: {finding.complaint} ({finding.where})")
        tally.merge(part)
        cpu_s += part_cpu_s
    wall_s = time.monotonic() - began_s
    endings = ", ".join(f"{count} {ending}" for ending, count in sorted(tally.endings.items()))
    kept = max(tally.storms - len(tally.findings), 1)
    _say(
        f"{tally.storms} storms, {len(tally.findings)} broken: {tally.counted} schedules with a "
        f"fault and two rounds, {kept - tally.counted} without ({endings})"
    )
    _say(
        f"{tally.counted / cpu_s:.0f} schedules a second of processor time "
        f"({tally.storms / cpu_s:.0f} storms; {cpu_s:.1f} s used in {wall_s:.1f} s); a storm has "
        f"{tally.blows / kept:.1f} blows, {tally.rounds / kept:.1f} rounds and "
        f"{tally.virtual_s / kept:.1f} s"
    )
    if tally.findings:
        _say(f"repeat: {_repeat(given, tally.findings[0].seed)}")
        return 1
    return 0


def _seeds(text: str) -> range:
    first, dots, end = text.partition("..")
    if not (dots and first.isdigit() and end.isdigit() and int(first) < int(end)):
        raise UsageError(f"cannot take {text!r} for seeds", hint="A..B is expected: 0..1000")
    return range(int(first), int(end))


_Job = tuple[range, Options, str]


def _parts(seeds: range, options: Options, agent: str, jobs: int) -> Iterator[tuple[Tally, float]]:
    """Run in chunks, in order; yield what each came to, and the processor time it took."""
    chunks: list[_Job] = [
        (range(first, min(first + _CHUNK, seeds.stop)), options, agent)
        for first in range(seeds.start, seeds.stop, _CHUNK)
    ]
    if jobs <= 1:
        yield from map(_chunk, chunks)
        return
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        yield from pool.imap(_chunk, chunks)


def _chunk(job: _Job) -> tuple[Tally, float]:
    before_s = time.process_time()
    # Worlds are full of circles: one collection at the end is cheaper than one every few storms.
    gc.disable()
    try:
        tally = run_seeds(*job)
    finally:
        gc.enable()
        gc.collect()
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
            _say(f"{name} [{choices}]: BROKEN: {found.complaint}")
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
    world, said, complaint = play(SITUATIONS[name], choices)
    _say("\n".join(told_again(world, said)))
    _say(f"{name} {list(choices)}: {'BROKEN: ' + complaint if complaint else 'kept'}")
    return 1 if complaint else 0


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
    sys.exit(main())
