"""Settings of a launch from Python: as keywords, or from torch's own LaunchConfig.

Both are read as command lines are, so that they mean the same and are
refused in the same words.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pytest_elastic.cli.options import check_option
from pytest_elastic.cli.run import read_config
from pytest_elastic.config import LaunchConfig
from pytest_elastic.errors import UsageError

__all__ = ["as_launch_config", "launch_config"]

# What stands for the program while there is none: a function or a command takes its place.
_NO_PROGRAM = ("--no-python", "true")

# What torch's LaunchConfig is known by: every torch has these.
_TORCHS_OWN = ("min_nodes", "max_nodes", "nproc_per_node", "rdzv_configs", "rdzv_backend")
# Those of its fields that are options under the same name; an older torch lacks some.
_SAME_IN_TORCH = (
    *("nproc_per_node", "rdzv_backend", "rdzv_endpoint", "role", "max_restarts"),
    *("monitor_interval", "start_method", "event_log_handler", "local_addr"),
    *("signals_to_handle", "virtual_local_rank", "shutdown_timeout"),
)


def launch_config(*program: str, **options: object) -> LaunchConfig:
    """Return settings from options of `pytest-elastic run`, with underscores, as keywords.

    A flag is True or False; None leaves an option out. `program` is a script and its arguments,
    for `launch`; `elastic_launch` brings its own. `PET_` variables are not read: the caller of a
    function decides. Raises UsageError.
    """
    words = []
    for name, value in options.items():
        option = "--" + name.replace("_", "-")
        check_option(option)
        if value is True:
            words.append(option)
        elif value is not None and value is not False:
            words.append(f"{option}={value}")
    environ = {name: text for name, text in os.environ.items() if not name.startswith("PET_")}
    return read_config([*words, *(program or _NO_PROGRAM)], environ)


def as_launch_config(config: object) -> LaunchConfig:
    """Return our settings for ours, or for torch's LaunchConfig (known by its fields).

    Raises UsageError for anything else, and for what of torch's has no counterpart here.
    """
    if isinstance(config, LaunchConfig):
        return config
    torch_config: Any = config  # an instance of a class that is not imported here
    if not all(hasattr(config, name) for name in _TORCHS_OWN):
        raise UsageError(
            f"cannot launch with settings of type {type(config).__name__}",
            hint="Expected launch_config(nproc_per_node=2, ...), or torch's LaunchConfig.",
        )
    options = {name: getattr(config, name, None) for name in _SAME_IN_TORCH}
    options["nnodes"] = f"{torch_config.min_nodes}:{torch_config.max_nodes}"
    options["rdzv_id"] = torch_config.run_id or uuid.uuid4()
    options["rdzv_conf"] = _conf(torch_config.rdzv_configs)
    options["node_rank"] = torch_config.rdzv_configs.get("rank")
    for name in ("duplicate_stdout_filters", "duplicate_stderr_filters"):
        texts: Iterable[str] = getattr(config, name, None) or ()
        options[name] = ",".join(text.replace(",", ",,") for text in texts)
    if (numa := getattr(config, "numa_options", None)) is not None:
        options["numa_binding"] = numa.affinity_mode.value
    options |= _output(torch_config.logs_specs)
    made = launch_config(**options)
    return replace(made, log_line_prefix=torch_config.log_line_prefix_template)


def _conf(settings: Mapping[str, object]) -> str:
    return ",".join(f"{key}={value}" for key, value in settings.items() if key != "rank")


def _output(specs: Any) -> dict[str, object]:  # noqa: ANN401 (a class of torch's)
    """Return what torch's own class for logs was told; another class is an entry point, or none."""
    if specs is None:
        return {}
    if type(specs).__name__ != "DefaultLogsSpecs":
        raise UsageError(
            f"logs_specs={specs!r}: a class of your own is named by its entry point",
            hint="Leave it out of LaunchConfig and use launch_config(logs_specs='NAME').",
        )
    try:
        ranks: Sequence[int] | None = specs._local_ranks_filter  # noqa: SLF001 (no other way)
        redirects, tee = specs._redirects, specs._tee  # noqa: SLF001
    except AttributeError as error:
        raise UsageError(
            f"logs_specs={specs!r}: this torch keeps in another way what it was told: {error}",
            hint="Leave it out of LaunchConfig and use launch_config(tee=..., log_dir=...).",
        ) from error
    said: dict[str, object] = {
        "redirects": _streams(redirects),
        "tee": _streams(tee),
        "local_ranks_filter": ",".join(str(rank) for rank in sorted(ranks or ())),
    }
    root = specs.root_log_dir
    if not os.path.basename(root).startswith("torchelastic_"):
        said["log_dir"] = root  # not the temporary one that torch has made
    return said


def _streams(std: Any) -> str:  # noqa: ANN401 (torch's Std, or such by local rank)
    if isinstance(std, Mapping):
        return ",".join(f"{rank}:{int(value)}" for rank, value in std.items()) or "0"
    return str(int(std))
