"""Faults planted in the machines, to see that the simulator would find them.

Each is one promise taken back (`planted_faults.py`): a line of a machine that a change might get
wrong. The suite runs one seed that is known to find each (`seeds.txt`), with the fault and without;
the whole search is a command:

    python -m tests.simulation.planted                      every planted fault, up to 10 000 seeds
    python -m tests.simulation.planted no-fencing --seeds 500..2000
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Sequence

from elastic_simulation.checks import Violation
from elastic_simulation.plain_enums import plain_enums
from elastic_simulation.random_faults.campaign import Finding, finding_of
from elastic_simulation.random_faults.plan import Plan, draw_plan
from elastic_simulation.random_faults.plan_run import run_plan

from tests.simulation.planted_faults import PLANTED

__all__ = ["PLANTED", "find", "finds"]


def _plan(name: str, seed: int) -> Plan:
    return draw_plan(seed, PLANTED[name].options)


def finds(name: str, seed: int) -> str:
    """Return which promise the run of a seed finds broken when a fault is planted, "" for none.

    Only what the fault is to break counts; a machine that stops at an assertion of its own has
    broken none. Any other exception is one of the fault itself, and goes up.
    """
    with PLANTED[name].planted():
        try:
            run_plan(_plan(name, seed))
        except Violation as broken:
            return str(broken) if re.search(PLANTED[name].breaks, str(broken)) else ""
        except AssertionError:
            pass
    return ""


def _is_clean(name: str, seed: int) -> bool:
    """Tell whether the run finds nothing without the fault, its guards there or not."""
    plan = _plan(name, seed)
    with PLANTED[name].unguarded():
        if isinstance(finding_of(plan), Finding):
            return False
    return not isinstance(finding_of(plan), Finding)


def find(name: str, seeds: range) -> tuple[int, str] | None:
    """Return the first seed that finds a planted fault, and nothing without it, and what."""
    for seed in seeds:
        message = finds(name, seed)
        if message and _is_clean(name, seed):
            return seed, message
    return None


def main(arguments: Sequence[str]) -> int:
    """Search; the exit code is 1 if a planted fault was not found."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.planted")
    parser.add_argument("names", nargs="*", help=", ".join(PLANTED))
    parser.add_argument("--seeds", default="0..10000", metavar="A..B")
    options = parser.parse_args(arguments)
    first, _, end = options.seeds.partition("..")
    seeds = range(int(first), int(end))
    missed = 0
    for name in options.names or PLANTED:
        began = time.process_time()
        with plain_enums():
            found = find(name, seeds)
        took_s = time.process_time() - began
        missed += found is None
        seed, message = found or ("none", "not found")
        line = f"{name:24} seed {seed!s:>6}  {took_s:6.1f} s  {message[:100]}"
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
