"""Healing on real nodes: after what was hit is gone, and once more; and nothing stays behind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from elastic_harness.faults.registry import built_in_faults
from elastic_harness.history.events import FaultFired, FaultHealed, StepCompleted
from elastic_harness.history.history import History

from tests.integration.fault_bench import STEPPING, FaultBench

# Steps without end: the last entry of the timeline ends the job.
SCRIPT = """
import time
from elastic_harness.observe import report_step
for step in range(1, 1_000_000):
    time.sleep(0.01)
    try:
        open("/dev/null").close()
    except OSError:
        pass  # there are no more files
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
            # A worker must still take steps to be told of a limit on its files.
            steps = 3 if id == "files" else 50
            when = {"when": {"progress": {"steps": steps}}}
            chosen.append({"id": id, **when, **action, "optional": True})
    outcome = bench.run(
        SCRIPT,
        [
            *chosen,
            {"id": "gone", "after": "frozen + 1s", "crash": "n2"},
            {"id": "once", "after": "gone", "heal": "all"},
            {"id": "twice", "after": "once + 500ms", "heal": "all"},
            {"id": "end", "after": "once + 3s", "kill_agent": "n1"},
        ],
    )
    assert not outcome.result.problems, outcome
    # What hangs was paused already, and by nothing more.
    assert {"gone", "worker", "agent", "frozen", "files"} <= set(outcome.proved), outcome
    in_force = {entry["id"] for entry in chosen} & set(outcome.proved)
    assert in_force <= set(outcome.healed), outcome
    assert len(outcome.healed) == len(set(outcome.healed)), outcome
    assert "twice" not in outcome.failed, outcome
    again = bench.run("print('well')", [])
    assert again.result.outcome == "succeeded", "the cluster is as it was"


def test_two_faults_that_stop_the_same_do_not_let_it_go_on_for_each_other(
    bench: FaultBench,
) -> None:
    """A node paused twice, a worker stopped by two faults: one is healed, and no step is taken.

    From the heal of the first to the firing of an entry that comes before the heal of the second,
    for as long as hundred steps take.
    """
    stops: dict[str, list[dict[str, Any]]] = {"worker": [{"pause": "rank 1"}, {"hang": "rank 1"}]}
    if bench.session.cluster.capabilities.has("pause"):
        stops["node"] = [{"pause": {"node": "n2"}}, {"pause": {"node": "n2"}}]
    timeline: list[dict[str, Any]] = []
    after: dict[str, Any] = {"at": {"step": 5, "rank": 1}}
    for what, (first, second) in stops.items():
        timeline += [
            {"id": f"{what}-1", **after, **first},
            {"id": f"{what}-2", "after": f"{what}-1", **second},
            {"after": f"{what}-2 + 500ms", "heal": f"{what}-1"},
            {
                "id": f"{what}-mark",
                "after": f"{what}-1.healed + 1s",
                "run": {"node": "n1", "command": "true", "within": "60s"},
            },
            {"after": f"{what}-mark", "heal": f"{what}-2"},
        ]
        after = {"after": f"{what}-2.healed + 500ms"}
    ending = {**after, "id": "end", "run": 'touch "$ELASTIC_CHECKPOINT_DIR/end"'}
    # A lease that ends while a node stands still would end its workers.
    outcome = bench.run(STEPPING, [*timeline, ending], rdzv={"conf": {"lease": "60"}})
    assert outcome.result.outcome == "succeeded", outcome
    assert not outcome.failed, outcome
    for what in stops:
        ranks = steps_between(outcome.result.history, f"{what}-1", f"{what}-mark")
        assert 1 not in ranks, f"{what}: rank 1 took a step"


def steps_between(history: History, healed: str, fired: str) -> set[int]:
    """Return the ranks that took steps between the heal of one entry and the firing of another."""
    found: set[int] = set()
    is_within = False
    for record in history.records:
        match record.event:
            case FaultHealed(id=id) if id == healed:
                is_within = True
            case FaultFired(id=id) if id == fired:
                assert is_within, f"{fired} comes after {healed}"
                return found
            case StepCompleted(rank=rank) if is_within:
                found.add(rank)
            case _:
                pass
    raise AssertionError(f"{fired} has not fired")
