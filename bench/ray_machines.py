"""How long machines of a Ray that runs take to be ready: `python -m bench.ray_machines`.

Needs root, Ray, and a checkout. The machines are namespaces of this one, with a raylet in each, so
that they share its processors; with `--machines 1` the one machine has them for itself. Two times
are told, of each of several clusters: until agents have said what their machines are, and from
there until nodes can be started; first without any import, then with torch, which each machine
imports once.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

from elastic_harness.cluster.machines.choose import choose_machines
from elastic_harness.cluster.machines.placement import CallBack
from elastic_harness.cluster.machines.ray_placement import RayPlacement
from elastic_harness.future import wait_for

from pytest_elastic.loop import Loop
from tests.frameworks.rays import ADDRESS, rays_on_machines

_LIMIT_S = 60.0


def main() -> None:
    """Print both times, of all clusters and their medians."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--count", type=int, default=5, help="how many clusters of each kind")
    parser.add_argument("--machines", type=int, default=3, choices=(1, 2, 3), help="how many")
    # What is measured runs on the machine of Ray's head.
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside:
        for preload in ((), ("torch",)):
            _measure(preload, given.machines, given.count)
        return
    with rays_on_machines(cpus=2) as rays:
        options = ["--inside", f"--machines={given.machines}", f"--count={given.count}"]
        command = [sys.executable, "-m", "bench.ray_machines", *options]
        subprocess.run(rays.head.enter("env", f"--chdir={sys.path[0]}", *command), check=True)


def _measure(preload: tuple[str, ...], machines: int, count: int) -> None:
    asked, ready = [], []
    for _ in range(count):
        began_at = time.monotonic()
        placement = RayPlacement(ADDRESS, count=machines, call_back=CallBack())
        choice = choose_machines(placement, preload=preload)
        asked.append(time.monotonic() - began_at)
        loop = Loop()
        cluster = choice.make(loop, on_event=lambda _: None, preload=preload)
        wait_for(loop, cluster.start(), within_s=_LIMIT_S)
        ready.append(time.monotonic() - began_at - asked[-1])
        wait_for(loop, cluster.close(), within_s=_LIMIT_S)
        loop.close()
    both = [sum(pair) for pair in zip(asked, ready, strict=True)]
    sys.stdout.write(f"preload {', '.join(preload) or 'nothing'}, {count} clusters, median (all)\n")
    for name, found in (("asked", asked), ("ready after that", ready), ("both", both)):
        every = " ".join(f"{each:.2f}" for each in sorted(found))
        sys.stdout.write(f"  {name}: {statistics.median(found):.2f} s ({every})\n")


if __name__ == "__main__":
    main()
