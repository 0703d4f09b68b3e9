"""What a launcher is told: the harness's own pace, and a slower one for many nodes."""

from __future__ import annotations

from pathlib import Path

import pytest
from elastic_harness.scenario.launchers import JobPlan, Launcher, NodePlan, launcher_named
from elastic_harness.scenario.planning.planner import make_plan
from elastic_harness.scenario.setup import make_stage_plan

from tests.unit.scenario.bench import scenario

_PROCESSORS = 3


def conf_of(nodes: int, launcher: str = "pytest-elastic", **conf: str) -> dict[str, str]:
    """Return the settings of the rendezvous that a node of a job is started with."""
    job = JobPlan(
        run_id="job",
        program=("train.py",),
        nproc_per_node=1,
        min_nodes=1,
        max_nodes=nodes,
        max_restarts=0,
        endpoint_port=29400,
        conf=conf,
        processors=_PROCESSORS,
    )
    node = NodePlan(name="n1", address="10.77.0.1", index=0, log_dir="/tmp/n1")
    argv = launcher_named(launcher).argv(job, node)
    (given,) = [word for word in argv if word.startswith("--rdzv-conf=")] or ["--rdzv-conf="]
    pairs = given.removeprefix("--rdzv-conf=").split(",")
    return dict(pair.split("=", 1) for pair in pairs if pair)


def test_a_job_of_few_nodes_has_the_harness_pace() -> None:
    """A quarter of production's times."""
    conf = conf_of(16 * _PROCESSORS)
    assert (conf["beat_interval"], conf["lease"], conf["drift"]) == ("0.25", "1.25", "0.2")


def test_a_lease_is_longer_where_many_nodes_share_a_processor() -> None:
    """In proportion, all that a lease is made of, and nothing else."""
    few, many = conf_of(2), conf_of(32 * _PROCESSORS)
    assert (many["beat_interval"], many["lease"], many["drift"]) == ("0.5", "2.5", "0.4")
    assert few | {"beat_interval": "0.5", "lease": "2.5", "drift": "0.4"} == many


def test_no_lease_is_longer_than_productions() -> None:
    """However many nodes there are."""
    assert conf_of(1000 * _PROCESSORS)["lease"] == "5"


def test_who_says_how_long_a_lease_is_gets_that() -> None:
    """And the harness's own pace for the rest: its proportions were chosen with it in mind."""
    conf = conf_of(32 * _PROCESSORS, lease="2")
    assert (conf["beat_interval"], conf["lease"], conf["drift"]) == ("0.25", "2", "0.2")


def test_other_launchers_have_no_pace_of_ours() -> None:
    """They are told what the job says."""
    assert conf_of(32 * _PROCESSORS, "torchrun") == {}


@pytest.mark.parametrize(("kind", "ports"), [("namespace", 1), ("process", 3), ("machines", 3)])
def test_runs_have_ports_of_their_own_where_they_share_the_hosts_network(
    kind: str, ports: int, tmp_path: Path
) -> None:
    """Torch's store listens at every address: two of one port would not both be served."""
    plan = make_plan(scenario(), 1)
    found = {
        make_stage_plan(
            plan,
            launcher_named("torchrun"),
            directory=str(tmp_path / name),
            socket_path=str(tmp_path / "socket"),
            base_dir=str(tmp_path),
            cwd=str(tmp_path),
            cluster_kind=kind,
            environ={},
        ).job.endpoint_port
        for name in ("one", "two", "three")
    }
    assert len(found) == ports


def test_only_our_launcher_is_known_to_count_restarts_for_the_whole_job() -> None:
    """Each agent of torch's counts its own, under whatever command it runs."""
    template = "accelerate launch --num_machines $nodes $bare_program"
    assert not launcher_named("pytest-elastic").counts_by_node
    assert all(launcher_named(name).counts_by_node for name in ("torchrun", template))


def test_only_a_launcher_whose_options_are_read_is_known_to_have_been_given_the_budget() -> None:
    """Another may be given another number by a job's options."""
    template = "launch --max-restarts=$max_restarts $options $program"
    assert launcher_named("torchrun").gives_max_restarts
    assert not launcher_named(template).gives_max_restarts
    other = Launcher(name="other", command=("other", "$program"), read_options="a:b")
    assert not other.gives_max_restarts
