"""Healing on real nodes: after what was hit is gone, and once more; and nothing stays behind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from elastic_harness.faults.registry import built_in_faults

from tests.integration.fault_bench import FaultBench

# Steps without end: the last entry of the timeline ends the job.
SCRIPT = """
import time
from elastic_harness.observe import report_step
for step in range(1, 1_000_000):
    time.sleep(0.01)
    report_step(step)
"""

FAULTS: dict[str, dict[str, Any]] = {
    "worker": {"pause": "rank 1"},
    "agent": {"pause": {"agent": "n2"}},
    "hang": {"hang": "rank 1"},
    "slow": {"slow": "rank 1"},
    "files": {"file_limit": "rank 1"},
    "frozen": {"freeze_store": "rendezvous"},
    "slowed": {"slow_store": "rendezvous"},
    "node": {"pause": {"node": "n2"}},
    "cut": {"partition": "n2"},
    "flap": {"flap": "n2"},
    "late": {"degrade": {"latency": "5ms"}},
    "reset": {"reset": "n2"},
    "names": {"names": {"node": "n2", "of": "n1", "missing": True}},
    "wire": {"capture": "n2"},
    "cpu": {"cpu_limit": "n2"},
    "memory": {"memory_limit": {"node": "n2", "size": "500MB"}},
    "disk": {"disk_full": "n2"},
}


@pytest.fixture
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultBench]:
    """The best cluster that this machine has."""
    bench = FaultBench("auto", tmp_path_factory.mktemp("heals"))
    yield bench
    bench.close()


def test_what_is_gone_is_healed_and_twice_is_harmless(bench: FaultBench) -> None:
    """All at once on one node; it crashes under them; then everything is healed, and again."""
    able = bench.session.cluster.capabilities
    chosen: list[dict[str, Any]] = []
    for id, action in FAULTS.items():
        ((name, value),) = action.items()
        needs = built_in_faults().parse(name, value).needs
        if needs is None or able.has(needs):
            chosen.append(
                {"id": id, "when": {"progress": {"steps": 3}}, **action, "optional": True}
            )
    outcome = bench.run(
        SCRIPT,
        [
            *chosen,
            {"id": "gone", "after": "frozen + 1s", "crash": "n2"},
            {"id": "once", "after": "gone", "heal": "all"},
            {"id": "twice", "after": "once + 500ms", "heal": "all", "optional": True},
            {"id": "end", "after": "once + 3s", "kill_agent": "n1"},
        ],
    )
    assert outcome.result.problems == (), outcome
    assert {"gone", "worker", "agent", "hang", "frozen", "files"} <= set(outcome.proved), outcome
    in_force = {entry["id"] for entry in chosen} & set(outcome.proved)
    assert in_force <= set(outcome.healed), outcome
    assert len(outcome.healed) == len(set(outcome.healed)), outcome
    assert outcome.failed.get("twice") == "heal: all: there is nothing in force to heal", outcome
    again = bench.run("print('well')", [])
    assert again.result.outcome == "succeeded", "the cluster is as it was"
