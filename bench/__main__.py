"""Measure and print: `python -m bench` takes some minutes, `--quick` leaves torchrun out.

Every number comes from this run, on this machine, side by side: what is compared are ratios. Rows
are printed as they come. The exit code is 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Sequence

from elastic_harness.cluster.choose import choose_cluster
from elastic_harness.session import HarnessSession

from bench.cases import CASES, Case
from bench.judging import judging
from bench.measure import Launch, Result, measure
from bench.ranks import ranks
from bench.single_node import FIGURES as OF_ONE_NODE

FIGURES = {**OF_ONE_NODE, "judging": judging, "ranks": ranks}
_OURS = "pytest-elastic"
_LAUNCHES = (
    Launch(title="pytest-elastic", launcher=_OURS, preloaded=True, repeats=5),
    Launch(title="torchrun (best)", launcher="torchrun-best", preloaded=False, repeats=1),
    Launch(title="torchrun forked", launcher="torchrun-best", preloaded=True, repeats=1),
    Launch(title="ours, cold", launcher=_OURS, preloaded=False, repeats=2),
)
_MAX_MEMORY_MB = 500.0


def main(argv: Sequence[str]) -> int:
    """Run the bench and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="measure pytest-elastic only")
    parser.add_argument("--only", action="append", metavar="CASE", help="cases to measure")
    parser.add_argument("--json", metavar="FILE", help="write the figures here as well")
    options = parser.parse_args(argv)
    known = [*(case.name for case in CASES), *FIGURES]
    chosen = options.only or known
    if not set(chosen) <= set(known):
        parser.error(f"no such case: known are {', '.join(known)}")
    figures = {name: FIGURES[name](quick=options.quick) for name in chosen if name in FIGURES}
    cases = [case for case in CASES if case.name in chosen]
    if cases:
        session = HarnessSession(choose_cluster("namespace"))
        try:
            figures |= {case.name: _row(session, case, quick=options.quick) for case in cases}
        finally:
            session.close()
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(figures, file, indent=2)
    missed = [name for name, row in figures.items() if row["missed"]]
    if missed:
        sys.stdout.write(f"\ntargets missed: {', '.join(missed)}\n")
    return 1 if missed else 0


def _row(session: HarnessSession, case: Case, *, quick: bool) -> dict[str, object]:
    sys.stdout.write(
        f"\n{case.title} ({case.name}), 3 nodes x 2 workers, {os.cpu_count()} cores, "
        f"load {os.getloadavg()[0]:.1f}\n"
    )
    seconds: dict[str, float | None] = {}
    memory_mb = 0.0
    for launch in _LAUNCHES:
        is_ours = launch.launcher == _OURS
        if (quick and not (is_ours and launch.preloaded)) or _is_pointless(case, launch):
            continue
        results = [measure(session, case, launch, is_ours=is_ours) for _ in range(launch.repeats)]
        seconds[launch.title] = _median(results)
        if is_ours and launch.preloaded:
            memory_mb = max(result.memory_mb for result in results)
        _print_line(launch.title, results)
    return _judge(case, seconds, memory_mb)


def _is_pointless(case: Case, launch: Launch) -> bool:
    """Recovery is the same however a launcher was started, and torchrun knows no pace of ours."""
    if case.action is None:
        return False
    if case.conf and launch.launcher != _OURS:
        return True
    return launch.title in ("torchrun forked", "ours, cold")


def _median(results: Sequence[Result]) -> float | None:
    known = [result.seconds for result in results if result.seconds is not None]
    return statistics.median(known) if len(known) == len(results) else None


def _median_moment(results: Sequence[Result], name: str) -> float:
    return statistics.median(r.moments[name] for r in results if name in r.moments)


def _print_line(title: str, results: Sequence[Result]) -> None:
    shown = [f"{r.seconds:.3f}" if r.seconds is not None else "never" for r in results]
    sys.stdout.write(f"  {title:<18} {', '.join(shown)} (seconds)\n")
    for reason in dict.fromkeys(result.reason for result in results if result.reason):
        sys.stdout.write(f"    never: {reason}\n")
    names = [name for result in results[:1] for name in result.moments]
    medians = {name: _median_moment(results, name) for name in names}
    if medians:
        shown = [f"{name} {at:.2f}" for name, at in sorted(medians.items(), key=lambda m: m[1])]
        sys.stdout.write(f"    medians: {', '.join(shown)}\n")
    sys.stdout.flush()


def _judge(case: Case, seconds: dict[str, float | None], memory_mb: float) -> dict[str, object]:
    ours = seconds.get(_OURS)
    theirs = seconds.get("torchrun (best)")
    ratio = ours / theirs if ours is not None and theirs is not None else None
    missed = ours is None
    if case.target is not None and "torchrun (best)" in seconds:
        missed |= ratio is not None and ratio > case.target
        shown = "torchrun never comes back" if ratio is None else f"1/{1 / ratio:.0f}"
        sys.stdout.write(f"  ratio {shown}, to be reached: 1/{1 / case.target:.0f}\n")
    if case.target_s is not None:
        missed |= ours is not None and ours > case.target_s
        sys.stdout.write(f"  to be reached: under {case.target_s:g} s\n")
    if memory_mb:
        missed |= memory_mb > _MAX_MEMORY_MB
        sys.stdout.write(f"  memory of the job {memory_mb:.0f} MB, at most {_MAX_MEMORY_MB:g}\n")
    return {"seconds": seconds, "ratio": ratio, "memory_mb": memory_mb, "missed": missed}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
