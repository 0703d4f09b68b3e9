"""Launchers under test: how each is told to run a job on one node.

A launcher is data: a name, a command made from a `JobPlan`, and environment of its own. Stock
torchrun, our own launcher and any command template run unmodified. Where a launcher is a Python
program, it can also be played by a preloaded child of the cluster's server (`preloaded_*`), which
is the same code as the command without the seconds that importing torch takes.
"""

from __future__ import annotations

import shlex
import string
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final

from elastic_harness.registry import Registry
from elastic_harness.scenario.stage.log_source import WORKER_LOGS
from pytest_elastic.config import DEFAULT_PRELOAD
from pytest_elastic.errors import UsageError

__all__ = [
    "LAUNCHERS",
    "OURS",
    "JobPlan",
    "Launcher",
    "LauncherRegistry",
    "NodePlan",
    "launcher_named",
    "modules_to_preload",
]

_MAX_RESTARTS: Final = "--max-restarts=$max_restarts"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """A job as every launcher understands it.

    `program` is what stands behind the launcher's options: `["train.py", "--steps=3"]`,
    `["-m", "package"]`, or a binary with `is_binary`. `conf` are settings of the rendezvous in our
    own words; each launcher takes what it knows. `endpoint_hosts` are names or addresses, one as a
    rule. `are_workers_apart`: what each worker prints is to be kept in a file of its own as well.
    `processors`: how many all nodes share; None where that is of no matter.
    """

    run_id: str
    program: Sequence[str]
    is_module: bool = False
    is_binary: bool = False
    nproc_per_node: int
    min_nodes: int
    max_nodes: int
    max_restarts: int
    endpoint_port: int
    endpoint_hosts: Sequence[str] = ("",)
    conf: Mapping[str, str] = field(default_factory=dict)
    options: Sequence[str] = ()
    backend: str = "c10d"
    are_workers_apart: bool = False
    processors: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlan:
    """One node's share: its name, address and number (from 0)."""

    name: str
    address: str
    index: int
    log_dir: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """A launcher under test.

    `command` is its own command line in words, in which `$name` stands for a value of the plan;
    `$options` and `$program` stand for several words each. `conf` are the defaults for its
    rendezvous settings here, and `conf_keys` those it knows (None: all). `modules` are what a
    preloaded server imports for it. `read_options` is a function that reads its command lines,
    as MODULE:NAME (see `checks.launcher_options`), empty where none can. `own_lines` is a regular
    expression that tells what it says itself from what its workers say. `counts_by_node`: each node
    counts its own restarts, as torch's agents do, so that ranks of one round may be told others.
    """

    name: str
    command: Sequence[str]
    environ: Mapping[str, str] = field(default_factory=dict)
    conf: Mapping[str, str] = field(default_factory=dict)
    conf_keys: frozenset[str] | None = None
    preloaded_entry: str | None = None
    preloaded_role: str | None = None
    modules: Sequence[str] = ()
    read_options: str = ""
    own_lines: str = ""
    counts_by_node: bool = True

    @property
    def gives_max_restarts(self) -> bool:
        """Tell whether it is given the budget as torchrun is, and no option of a job replaces it.

        What a job's options say is checked where there is somebody to read them.
        """
        return _MAX_RESTARTS in self.command and bool(self.read_options)

    def argv(self, job: JobPlan, node: NodePlan) -> list[str]:
        """Return the complete command line for one node."""
        apart = ["--tee=3", f"--log-dir={node.log_dir}/{WORKER_LOGS}"]
        several = {
            "options": [*(apart if job.are_workers_apart else ()), *job.options],
            "program": [
                *(["--module"] if job.is_module else ["--no-python"] if job.is_binary else []),
                *job.program,
            ],
            "bare_program": list(job.program),
        }
        conf = self._conf(job)
        values = {
            "python": sys.executable,
            "nnodes": f"{job.min_nodes}:{job.max_nodes}",
            "nodes": str(job.max_nodes),
            "nproc": str(job.nproc_per_node),
            "max_restarts": str(job.max_restarts),
            "endpoint": ",".join(f"{host}:{job.endpoint_port}" for host in job.endpoint_hosts),
            "host": job.endpoint_hosts[0],
            "port": str(job.endpoint_port),
            "backend": job.backend,
            "run_id": job.run_id,
            "conf": ",".join(f"{key}={value}" for key, value in sorted(conf.items())),
            "node": node.name,
            "node_index": str(node.index),
            "address": node.address,
            "log_dir": node.log_dir,
        }
        words: list[str] = []
        for word in self.command:
            name = word.removeprefix("$")
            if word.startswith("$") and name in several:
                words += several[name]
                continue
            try:
                words.append(string.Template(word).substitute(values))
            except (KeyError, ValueError) as error:
                known = ", ".join(f"${name}" for name in sorted({*values, *several}))
                raise UsageError(
                    f"launcher {self.name!r} cannot fill in its word {word!r} ({error})",
                    hint=f"known: {known}",
                ) from error
        # An empty --rdzv-conf= is as good as none, and none is what people write.
        return [word for word in words if word != "--rdzv-conf="]

    def _conf(self, job: JobPlan) -> dict[str, str]:
        conf = {**self.conf, **job.conf}
        if job.processors is not None and _LIVENESS_KEYS.isdisjoint(job.conf):
            # All of them or none: their proportions matter.
            slower = _times_slower(job.max_nodes, job.processors)
            for key in _LIVENESS_KEYS.intersection(self.conf):
                conf[key] = f"{float(conf[key]) * slower:g}"
        if self.conf_keys is None:
            return conf
        return {key: value for key, value in conf.items() if key in self.conf_keys}


