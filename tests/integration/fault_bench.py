"""Runs with faults on one cluster, for tests that look at what the faults really did."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from elastic_harness.cluster.choose import choose_cluster
from elastic_harness.faults.registry import FaultRegistry
from elastic_harness.history.events import FaultEffective, FaultHealed, FaultIneffective
from elastic_harness.scenario.launchers import launcher_named
from elastic_harness.scenario.model import Scenario
from elastic_harness.scenario.planning.planner import make_plan
from elastic_harness.scenario.runner import RunResult
from elastic_harness.session import HarnessSession

__all__ = ["STEPPING", "FaultBench", "Outcome"]

# A job that takes steps until a file tells it to end.
STEPPING = """
import os, sys, time

probe = sys.modules["elastic_probe"]
end = os.path.join(os.environ["ELASTIC_CHECKPOINT_DIR"], "end")
step = 0
while not os.path.exists(end):
    step += 1
    probe.report_step(step)
    time.sleep(0.01)
"""


class Outcome:
    """What became of a run and of its faults."""

    def __init__(self, result: RunResult, log_dir: Path) -> None:
        self.result = result
        self.proved = {
            each.event.id: each.event.evidence for each in result.history.of_kind(FaultEffective)
        }
        self.failed = {
            each.event.id: each.event.reason for each in result.history.of_kind(FaultIneffective)
        }
        self.healed = [each.event.id for each in result.history.of_kind(FaultHealed)]
        self.printed = "\n".join(
            path.read_text(errors="replace") for path in sorted(log_dir.glob("*/launcher.log"))
        )

    def __repr__(self) -> str:
        return (
            f"{self.result.outcome}: {self.result.reason}\nproved {self.proved}\n"
            f"failed {self.failed}\nproblems {self.result.problems}\n{self.printed}"
        )


class FaultBench:
    """A session on a cluster, and a folder for its runs."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.session = HarnessSession(choose_cluster(kind), preload=("torch",))
        _ = self.session.cluster  # started here, and not in the first test
        self.folder = folder
        self._runs = 0

    def close(self) -> None:
        """End the cluster."""
        self.session.close()

    def run(
        self,
        script: str,
        timeline: Sequence[Mapping[str, object]],
        *args: str,
        nodes: int = 2,
        launcher: str = "pytest-elastic",
        faults: FaultRegistry | None = None,
        limit: str = "240s",
        **job: object,
    ) -> Outcome:
        """Run a script under a launcher, with faults."""
        self._runs += 1
        directory = self.folder / f"run-{self._runs}"
        directory.mkdir()
        (directory / "script.py").write_text(script)
        scenario = Scenario.model_validate(
            {
                "version": 1,
                "id": f"faults-{self._runs}",
                "title": "Faults on a real cluster",
                "job": {"script": "script.py", "args": list(args), "max_restarts": 3, **job},
                "nodes": nodes,
                "limit": limit,
                "timeline": [dict(entry) for entry in timeline],
            }
        )
        if faults is not None:
            self.session.faults = faults
        result = self.session.open(
            make_plan(scenario, seed=1),
            launcher_named(launcher),
            directory=str(directory),
            base_dir=str(directory),
            cwd=str(directory),
            environ=dict(os.environ),
        ).wait()
        return Outcome(result, directory / "logs")
