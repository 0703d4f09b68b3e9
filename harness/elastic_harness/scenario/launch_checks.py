"""What no launcher would take: options, settings of the rendezvous and variables that cannot be.

Pure. Known options are written down here, because neither launcher's parser may be asked (ours is a
face's, torch's needs torch); a test compares them with both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from elastic_harness.history.parameters import did_you_mean
from elastic_harness.scenario.finding import Finding
from elastic_harness.scenario.launchers import launcher_named
from elastic_harness.scenario.model import Job, Scenario
from elastic_harness.scenario.yaml_tree import AstPath
from pytest_elastic.errors import UsageError
from pytest_elastic.rdzv_conf import parse_rdzv_conf
from pytest_elastic.rendezvous.settings import settings_of

__all__ = ["FLAGS", "OPTIONS", "OWN_OPTIONS", "check_launch"]

# Options with a value, and flags, of torchrun and of ours; then those of ours alone.
OPTIONS: Final = (
    "--nnodes", "--nproc-per-node", "--rdzv-backend", "--rdzv-endpoint", "--rdzv-id",
    "--rdzv-conf", "--max-restarts", "--monitor-interval", "--start-method",
    "--event-log-handler", "--role", "--log-dir", "--redirects", "--tee", "--local-ranks-filter",
    "--duplicate-stdout-filters", "--duplicate-stderr-filters", "--node-rank", "--master-addr",
    "--master-port", "--local-addr", "--logs-specs", "--numa-binding", "--signals-to-handle",
    "--shutdown-timeout", "-r", "-t",
)  # fmt: skip
FLAGS: Final = (
    "--standalone", "--module", "--no-python", "--run-path", "--virtual-local-rank", "--help",
    "-m", "-h",
)  # fmt: skip
OWN_OPTIONS: Final[Mapping[str, bool]] = {
    "--node-name": True,
    "--preload": True,
    "--rdzv-token-file": True,
    "--worker-start": True,
    "--pass-local-rank": False,
    "--use-env": False,
}

# What a scenario says itself, and where.
_SAID_ELSEWHERE: Final[Mapping[str, str]] = {
    "--nnodes": "`nodes: {min: …, max: …}`",
    "--nproc-per-node": "`nproc_per_node`",
    "--max-restarts": "`max_restarts`",
    "--rdzv-id": "the harness, for each run,",
    "--standalone": "`nodes`",
    "--module": "`module`",
    "-m": "`module`",
    "--no-python": "`command`",
    "--help": "pytest-elastic run --help",
    "-h": "pytest-elastic run --help",
}
# What every launcher tells each worker, whatever was there before.
_TOLD_BY_LAUNCHERS: Final = (
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
    "MASTER_ADDR", "MASTER_PORT",
)  # fmt: skip
_OURS: Final = "pytest-elastic"
_KNOWN_LAUNCHERS: Final = frozenset({_OURS, "torchrun", "torchrun-best"})


def check_launch(scenario: Scenario) -> Iterator[Finding]:
    """Yield what no launcher would take; one that is not pinned may be any of those known."""
    job = scenario.job
    if job.launcher is not None:
        try:
            launcher_named(job.launcher)
        except UsageError as error:
            yield Finding(
                path=("job", "launcher"), message=error.message, suggestion=error.hint or None
            )
            return
    yield from _check_environ(job)
    if job.launcher is None or job.launcher in _KNOWN_LAUNCHERS:
        yield from _check_options(job)
    if job.rdzv.backend == "c10d":  # others' settings are their own business
        yield from _check_conf(scenario)


def _check_environ(job: Job) -> Iterator[Finding]:
    for name, value in job.env.items():
        path: AstPath = ("job", "env", name)
        if not name or "=" in name or "\0" in name + value:
            yield Finding(path=path, message=f"no variable can be called {name!r}, or be {value!r}")
        elif name in _TOLD_BY_LAUNCHERS:
            yield Finding(
                path=path,
                message=f"{name} is what the launcher tells each worker: it cannot be given",
                is_key=True,
            )


def _check_options(job: Job) -> Iterator[Finding]:
    is_pinned_elsewhere = job.launcher is not None and job.launcher != _OURS
    own = {} if is_pinned_elsewhere else OWN_OPTIONS
    known = {**dict.fromkeys(OPTIONS, True), **dict.fromkeys(FLAGS, False), **own}
    awaited: str | None = None  # the option whose value comes next
    for index, word in enumerate(job.options):
        path: AstPath = ("job", "options", index)
        if awaited is not None:
            awaited = None
            continue
        if not word.startswith("-") or word in {"-", "--"}:
            yield Finding(
                path=path,
                message=f"{word!r} is no option: what the program is given stands in `args`",
            )
            return
        name, equals, _ = word.partition("=")
        name = name.replace("_", "-") if name.startswith("--") else name[:2]
        if name not in known:
            yield Finding(
                path=path,
                message=f"{job.launcher or _OURS} has no option {name!r}",
                suggestion=did_you_mean(name, [each for each in known if each.startswith("--")]),
            )
        elif name in _SAID_ELSEWHERE:
            yield Finding(path=path, message=f"{name} is what {_SAID_ELSEWHERE[name]} says")
        elif equals and not known[name]:
            yield Finding(path=path, message=f"{name} is a flag, and takes no value")
        elif known[name] and (not equals if word.startswith("--") else word == name):
            awaited = name
    if awaited is not None:
        last = len(job.options) - 1
        yield Finding(path=("job", "options", last), message=f"{awaited} needs a value")


def _check_conf(scenario: Scenario) -> Iterator[Finding]:
    job = scenario.job
    is_wrong = False
    for key, value in job.rdzv.conf.items():
        try:
            parse_rdzv_conf(f"{key}={value}")
        except UsageError as error:
            is_wrong = True
            yield _about_conf(("job", "rdzv", "conf", key), error)
    if is_wrong or not job.rdzv.conf or job.launcher not in {None, _OURS}:
        return
    conf = {**launcher_named(_OURS).conf, **job.rdzv.conf}
    try:
        settings_of(
            parse_rdzv_conf(",".join(f"{key}={conf[key]}" for key in sorted(conf))),
            run_id="any",
            min_nodes=scenario.nodes.min,
            max_nodes=scenario.nodes.max,
            max_restarts=job.max_restarts,
            shutdown_timeout_s=1.0,
            endpoints=scenario.endpoint_hosts,
        )
    except UsageError as error:
        yield _about_conf(("job", "rdzv", "conf"), error)


def _about_conf(path: AstPath, error: UsageError) -> Finding:
    return Finding(path=path, message=error.message.replace("--rdzv-conf", "`conf`", 1))
