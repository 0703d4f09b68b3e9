"""A digest of each of many simulated runs, to see that a change of the code changes none of them.

    python -m tests.simulation.digests 700000..700360 > before     and again after the change

A line for each seed and kind of campaign. It stands for all events, all that agents were told, and
all that was done to them, with the times of that, and for what came of the run; not for messages.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import sys
from collections.abc import Mapping

from elastic_simulation.random_faults.plan import Options, draw_plan
from elastic_simulation.random_faults.plan_run import PlanRun

__all__ = ["CAMPAIGNS", "digest"]

CAMPAIGNS: Mapping[str, Options] = {
    f"{quorum}{' aimed' if is_aimed else ''}{' endpoints' if endpoints > 1 else ''}": Options(
        quorum=quorum, endpoints=endpoints, is_swarm=True, is_brisk=True, is_aimed=is_aimed
    )
    for quorum, endpoints, is_aimed in (
        ("coordinator", 1, False),
        ("coordinator", 1, True),
        ("majority", 1, False),
        ("majority", 1, True),
        ("granted", 1, False),
        ("granted", 1, True),
        ("majority", 3, True),
    )
}


def digest(run: tuple[str, int]) -> str:
    """Return the line of a campaign's seed."""
    name, seed = run
    plan_run = PlanRun(draw_plan(seed, CAMPAIGNS[name]))
    try:
        came_of_it = str(plan_run.run())
    except Exception as error:  # noqa: BLE001 (what breaks is to break as before)
        came_of_it = f"{type(error).__name__}: {error}"
    world = plan_run.world
    agents = [(each.name, each.agent.timed_notices) for each in world.every_process]
    history = repr((world.events, agents, plan_run.said, came_of_it))
    world.dissolve()
    return f"{name} {seed} {hashlib.sha256(history.encode()).hexdigest()[:16]} {came_of_it}"


if __name__ == "__main__":
    first, _, end = sys.argv[1].partition("..")
    runs = [(name, seed) for seed in range(int(first), int(end)) for name in CAMPAIGNS]
    with multiprocessing.Pool() as pool:
        for line in pool.imap(digest, runs, chunksize=4):
            sys.stdout.write(line + "\n")
