"""Runs the scenarios on a Ray of three machines and on clusters of this one, and compares.

    python -m tests.frameworks.ray_library                  # all but the long ones
    python -m tests.frameworks.ray_library scenarios/long

The machines are namespaces with real raylets, so that it takes root, and Ray (`tox -e ray` has it).
The exit code is 1 where outcomes differ, but for scenarios that a cluster skips for what it lacks.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from scenarios import outcomes
from tests.frameworks.rays import ADDRESS, rays_on_machines

# Two at a time, each of which keeps a processor of every machine.
JOBS = 2
LOCAL = ("namespace", "process")


def main(arguments: Sequence[str]) -> int:
    """Run everything on each cluster, and say what differs."""
    parser = argparse.ArgumentParser(description="Compare a Ray of three machines with this one.")
    parser.add_argument("paths", nargs="*", default=[str(outcomes.HERE)])
    paths = parser.parse_args(arguments).paths
    with rays_on_machines(cpus=JOBS) as rays:
        by_ray = outcomes.run(
            "pytest-elastic",
            paths,
            jobs=JOBS,
            options=("--elastic-cluster=ray", f"--elastic-ray={ADDRESS}"),
            enter=rays.head.enter,
        )
    found = []
    for kind in LOCAL:
        here = outcomes.run(
            "pytest-elastic", paths, jobs=JOBS, options=(f"--elastic-cluster={kind}",)
        )
        found += [f"{kind}, ray: {line}" for line in outcomes.differences(here, by_ray)]
    lacking = sorted(
        f"{scenario}: {outcome.removeprefix(outcomes.LACKING)}"
        for scenario, outcome in by_ray.items()
        if outcome.startswith(outcomes.LACKING)
    )
    verdict = "the outcomes differ:" if found else f"all others: as on {' and '.join(LOCAL)}"
    skipped = f"ray: {len(by_ray)} scenarios, {len(lacking)} skipped for what it lacks:"
    lines = [skipped, *(f"  {each}" for each in lacking), verdict, *(f"  {each}" for each in found)]
    sys.stdout.write("\n".join(["", *lines, ""]))
    return 1 if found or len(lacking) == len(by_ray) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
