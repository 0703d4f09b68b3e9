"""How many nodes one machine carries: `python -m bench.scale` (64 nodes; `--nodes` for others).

First bare nodes with a gloo group of one worker each, forked from the preloaded server; then the
same under pytest-elastic's own launcher, cut into halves and healed. Every figure is of this run.
With 64 nodes those that have a target are judged: the exit code is 1 when one is missed, or when
the job does not come through. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from elastic_harness.cluster.choose import choose_cluster
from elastic_harness.cluster.client import ClusterClient
from elastic_harness.cluster.cluster import NodeSpec, having
from elastic_harness.cluster.process import ProcessHandle, ProcessSpec
from elastic_harness.future import Future, gather, wait_for
from elastic_harness.history.events import FaultEffective, FaultFired, FaultHealed, ProcessStarted
from elastic_harness.job import Chaos, Injected, Job, NotSeen
from elastic_harness.network import partitions
from elastic_harness.network.link_model import HEALTHY, LinkPolicy
from elastic_harness.scenario.launchers import modules_to_preload
from elastic_harness.session import HarnessSession

from bench.cases import Case
from bench.figures import Figures
from bench.measure import Launch, make_job, memory_mb, pss_mb
from pytest_elastic.loop import Loop

_ROOT = Path(__file__).resolve().parent.parent
_LIMIT_S = 120.0
# What a cluster is to carry, on two cores.
_TARGET_NODES = 64
_MAX_FORMING_S = 3.0
_MAX_MEMORY_MB = 1000.0
_OURS = Launch(title="pytest-elastic", launcher="pytest-elastic", preloaded=True, repeats=1)


def main(argv: Sequence[str]) -> int:
    """Measure everything once."""
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=__doc__)
    parser.add_argument("--nodes", type=int, default=64, help="how many nodes (64)")
    parser.add_argument("--bare", action="store_true", help="without the launcher")
    options = parser.parse_args(argv)
    print(f"{options.nodes} nodes, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    figures = Figures()
    with tempfile.TemporaryDirectory(prefix="scale-") as folder:
        _measure_bare(options.nodes, Path(folder), figures)
    if not options.bare:
        _measure_launcher(options.nodes, figures)
    return figures.end()


def _timed(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def _measure_bare(count: int, folder: Path, figures: Figures) -> None:
    """Nodes, one gloo worker on each, links cut and healed: the harness alone."""
    loop = Loop()
    choice = choose_cluster("namespace")
    cluster = choice.make(loop, on_event=lambda _: None, preload=modules_to_preload())
    wait_for(loop, cluster.start(), within_s=_LIMIT_S)
    names = [f"n{index}" for index in range(1, count + 1)]
    began = time.perf_counter()
    specs = [
        NodeSpec(name=name, index=index, shared=[str(folder), str(_ROOT)])
        for index, name in enumerate(names, start=1)
    ]
    wait_for(loop, gather(cluster.start_node(spec) for spec in specs), within_s=_LIMIT_S)
    figures.show("bare: nodes up", "s", time.perf_counter() - began)
    figures.show("bare: memory of nodes, switch and server (PSS)", "MB", _all_pss_mb(cluster))
    spawned = gather(_spawn(cluster, names, rank, folder) for rank in range(count))
    workers = wait_for(loop, spawned, within_s=_LIMIT_S)
    figures.show("bare: nodes up and workers forked", "s", time.perf_counter() - began)
    while len([path for path in folder.iterdir() if path.name.isdigit()]) < count:
        loop.run_once(0.01)
        failed = [worker for worker in workers if worker.exit_code is not None]
        assert not failed, (folder / "output").read_text()
    figures.show(
        "bare: nodes up and first all-reduce done by all",
        "s",
        time.perf_counter() - began,
        at_most=_MAX_FORMING_S if count == _TARGET_NODES else None,
    )
    figures.show(
        "bare: memory with workers (PSS)",
        "MB",
        _all_pss_mb(cluster),
        at_most=_MAX_MEMORY_MB if count == _TARGET_NODES else None,
    )
    halves = partitions.halves(names)
    network = having(cluster.network, cluster.capabilities["network"])

    def change(policy: LinkPolicy) -> None:
        wait_for(loop, network.lay(halves, (("", policy),)))

    cut = partial(change, LinkPolicy(up=False))
    figures.show(f"bare: {len(halves)} links cut", "s", _timed(cut))
    figures.show(f"bare: {len(halves)} links healed", "s", _timed(partial(change, HEALTHY)))
    figures.show(
        "bare: counters of all links read",
        "s",
        _timed(lambda: wait_for(loop, network.counters())),
    )
    (folder / "stop").touch()
    while any(worker.exit_code is None for worker in workers):
        loop.run_once(1.0)
    assert {worker.exit_code for worker in workers} == {0}, (folder / "output").read_text()
    own = wait_for(loop, network.counters()).own_drops
    print(f"packets the switch itself dropped: {dict(own) or 'none'}")
    figures.show("bare: nodes ended", "s", _timed(lambda: wait_for(loop, cluster.reset())))
    wait_for(loop, cluster.close())
    loop.close()


def _spawn(
    cluster: ClusterClient, names: Sequence[str], rank: int, folder: Path
) -> Future[ProcessHandle]:
    path = os.pathsep.join((str(_ROOT), str(_ROOT / "harness")))
    environ = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": path,
        "RANK": str(rank),
        "WORLD_SIZE": str(len(names)),
        "MASTER_ADDR": names[0],
        "MASTER_PORT": "29500",
        "OMP_NUM_THREADS": "1",
    }
    spec = ProcessSpec(
        argv=("worker", str(folder)),
        environ=environ,
        cwd=str(folder),
        stdout=str(folder / "output"),
        stderr=str(folder / "output"),
        preloaded_entry="bench.ring:main",
    )
    return cluster.spawn(names[rank], spec)


def _all_pss_mb(cluster: ClusterClient) -> float:
    pids = set(cluster.own_pids)
    for name, node in cluster.nodes.items():
        pids |= {node.pid, *(process.pid for process in cluster.processes(name).result())}
    return pss_mb(pids)


def _measure_launcher(count: int, figures: Figures) -> None:
    """The same under our launcher: an agent, a keeper, a store service and a worker a node."""
    case = Case(
        name="scale", title="many nodes", nodes={"initial": count, "min": count // 2, "max": count}
    )
    session = HarnessSession(choose_cluster("namespace"))
    try:
        with tempfile.TemporaryDirectory(prefix="scale-") as folder:
            job = make_job(session, case, _OURS, folder, nproc=1)
            try:
                _follow(session, job, count, figures)
            except NotSeen as error:
                print(f"launcher: {error}")
                figures.missed.append("launcher: a job that comes through")
            finally:
                job.finish()
    finally:
        session.close()


def _follow(session: HarnessSession, job: Job, count: int, figures: Figures) -> None:
    """Form the job, cut it into halves, heal it; show what each took until all had stepped."""
    history = job.start().history
    formed = _wait_for_step_of_all(job, count)
    began = min(entry.at for entry in history.of_kind(ProcessStarted))
    figures.show("launcher: first process to first step of all", "s", formed - began)
    figures.show("launcher: memory of the job (PSS)", "MB", memory_mb(session))
    cut = Chaos(lambda: job).now().inject("partition", "halves", id="cut")
    job.wait_for_event("fault_effective", id="cut", within=_LIMIT_S)
    fired = next(each.at for each in history.of_kind(FaultFired))
    proven = next(each.at for each in history.of_kind(FaultEffective))
    figures.show("launcher: cut into halves, effect proven", "s", proven - fired)
    half = _wait_for_step_of_all(job, count // 2, after=cut)
    figures.show("launcher: cut to first step of the half that goes on", "s", half - fired)
    Chaos(lambda: job).now().inject("heal", "cut")
    whole = _wait_for_step_of_all(job, count, after=cut.healed)
    healed = next(each.at for each in history.of_kind(FaultHealed))
    figures.show("launcher: healed to first step of all", "s", whole - healed)


def _wait_for_step_of_all(job: Job, size: int, *, after: Injected | str | None = None) -> float:
    """Wait until a round of so many workers has formed and all have stepped; return when."""
    job.wait_for_world_size(size, within=_LIMIT_S, after=after)
    job.wait_for_progress(1, within=_LIMIT_S, after=after)
    world = next(each for each in reversed(job.rounds) if each.world_size == size)
    if world.progressed_at is None:
        raise NotSeen(f"the round of {size} has ended before all had stepped")
    return world.progressed_at


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
