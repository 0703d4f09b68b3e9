"""From a plan and a run directory to what is launched on the nodes.

What a job sees is what its launcher would give it on a real machine, and a few variables that tell
it where this run's things are: `ELASTIC_CHECKPOINT_DIR` (shared by all nodes, as a cluster's file
system would be), and the probe's and the events' socket.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence

from elastic_harness.observe.observer import probe_environ
from elastic_harness.scenario.launchers import JobPlan, Launcher
from elastic_harness.scenario.model import Job
from elastic_harness.scenario.planning.planner import Plan
from elastic_harness.scenario.stage.plan import StagePlan
from elastic_harness.scenario.stage.working_copy import copy_working_folder, is_within
from pytest_elastic.errors import UsageError

__all__ = ["make_stage_plan"]

# Nodes of a namespace cluster have networks of their own, where torchrun's default port is free.
_ENDPOINT_PORT = 29400
# On machines, runs share addresses, and on plain processes too, as torch's store listens on all of
# them: each has a port of its own, below those that a kernel gives out by itself and clear of the
# default.
_ENDPOINT_PORTS = range(20000, 29000)
_WITH_OWN_NETWORKS = ("namespace",)
# What the surroundings of pytest say to a launcher or a worker is not meant for those under test.
_FOREIGN = re.compile(
    r"PET_.*|TORCHELASTIC_.*|PYTEST_.*|ELASTIC_.*|RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE"
    r"|GROUP_RANK|GROUP_WORLD_SIZE|ROLE_RANK|ROLE_NAME|ROLE_WORLD_SIZE|MASTER_ADDR|MASTER_PORT"
    r"|COV_CORE_.*|COVERAGE_PROCESS_START"
    r"|TMPDIR|TEMP|TMP"  # nodes have a place of their own for temporary files
)


def make_stage_plan(
    plan: Plan,
    launcher: Launcher,
    *,
    directory: str,
    socket_path: str,
    base_dir: str,
    cwd: str,
    cluster_kind: str,
    environ: Mapping[str, str],
    shared: Sequence[str] = (),
    preloaded: bool = True,
    launch_environs: Sequence[Callable[[str], Mapping[str, str]]] = (),
    patience: float = 1.0,
) -> StagePlan:
    """Return what a run launches, its folders made; raises UsageError for a program not there.

    `base_dir` is what a script's path is relative to; `cwd` is where the job runs. Without
    `preloaded`, launchers are executed as commands, torch imports and all.
    """
    job = plan.scenario.job
    log_dir = os.path.join(directory, "logs")
    called_in, copy = cwd, os.path.join(directory, "work")
    read_only: Sequence[str] = ()
    if job.working_copy is not None:
        linked = copy_working_folder(cwd, copy, job.working_copy.leave_out)
        outside = dict.fromkeys((*linked, *_named_outside(job.args, cwd)))
        read_only = [path for path in outside if not is_within(directory, path)]
        cwd = copy
    checkpoints = os.path.join(cwd if job.working_copy else directory, "checkpoints")
    for folder in (log_dir, checkpoints):
        os.makedirs(folder, exist_ok=True)
    kept = {name: value for name, value in environ.items() if not _FOREIGN.fullmatch(name)}
    return StagePlan(
        launcher=launcher,
        job=_job_plan(
            plan,
            directory,
            _words(job, base_dir, called_in, cwd),
            has_own_network=cluster_kind in _WITH_OWN_NETWORKS,
        ),
        environ={
            **probe_environ(socket_path, kept),
            # Workers share few processors here; a thread pool each would only be in the way.
            "OMP_NUM_THREADS": kept.get("OMP_NUM_THREADS", "1"),
            "ELASTIC_CHECKPOINT_DIR": checkpoints,
            "PYTEST_ELASTIC_EVENTS": f"unix:{socket_path}",
            **({"ELASTIC_PROBE_STEP": job.observe.step} if job.observe.step else {}),
            **job.env,
        },
        cwd=cwd,
        log_dir=log_dir,
        shared=_outermost(
            (
                directory,
                os.path.dirname(socket_path),
                base_dir,
                called_in,
                *shared,
                *read_only,
            )
        ),
        read_only=read_only,
        endpoints=plan.scenario.endpoint_hosts,
        data_folders=_data_folders(cwd if job.working_copy else checkpoints, job.env, shared),
        # What is preloaded has read its environment long ago.
        preloaded=preloaded and not launch_environs,
        launch_environs=launch_environs,
        resources=plan.scenario.nodes.resources,
        labels=plan.scenario.nodes.labels,
        proxies=plan.scenario.proxies,
        seed=plan.seed.value,
        patience=patience,
    )


def _named_outside(arguments: Sequence[str], called_in: str) -> list[str]:
    """Return what exists outside the copied folder of the absolute paths that arguments name."""
    named = [argument.partition("=")[2] or argument for argument in arguments]
    paths = [os.path.realpath(path) for path in named if os.path.isabs(path)]
    return [
        path
        for path in paths
        if (os.path.isdir(path) or os.path.isfile(path)) and not is_within(path, called_in)
    ]


def _data_folders(
    checkpoints: str, environ: Mapping[str, str], shared: Sequence[str]
) -> tuple[str, ...]:
    """Return the folders whose files are the job's own: checkpoints, and what is temporary."""
    first = environ.get("ELASTIC_CHECKPOINT_DIR", checkpoints)
    temporary = os.path.realpath(tempfile.gettempdir())
    others = [os.path.realpath(folder) for folder in shared]
    below = [folder for folder in others if folder.startswith(temporary + os.sep)]
    return tuple(dict.fromkeys((os.path.realpath(first), *below)))


