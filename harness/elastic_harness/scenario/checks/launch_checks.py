"""What no launcher would take: variables and settings of the rendezvous that cannot be.

Pure. What is asked of a launcher's own parser stands in `launcher_options`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from elastic_harness.finding import AstPath, Finding
from elastic_harness.scenario.launchers import OURS, launcher_named
from elastic_harness.scenario.model import Job, Scenario
from pytest_elastic.errors import UsageError
from pytest_elastic.rdzv_conf import parse_rdzv_conf
from pytest_elastic.rendezvous.settings import settings_of

__all__ = ["check_launch"]

# What every launcher tells each worker, whatever was there before.
_TOLD_BY_LAUNCHERS: Final = (
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
    "MASTER_ADDR", "MASTER_PORT",
)  # fmt: skip


def check_launch(scenario: Scenario) -> Iterator[Finding]:
    """Yield what no launcher would take; one that is not pinned may be any of those known."""
    job = scenario.job
    try:
        launcher = launcher_named(OURS if job.launcher is None else job.launcher)
    except UsageError as error:
        yield Finding(error.message, ("job", "launcher"), error.hint or None)
        return
    yield from _check_words(job)
    yield from _check_environ(job)
    # All nodes are given the same options, and would have to be told their numbers.
    if launcher.read_options and job.rdzv.backend == "static" and scenario.nodes.max > 1:
        yield Finding(
            "a static rendezvous numbers its nodes, and all are given the same options here: each "
            "would be node 0 (`c10d` needs no numbers)",
            ("job", "rdzv", "backend"),
        )
    if job.rdzv.backend == "c10d":  # others' settings are their own business
        yield from _check_conf(scenario)


def _check_words(job: Job) -> Iterator[Finding]:
    for key, words in (("args", job.args), ("options", job.options), ("command", job.command)):
        for index, word in enumerate(words or ()):
            if "\0" in word:
                yield Finding(f"no program can be given {word!r}", ("job", key, index))


def _check_environ(job: Job) -> Iterator[Finding]:
    for name, value in job.env.items():
        path: AstPath = ("job", "env", name)
        if not name or "=" in name or "\0" in name + value:
            yield Finding(f"no variable can be called {name!r}, or be {value!r}", path)
        elif name in _TOLD_BY_LAUNCHERS:
            yield Finding(
                f"{name} is what the launcher tells each worker: it cannot be given",
                path,
                is_key=True,
            )


def _check_conf(scenario: Scenario) -> Iterator[Finding]:
    job = scenario.job
    is_wrong = False
    for key, value in job.rdzv.conf.items():
        try:
            parse_rdzv_conf(f"{key}={value}")
        except UsageError as error:
            is_wrong = True
            yield _about_conf(("job", "rdzv", "conf", key), error)
    if is_wrong or not job.rdzv.conf or job.launcher not in {None, OURS}:
        return
    conf = {**launcher_named(OURS).conf, **job.rdzv.conf}
    try:
        settings_of(
            parse_rdzv_conf(",".join(f"{key}={conf[key]}" for key in sorted(conf))),
            run_id="any",
            min_nodes=scenario.nodes.min,
            max_nodes=scenario.nodes.max,
            max_restarts=job.max_restarts,
            shutdown_timeout_s=1.0,
            failure_grace_s=1.0,
            endpoints=scenario.endpoint_hosts,
        )
    except UsageError as error:
        yield _about_conf(("job", "rdzv", "conf"), error)


def _about_conf(path: AstPath, error: UsageError) -> Finding:
    return Finding(error.message.replace("--rdzv-conf", "`conf`", 1), path)