_TORCHRUN_WORDS = (
    "--nnodes=$nnodes",
    "--nproc-per-node=$nproc",
    _MAX_RESTARTS,
    "--rdzv-backend=$backend",
    "--rdzv-endpoint=$endpoint",
    "--rdzv-id=$run_id",
    "--rdzv-conf=$conf",
    "--local-addr=$address",
    "$options",
    "$program",
)

# The harness's own pace: everything that production does, at a quarter of its times. Below this,
# two busy cores make beats late often enough to be noticed.
_HARNESS_CONF = {
    "beat_interval": "0.25",
    "lease": "1.25",
    "drift": "0.2",
    "last_call_timeout": "0.5",
    "join_timeout": "30",
    "min_round": "0.5",
    "newcomer_window": "0.25",
    "linger": "1",
    "store_timeout": "10",
}

# Whose beats are on time hangs on how many wait for a processor.
_LIVENESS_KEYS = frozenset({"beat_interval", "lease", "drift"})
_NODES_A_PROCESSOR = 16
_PRODUCTION = 4.0


def _times_slower(nodes: int, processors: int) -> float:
    """Return how much longer than the harness's own a lease must be, for so many nodes.

    When 64 nodes began a round at once on two busy processors, a coordinator was not heard for a
    second and a half: with a lease of 1.25 s each round ended as it began. At most production's.
    """
    return min(max(nodes / (_NODES_A_PROCESSOR * processors), 1.0), _PRODUCTION)


_TORCHRUN_KEYS = frozenset(
    {
        "last_call_timeout",
        "join_timeout",
        "close_timeout",
        "read_timeout",
        "keep_alive_interval",
        "keep_alive_max_attempt",
        "is_host",
        "timeout",
        "heartbeat_timeout",
        "store_type",
    }
)

# How lines of torch's own loggers begin, those of its launcher among them.
_TORCH_LOG_LINE = r"[VIDWEF]\d{4} \d\d:\d\d:\d\d\.\d+ "


class LauncherRegistry(Registry[Launcher]):
    """The launchers that have names; `LAUNCHERS` is what scenarios and options may name."""

    kind: ClassVar[str] = "launcher"

    def add(self, new: Launcher) -> None:
        """Make a launcher known; the same one twice is harmless. Raises UsageError."""
        if self._known.get(new.name) == new:
            return
        new.argv(_SOME_JOB, _SOME_NODE)  # are all of its words known?
        super().add(new)


OURS: Final = "pytest-elastic"
_SOME_JOB = JobPlan(
    run_id="any",
    program=("any",),
    nproc_per_node=1,
    min_nodes=1,
    max_nodes=1,
    max_restarts=0,
    endpoint_port=1,
)
_SOME_NODE = NodePlan(name="n1", address="any", index=0, log_dir="any")

# As it is shipped.
_TORCHRUN = Launcher(
    name="torchrun",
    command=("$python", "-m", "torch.distributed.run", *_TORCHRUN_WORDS),
    conf_keys=_TORCHRUN_KEYS,
    read_options="elastic_harness.scenario.checks.torchrun_options:read_options",
    preloaded_entry="torch.distributed.run:main",
    own_lines=_TORCH_LOG_LINE,
    modules=("torch.distributed.run",),
)
LAUNCHERS = LauncherRegistry(
    (
        Launcher(
            name=OURS,
            command=("$python", "-m", "pytest_elastic", "run", *_TORCHRUN_WORDS),
            conf=_HARNESS_CONF,
            preloaded_role="pytest_elastic.cli.run:LauncherRole",
            modules=(
                "pytest_elastic.cli.run",
                "pytest_elastic.launch",
                "pytest_elastic.workers.keeper",
            ),
            read_options="pytest_elastic.cli.options:read_options",
            own_lines=r"\[pytest-elastic\b|pytest-elastic[ :]",
            counts_by_node=False,
        ),
        _TORCHRUN,
        # With the one setting that lets 2.13 recover from a lost member at all.
        replace(
            _TORCHRUN,
            name="torchrun-best",
            environ={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
        ),
    )
)


def modules_to_preload(asked_for: Sequence[str] = DEFAULT_PRELOAD) -> tuple[str, ...]:
    """Return what a cluster's server imports, so that every known launcher starts at once.

    Ours always does. One that belongs to a package of others does where that is asked for.
    """
    packages = {"pytest_elastic", *(name.partition(".")[0] for name in asked_for)}
    modules = [name for launcher in LAUNCHERS for name in launcher.modules]
    wanted = [name for name in modules if name.partition(".")[0] in packages]
    return tuple(dict.fromkeys((*asked_for, *wanted)))


def launcher_named(text: str) -> Launcher:
    """Return a known launcher, or one made from a command template.

    A template is such as "accelerate launch --num_machines $nodes --machine_rank $node_index
    $options $bare_program". Raises UsageError for anything else.
    """
    if text in LAUNCHERS.names:
        return LAUNCHERS.find(text)
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"the launcher {text!r} is no command line: {error}") from error
    names = ", ".join(LAUNCHERS.names)
    if len(words) < 2 or not {"$program", "$bare_program"} & set(words):
        raise UsageError(
            f"there is no launcher {text!r}: known are {names}, or a command that "
            "contains $program (or $bare_program) as a word of its own"
        )
    launcher = Launcher(name=words[0], command=words)
    launcher.argv(_SOME_JOB, _SOME_NODE)  # are all of its words known?
    return launcher