def _job_plan(
    plan: Plan, directory: str, program: Sequence[str], *, has_own_network: bool
) -> JobPlan:
    scenario = plan.scenario
    job = scenario.job
    # Two runs never share a name, so that a straggler of one cannot join the other.
    digest = hashlib.sha256(os.fsencode(directory)).hexdigest()[:8]
    own_port = _ENDPOINT_PORTS[int(digest, 16) % len(_ENDPOINT_PORTS)]
    return JobPlan(
        run_id=f"{scenario.id}-{digest}",
        program=tuple(program),
        is_module=job.module is not None,
        is_binary=job.command is not None,
        nproc_per_node=job.nproc_per_node,
        min_nodes=scenario.nodes.min,
        max_nodes=scenario.nodes.max,
        max_restarts=job.max_restarts,
        endpoint_port=_ENDPOINT_PORT if has_own_network else own_port,
        conf=job.rdzv.conf,
        options=job.options,
        are_workers_apart=scenario.tells_workers_apart,
        backend=job.rdzv.backend,
        processors=len(os.sched_getaffinity(0)),
    )


def _words(job: Job, base_dir: str, called_in: str, cwd: str) -> Sequence[str]:
    """Return the program and its arguments; paths in the folder that was copied are the copy's."""
    program = _program(job, base_dir, called_in, cwd)
    if cwd == called_in:
        return (*program, *job.args)
    # At the beginning, or behind `--name=`; not what is left out of a copy, such as a `venv`.
    path = re.compile(rf"(^|[=:,]){re.escape(called_in)}(?=/|$)([^:,]*)")

    def copied(found: re.Match[str]) -> str:
        is_left_out = os.path.exists(called_in + found[2]) and not os.path.exists(cwd + found[2])
        return found[0] if is_left_out else f"{found[1]}{cwd}{found[2]}"

    return (*program, *(path.sub(copied, argument) for argument in job.args))


def _program(job: Job, base_dir: str, called_in: str, cwd: str) -> Sequence[str]:
    """Return what is launched; a script of the folder that was copied is the copy's."""
    if job.command is not None:
        return tuple(job.command)
    if job.module is not None:
        return (job.module,)
    assert job.script is not None, "a job has a script, a module or a command"
    path = os.path.normpath(os.path.join(base_dir, job.script))
    if not os.path.isfile(path):
        raise UsageError(f"there is no script {path!r} (`job.script: {job.script}`)")
    if cwd == called_in:
        return (path,)
    inside = os.path.relpath(os.path.realpath(path), os.path.realpath(called_in))
    copied = os.path.join(cwd, inside)
    return (copied if not inside.startswith("..") and os.path.isfile(copied) else path,)


def _outermost(folders: Sequence[str]) -> tuple[str, ...]:
    """Return the folders that lie in none of the others, and the interpreter's own if need be."""
    candidates = sorted({os.path.realpath(folder) for folder in (*folders, sys.prefix)})
    chosen: list[str] = []
    for folder in candidates:
        if not any(folder == other or folder.startswith(other + os.sep) for other in chosen):
            chosen.append(folder)
    return tuple(chosen)
