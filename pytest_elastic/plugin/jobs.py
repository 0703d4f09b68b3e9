"""From what a test asks for to a job: settings from the call, the marker and the options."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from elastic_harness.function_worker import pack, read_results, round_key
from elastic_harness.history.history import History
from elastic_harness.job import Job
from elastic_harness.scenario.model import Entry, Scenario
from elastic_harness.scenario.planner import encode_plan, make_plan
from elastic_harness.session import OpenRun

from pytest_elastic.config import parse_nnodes
from pytest_elastic.errors import UsageError
from pytest_elastic.plugin.fixtures import marker_settings
from pytest_elastic.plugin.hub import FinishedRun, Hub

__all__ = ["make_job"]

# A test's job may run as long as the test's own patience; this is for tests that have none.
_LIMIT = "120s"

_JOB_KEYS = ("max_restarts", "env", "options")
_KNOWN = (
    "nodes",
    "nproc",
    "limit",
    "seed",
    "requires",
    "conf",
    "store_host",
    "launcher",
    "module",
    *_JOB_KEYS,
)


def make_job(
    item: pytest.Item,
    hub: Hub,
    runs: list[FinishedRun],
    program: str | Callable[..., Any],
    args: Sequence[Any],
    settings: Mapping[str, Any],
) -> Job:
    """Return a job of a test, not started; its runs are added to `runs`.

    `program` is a script (relative to the folder pytest was called in, or to the test's own), a
    module with `module=True`, or a function. Raises UsageError for what cannot be meant.
    """
    merged = {**marker_settings(item), **settings}
    for name in merged:
        if name not in _KNOWN:
            raise UsageError(
                f"a job has no setting {name!r}: known are {', '.join(sorted(_KNOWN))}"
            )
    missing = hub.choice.capabilities.missing(merged.get("requires", ()))
    if missing:
        reasons = "; ".join(f"{each.name}: {each.reason}" for each in missing)
        pytest.skip(f"needs what this cluster lacks: {reasons}")
    directory = hub.new_directory(item.nodeid)
    folder = os.path.join(directory.path, "function")
    job: dict[str, Any] = {key: merged[key] for key in _JOB_KEYS if key in merged}
    if callable(program):
        pack(folder, program, args)
        job.update(module="elastic_harness.function_worker", args=[folder])
    elif merged.get("module"):
        job.update(module=program, args=[str(arg) for arg in args])
    else:
        job.update(script=_script(program, item), args=[str(arg) for arg in args])
    scenario = _scenario(item, hub, merged, job)

    def start(entries: Sequence[Entry]) -> OpenRun:
        complete = scenario.model_copy(update={"timeline": tuple(entries)})
        plan = make_plan(complete, hub.options.seed)
        with open(directory.plan, "w", encoding="utf-8") as file:
            file.write(encode_plan(plan))
        runs.append(FinishedRun(plan, directory))
        return hub.open(
            plan,
            hub.launcher(merged.get("launcher")),
            directory,
            base_dir=os.path.dirname(os.path.abspath(item.path)),
            is_open=True,
        )

    def results(history: History) -> Mapping[int, Any]:
        world = history.worlds.current
        if not callable(program) or world is None:
            return {}
        hello = next(iter(world.workers.values())).hello
        key = round_key(
            {
                "MASTER_PORT": str(hello.master_port),
                "TORCHELASTIC_RESTART_COUNT": str(hello.restart_count),
                **({} if hello.round is None else {"PYTEST_ELASTIC_ROUND": str(hello.round)}),
            }
        )
        return read_results(folder, key)

    return Job(start, hub.session.faults, read_results=results)


def _scenario(
    item: pytest.Item, hub: Hub, merged: Mapping[str, Any], job: Mapping[str, Any]
) -> Scenario:
    low, high = parse_nnodes(str(merged.get("nodes", hub.options.nodes)))
    rdzv = {
        **({"conf": merged["conf"]} if "conf" in merged else {}),
        **({"store_host": merged["store_host"]} if "store_host" in merged else {}),
    }
    nproc = merged.get("nproc", hub.options.nproc)
    return Scenario.model_validate(
        {
            "version": 1,
            "id": "".join(c if c.isalnum() or c in "._-" else "-" for c in item.name).lstrip("._-"),
            "title": item.nodeid,
            "job": {**job, "nproc_per_node": nproc, **({"rdzv": rdzv} if rdzv else {})},
            "nodes": {"initial": high, "min": low, "max": high},
            "limit": merged.get("limit", _LIMIT),
            **({"seed": merged["seed"]} if "seed" in merged else {}),
        }
    )


def _script(program: str, item: pytest.Item) -> str:
    """Return a script's absolute path: as pytest's caller, or as the test's own folder sees it."""
    folders = (
        str(item.config.invocation_params.dir),
        os.path.dirname(os.path.abspath(item.path)),
        str(item.config.rootpath),
    )
    for folder in folders:
        path = os.path.normpath(os.path.join(folder, program))
        if os.path.isfile(path):
            return path
    raise UsageError(
        f"there is no script {program!r}: looked in {', '.join(dict.fromkeys(folders))}"
    )
