"""One measurement: start a job on a real cluster, hurt it, and read the time off the history."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from elastic_harness.history.events import FaultFired, ProcessStarted
from elastic_harness.history.history import History
from elastic_harness.history.worlds import World
from elastic_harness.job import Chaos, Job, NotSeen
from elastic_harness.scenario.launchers import launcher_named
from elastic_harness.scenario.model import Entry, Scenario
from elastic_harness.scenario.planning.planner import make_plan
from elastic_harness.session import HarnessSession, OpenRun

from bench.cases import Case
from bench.moments import moments

__all__ = ["Launch", "Result", "make_job", "measure", "memory_mb", "pss_mb"]

_FORM_LIMIT_S = 90.0
# A job that has just formed is hurt after this many steps: nothing of its start is still going on.
_SETTLED_STEPS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A launcher as it is measured: forked from the preloaded server, or executed as a command."""

    title: str
    launcher: str
    preloaded: bool
    repeats: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Seconds, or None where the job never came back (`reason` says what was seen instead).

    `memory_mb` is the sum of PSS of the job. `moments` is what came when on the way (see
    `bench.moments`).
    """

    seconds: float | None
    reason: str = ""
    memory_mb: float = 0.0
    moments: Mapping[str, float] = field(default_factory=dict)


def measure(session: HarnessSession, case: Case, launch: Launch, *, is_ours: bool) -> Result:
    """Run a case once."""
    limit_s = 30.0 if is_ours else case.torchrun_limit_s
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        job = make_job(session, case, launch, folder)
        try:
            return _run(session, job, case, limit_s)
        except NotSeen as error:
            return Result(seconds=None, reason=str(error))
        finally:
            job.finish()


def _run(session: HarnessSession, job: Job, case: Case, limit_s: float) -> Result:
    first_size = 2 * case.nodes["initial"]
    job.start()
    job.wait_for_progress(1, within=_FORM_LIMIT_S)
    formed = _first_world(job.history, 0.0, first_size)
    began = min(entry.at for entry in job.history.of_kind(ProcessStarted))
    if case.action is None:
        return Result(seconds=_back_at(formed) - began, memory_mb=memory_mb(session))
    job.wait_for_progress(_SETTLED_STEPS, within=30.0)
    number = len(job.rounds) + 1
    Chaos(lambda: job).now().inject(case.action, case.value, id="fault")
    while True:
        # A launcher may form worlds on the way that do not count; each wait is bounded.
        job.wait_for_round(number, within=limit_s)
        job.wait_for_progress(1, within=limit_s)
        fired = next(entry.at for entry in job.history.of_kind(FaultFired))
        with suppress(NotSeen):
            world = _first_world(job.history, fired, case.world_size)
            on_the_way = moments(job.history, fired, world)
            return Result(seconds=_back_at(world) - fired, moments=on_the_way)
        number += 1


def _first_world(history: History, after: float, size: int) -> World:
    for world in history.worlds.rounds:
        if world.started_at > after and world.world_size == size and world.progressed_at:
            return world
    raise NotSeen(f"no world of {size} after the fault")


def _back_at(world: World) -> float:
    assert world.progressed_at is not None, "only worlds with progress are chosen"
    return world.progressed_at


def make_job(
    session: HarnessSession, case: Case, launch: Launch, folder: str, *, nproc: int = 2
) -> Job:
    """Return a job of `bench.worker` under a launcher, not started yet."""
    scenario = Scenario.model_validate(
        {
            "version": 1,
            "id": case.name,
            "title": case.title,
            "job": {
                "module": "bench.worker",
                "args": list(case.args),
                "nproc_per_node": nproc,
                "max_restarts": 3,
                "rdzv": {"conf": dict(case.conf)},
            },
            "nodes": dict(case.nodes),
            "limit": _FORM_LIMIT_S + 60.0 + case.torchrun_limit_s,
        }
    )

    def start(entries: Sequence[Entry]) -> OpenRun:
        root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        return session.open(
            make_plan(scenario.model_copy(update={"timeline": tuple(entries)}), 0),
            launcher_named(launch.launcher),
            directory=folder,
            base_dir=root,
            cwd=root,
            environ={**os.environ, "PYTHONPATH": _python_path(root)},
            is_open=True,
            preloaded=launch.preloaded,
        )

    return Job(start, session.faults, draw=lambda *_: ())


def _python_path(root: str) -> str:
    return os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))


def memory_mb(session: HarnessSession) -> float:
    """Return what all processes of all nodes use, shared pages counted once in all."""
    cluster = session.cluster
    found = (cluster.processes(name).result() for name in cluster.nodes)
    return pss_mb(process.pid for processes in found for process in processes)


def pss_mb(pids: Iterable[int]) -> float:
    """Return what these processes use together (the sum of their PSS)."""
    return sum(_pss_kb(pid) for pid in pids) / 1024


def _pss_kb(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
            for line in file:
                if line.startswith("Pss:"):
                    return int(line.split()[1])
    except OSError:
        pass
    return 0
