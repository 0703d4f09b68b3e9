"""Compares the rounds of scenarios on real nodes with those on simulated ones.

python -m tests.simulation.compare                       every scenario that can be compared
python -m tests.simulation.compare crash-resume node-leaves
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from elastic_harness.cluster.choose import choose_cluster
from elastic_harness.faults.registry import built_in_faults
from elastic_harness.history.history import History
from elastic_harness.scenario.launchers import launcher_named
from elastic_harness.scenario.planning.planner import Plan, make_plan
from elastic_harness.scenario.reading.loader import load_file
from elastic_harness.session import HarnessSession
from elastic_simulation.scenarios.run import SimulatedRun, why_not

__all__ = ["CATALOG", "NOT_COMPARED", "SCENARIOS", "plans", "real_rounds", "simulated_rounds"]

SCENARIOS = Path(__file__).parents[2] / "scenarios"
CATALOG = built_in_faults()

# Scenarios whose rounds are not the same in every real run, and why.
NOT_COMPARED = {
    "spare-promoted": "which of two nodes that start at once comes first, and who is the spare",
    "deaf-store-host": "how many rounds a deaf coordinator seals alone is a matter of milliseconds",
    "ring": "of two links that heal at once, which is found first: three begin with either",
    "storm": "what a fault hits depends on when a step is reached",
    "swarm": "what a fault hits depends on when a step is reached",
}

Rounds = list[tuple[list[str], int | None]]


def plans() -> Iterator[tuple[Path, Plan]]:
    """Yield every scenario of the library, planned, with the file it is from."""
    for path in sorted(SCENARIOS.rglob("*.elastic.yaml")):
        for loaded in load_file(str(path), CATALOG):
            yield path, make_plan(loaded.scenario, seed=0)


def rounds_of(history: History) -> Rounds:
    """Return who was in each round that formed, in rank order, and its restart count."""
    return [
        (
            list(dict.fromkeys(world.workers[rank].node for rank in sorted(world.workers))),
            world.restart_count,
        )
        for world in history.worlds.rounds
        if world.formed_at is not None
    ]


def simulated_rounds(plan: Plan) -> Rounds:
    """Return the rounds of a simulated run."""
    return rounds_of(SimulatedRun(plan, CATALOG).run().history)


def real_rounds(session: HarnessSession, plan: Plan, path: Path, directory: str) -> Rounds:
    """Return the rounds of a real run; `directory` is its own, and empty."""
    opened = session.open(
        plan,
        launcher_named("pytest-elastic"),
        directory=directory,
        base_dir=str(path.parent),
        cwd=directory,
        environ=dict(os.environ),
        shared=(str(SCENARIOS.parent),),
    )
    return rounds_of(opened.wait().history)


def main(names: Sequence[str]) -> int:
    """Compare; the exit code is 1 if a scenario has other rounds on real nodes."""
    session = HarnessSession(choose_cluster("auto"))
    differing = 0
    try:
        for path, plan in plans():
            name = plan.scenario.id
            problem = why_not(plan) or NOT_COMPARED.get(name.partition("[")[0])
            if (names and name not in names) or problem is not None:
                if not names:
                    sys.stdout.write(f"{name:28} not compared: {problem}\n")
                continue
            with tempfile.TemporaryDirectory() as folder:
                real = real_rounds(session, plan, path, folder)
            simulated = simulated_rounds(plan)
            differing += real != simulated
            verdict = "same" if real == simulated else f"DIFFERENT: real {real}"
            sys.stdout.write(f"{name:28} {verdict} {simulated}\n")
            sys.stdout.flush()
    finally:
        session.close()
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
