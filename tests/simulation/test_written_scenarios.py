"""Scenarios as a user might write them that are not in the library, in virtual time."""

from __future__ import annotations

from pathlib import Path

from elastic_harness.history.events import FaultFired
from elastic_harness.history.judge import unmet
from elastic_harness.scenario.planning.planner import make_plan
from elastic_harness.scenario.reading.loader import load_file
from elastic_harness.scenario.runner import RunResult
from elastic_simulation.scenarios.run import SimulatedRun

from pytest_elastic.events.model import CoordinatorStarted
from tests.simulation.compare import CATALOG

# Of a tie, the half goes on that has the node that decided (R12); the other one is lost.
TIE = """
nodes: {initial: 4, min: 2, max: 4}
timeline:
  - at: {step: 12, rank: 0}
    id: cut
    partition: {shape: halves}
    until: end
expect:
  eventually:
    - {world_size: 2, within: 20s, after: cut}
  finally:
"""
# An event tells of the successor, which is the store's host from then on.
FOLLOWED = """
nodes: {initial: 3, min: 2, max: 3}
timeline:
  - at: {step: 12, rank: 0}
    crash: n1
  - when: {event: coordinator_started, count: 2}
    pause: {agent: store host}
    for: 200ms
expect:
  sometimes:
    - {event: coordinator_started, node: n2}
  finally:
    - job: succeeded
"""
# The launcher is gone and its node is not: no node can join under its name.
BACK = """
nodes: {initial: 3, min: 2, max: 3}
timeline:
  - at: {step: 12, rank: 0}
    id: gone
    kill_agent: n3
  - after: gone + 1s
    id: back
    reboot: n3
expect:
  eventually:
    - {world_size: 3, within: 20s, after: back}
  finally:
    - job: succeeded
"""
# A job that was killed hard, and is started again under the same run id.
ANEW = """
nodes: {initial: 3, min: 2, max: 3}
timeline:
  - at: {step: 12, rank: 1, round: 1}
    id: killed
    reboot: {node: all, downtime: 200ms}
expect:
  eventually:
    - {round: 2, within: 30s, after: killed}
  finally:
    - job: succeeded
    - restarts: 0
    - world_sizes: [3, 3]
"""
# Two nodes of at least three: a job that never begins.
TOO_FEW = """
nodes: {initial: 2, min: 3, max: 4}
expect:
  finally:
    - exit_codes: 3
"""
ASKS_FOR_NONE = """
expect:
  finally:
    - no_workers
"""


def _ran(folder: Path, text: str) -> RunResult:
    """Run a scenario with four workers' worth of steps, and a majority that goes on."""
    path = folder / "written.elastic.yaml"
    folder.joinpath("train.py").touch()  # it is never run
    path.write_text(
        "version: 1\nid: written\ntitle: t\nlimit: 90s\n"
        "job: {script: train.py, args: [--steps=300], max_restarts: 3, "
        "rdzv: {conf: {quorum: majority, join_timeout: 8}}}\n" + text.lstrip(),
        encoding="utf-8",
    )
    (loaded,) = load_file(str(path), CATALOG)
    return SimulatedRun(make_plan(loaded.scenario, seed=0), CATALOG).run()


def _complaints(result: RunResult) -> list[str]:
    return [f"{each.title}: {each.verdict.reason}" for each in unmet(result.judgements)]


def test_one_side_may_be_expected_to_go_on_and_the_other_to_be_lost(tmp_path: Path) -> None:
    """`exit_codes` says of each node how its launcher ends; 3 is what a lost one ends with."""
    expected = "    - exit_codes: {n1: 0, n2: 0, n3: 3, n4: 3}\n"
    assert _complaints(_ran(tmp_path, TIE + expected)) == []


def test_a_job_of_which_a_part_is_lost_has_not_succeeded(tmp_path: Path) -> None:
    """`job` asks every launcher that no fault has ended, and says how each has, and what to ask."""
    (message,) = _complaints(_ran(tmp_path, TIE + "    - job: succeeded\n"))
    assert "n1 0, n2 0, n3 3, n4 3" in message
    assert "`exit_codes` says it node by node" in message


def test_a_scenario_may_wait_for_the_next_leader(tmp_path: Path) -> None:
    """The event is there as on real nodes: once a term, with the reason, from the leader."""
    result = _ran(tmp_path, FOLLOWED)
    assert _complaints(result) == []
    started = result.history.of_kind(CoordinatorStarted)
    assert [entry.node for entry in started] == ["n1", "n2"]
    assert {entry.event.quorum for entry in started} == {"majority"}
    assert started[0].event.term < started[1].event.term
    assert "was lost; this node was elected" in started[1].event.reason
    (paused,) = [e for e in result.history.of_kind(FaultFired) if e.event.fault == "pause"]
    assert paused.at >= started[1].at
    assert paused.event.targets == ("n2",)


def test_a_launcher_that_was_killed_is_brought_back_by_a_reboot(tmp_path: Path) -> None:
    """As the message about a `join` says."""
    assert _complaints(_ran(tmp_path, BACK)) == []


def test_a_job_killed_everywhere_begins_anew_and_is_no_second_world(tmp_path: Path) -> None:
    """The launcher begins with round 1 again; what is written counts the rounds that were seen."""
    result = _ran(tmp_path, ANEW)
    assert _complaints(result) == []
    worlds = [(world.ordinal, world.round, world.job) for world in result.history.worlds.rounds]
    assert worlds == [(1, 1, 1), (2, 1, 2)]


def test_that_a_job_never_begins_may_be_what_is_asked_for(tmp_path: Path) -> None:
    """Asked for, nothing is judged that needs workers; it is not green by accident."""
    assert _complaints(_ran(tmp_path, TOO_FEW + "    - no_workers\n")) == []
    findings = _complaints(_ran(tmp_path, TOO_FEW))
    assert {each.partition(":")[0] for each in findings} >= {"ranks", "workers_observed"}
    assert all("`no_workers`" in each for each in findings), findings
    (message,) = _complaints(_ran(tmp_path, ANEW.partition("expect")[0] + ASKS_FOR_NONE))
    assert message.startswith("no_workers: workers of n")
