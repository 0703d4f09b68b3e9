"""What a check-up takes over from a command line that launches a script elsewhere: torchrun's."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_elastic.cli.options import build_parser, parse_run_command
from pytest_elastic.cli.values import Values, merge
from pytest_elastic.config import LaunchConfig
from pytest_elastic.errors import UsageError
from pytest_elastic.rdzv_conf import conf_items

__all__ = ["Launched", "read_launched"]

# What becomes of the program itself, and what has no effect anyway.
_OF_THE_PROGRAM = frozenset({"module", "pass_local_rank", "use_env"})
# Settings that say who hosts the endpoint, which is the check-up's own.
_OF_THE_ENDPOINT = frozenset({"is_host", "store_type", "rank"})
# Their proportions matter: where one is given, all are taken over as they follow from it.
_LIVENESS = frozenset(
    {"beat_interval", "lease", "drift", "keep_alive_interval", "keep_alive_max_attempt"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """A program, and what its command line says of its job in a scenario's words.

    `nodes` is None where it does not say how many there are. `note` names what is not taken over.
    """

    words: Sequence[str]
    is_module: bool = False
    nodes: int | None = None
    job: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""


def read_launched(words: Sequence[str], *, nodes: int | None, nproc: int | None) -> Launched:
    """Read a command line of torchrun's, beside what the check-up's own options say.

    Raises UsageError where the two contradict each other.
    """
    config = parse_run_command(words, os.environ, count_devices=lambda _: 1)
    if config.program.kind not in ("script", "module"):
        raise UsageError("a check-up follows what Python runs: a script, or a module with -m")
    values = merge(build_parser().parse_args(words), os.environ)
    said = {dest for dest, origin in values.origins.items() if origin != "default"}
    taken = set(_OF_THE_PROGRAM)
    job: dict[str, Any] = {}
    # One node is what torchrun has where nothing is said, and no cluster to check anything on.
    counts_nodes = "nnodes" in said and config.max_nodes > 1
    if counts_nodes:
        taken.add("nnodes")
        if nodes is not None and not config.min_nodes <= nodes <= config.max_nodes:
            raise _contradiction(values, "nnodes", f"--nodes={nodes}")
    if "nproc_per_node" in said and values.text("nproc_per_node").isdecimal():
        taken.add("nproc_per_node")
        if nproc not in (None, config.nproc_per_node):
            raise _contradiction(values, "nproc_per_node", f"--nproc-per-node={nproc}")
        job["nproc_per_node"] = config.nproc_per_node
    if "max_restarts" in said:
        taken.add("max_restarts")
        job["max_restarts"] = config.max_restarts
    left_out: list[str] = []
    if "rdzv_conf" in said and config.backend in ("c10d", "static"):
        taken.add("rdzv_conf")
        given = dict(conf_items(values.text("rdzv_conf")))
        conf = {key: value for key, value in given.items() if key not in _OF_THE_ENDPOINT}
        left_out = [f"{values.name('rdzv_conf')} {key}" for key in given if key not in conf]
        if conf:
            job["rdzv"] = {"conf": {**_liveness(config, conf), **conf}}
    ignored = [values.name(dest) for dest in values.origins if dest in said - taken]
    return Launched(
        words=[config.program.target, *config.program.args],
        is_module=config.program.kind == "module",
        nodes=config.max_nodes if counts_nodes else None,
        job=job,
        note=_note([*ignored, *left_out]),
    )


def _liveness(config: LaunchConfig, conf: Mapping[str, str]) -> Mapping[str, str]:
    if _LIVENESS.isdisjoint(conf):
        return {}
    settings = config.rendezvous
    return {
        "beat_interval": f"{settings.beat_interval_s:g}",
        "lease": f"{settings.lease_s:g}",
        "drift": f"{settings.drift_s:g}",
    }


def _contradiction(values: Values, dest: str, ours: str) -> UsageError:
    return UsageError(
        f"{ours} and {values.name(dest)}={values.text(dest)} contradict each other: leave one out"
    )


def _note(ignored: Sequence[str]) -> str:
    if not ignored:
        return ""
    return (
        f"not taken over from the command line: {', '.join(ignored)} (the check-up has nodes and a "
        "rendezvous of its own)"
    )
