"""The command line of `pytest-elastic run`: torchrun's options, and a few of our own.

Every long option is accepted with dashes and with underscores, and can be given as an environment
variable `PET_<NAME>`, as with torchrun. Command line over environment over default, merged once
here into a `LaunchConfig` that remembers where each value came from.
"""

from __future__ import annotations

import argparse
import difflib
import os
import signal
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

from pytest_elastic.config import (
    DEFAULT_PORT,
    DEFAULT_PRELOAD,
    DEFAULT_SHUTDOWN_TIMEOUT_S,
    Endpoint,
    LaunchConfig,
    ProgramConfig,
    parse_endpoint,
    parse_nnodes,
    parse_rdzv_conf,
    parse_signals,
)
from pytest_elastic.errors import UsageError

__all__ = ["build_parser", "parse_run_command"]

_STATIC_PORT = 29500  # torchrun's default --master-port


@dataclass(frozen=True, slots=True, kw_only=True)
class _Option:
    """One option: what argparse needs to know, and what it means when nobody gives it."""

    flags: tuple[str, ...]
    help: str
    default: str | None = None
    metavar: str | None = None
    choices: tuple[str, ...] | None = None
    is_flag: bool = False

    @property
    def dest(self) -> str:
        return self.flags[-1].lstrip("-").replace("-", "_")

    @property
    def variable(self) -> str:
        return f"PET_{self.dest.upper()}"


_OPTIONS = (
    _Option(
        flags=("--nnodes",),
        metavar="N|MIN:MAX",
        default="1:1",
        help="how many nodes the job has; with MIN:MAX it goes on with any number in between",
    ),
    _Option(
        flags=("--nproc-per-node",),
        metavar="N|auto|cpu|gpu",
        default="1",
        help="how many workers each node runs",
    ),
    _Option(
        flags=("--rdzv-backend",),
        metavar="NAME",
        default="static",
        help="how nodes find each other: c10d, or static (fixed nodes, --master-addr)",
    ),
    _Option(
        flags=("--rdzv-endpoint",),
        metavar="HOST[:PORT]",
        default="",
        help=f"where nodes meet; the node that owns the address hosts it (port {DEFAULT_PORT})",
    ),
    _Option(flags=("--rdzv-id",), metavar="ID", default="none", help="the job's name"),
    _Option(
        flags=("--rdzv-conf",),
        metavar="KEY=VALUE,...",
        default="",
        help="settings of the rendezvous, such as lease=5,beat_interval=1,last_call_timeout=30",
    ),
    _Option(
        flags=("--standalone",),
        is_flag=True,
        help="a job of this node alone: any free port, a name of its own",
    ),
    _Option(
        flags=("--max-restarts",),
        metavar="N",
        default="0",
        help="how often the whole job may restart after failures of workers",
    ),
    _Option(
        flags=("--monitor-interval",),
        metavar="SECONDS",
        default="0.1",
        help="accepted for torchrun's sake: workers are watched without polling",
    ),
    _Option(
        flags=("--start-method",),
        choices=("spawn", "fork", "forkserver"),
        default="spawn",
        help="accepted for torchrun's sake: it never applied to scripts",
    ),
    _Option(flags=("--role",), metavar="NAME", default="default", help="the role of this node"),
    _Option(flags=("-m", "--module"), is_flag=True, help="run a module, as `python -m`"),
    _Option(
        flags=("--no-python",), is_flag=True, help="run the program itself, not through Python"
    ),
    _Option(flags=("--run-path",), is_flag=True, help="run the file as runpy.run_path does"),
    _Option(flags=("--log-dir",), metavar="DIR", help="where redirected output goes"),
    _Option(
        flags=("-r", "--redirects"),
        metavar="STD",
        default="0",
        help="output to files: 0 none, 1 stdout, 2 stderr, 3 both, or by local rank as in 0:1,1:3",
    ),
    _Option(
        flags=("-t", "--tee"),
        metavar="STD",
        default="0",
        help="output to files and to the console, same values as --redirects",
    ),
    _Option(
        flags=("--local-ranks-filter",),
        metavar="R,R,...",
        default="",
        help="only these local ranks write to the console",
    ),
    _Option(
        flags=("--node-rank",),
        metavar="N",
        default=None,
        help="this node's place in the order of nodes (gaps are allowed)",
    ),
    _Option(
        flags=("--master-addr",),
        metavar="HOST",
        default="127.0.0.1",
        help="with --rdzv-backend=static: the address of node 0",
    ),
    _Option(
        flags=("--master-port",),
        metavar="PORT",
        default=None,
        help=f"with --rdzv-backend=static: the port on node 0 ({_STATIC_PORT})",
    ),
    _Option(
        flags=("--local-addr",),
        metavar="ADDR",
        default=None,
        help="the address of this node that the others shall use",
    ),
    _Option(
        flags=("--signals-to-handle",),
        metavar="SIG,SIG,...",
        default="SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        help="signals that make this node leave the job",
    ),
    _Option(
        flags=("--shutdown-timeout",),
        metavar="SECONDS",
        default=None,
        help="how long workers may take to end, on every path "
        f"({DEFAULT_SHUTDOWN_TIMEOUT_S:g}, or TORCH_ELASTIC_SHUTDOWN_TIMEOUT)",
    ),
    _Option(
        flags=("--node-name",),
        metavar="NAME",
        default=None,
        help="this node's name in the job (default: its host name)",
    ),
    _Option(
        flags=("--worker-start",),
        choices=("auto", "exec"),
        default="auto",
        help="auto: workers start from a warm interpreter where that cannot be told from "
        "`python script.py`; exec: always a fresh one",
    ),
    _Option(
        flags=("--preload",),
        metavar="MODULE,...",
        default=",".join(DEFAULT_PRELOAD),
        help="what the warm interpreter imports",
    ),
)


class _Parser(argparse.ArgumentParser):
    """Raises UsageError instead of printing a page of usage."""

    def error(self, message: str) -> NoReturn:
        hint = f"See '{self.prog} --help'."
        prefix = "unrecognized arguments: "
        if message.startswith(prefix):
            unknown = message.removeprefix(prefix).split()[0].partition("=")[0]
            known = [flag for option in _OPTIONS for flag in option.flags]
            close = difflib.get_close_matches(unknown.replace("_", "-"), known, n=1)
            message = f"there is no option {unknown}"
            hint = f"Did you mean {close[0]}? " + hint if close else hint
        raise UsageError(message, hint=hint)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of `pytest-elastic run`; values that nobody gave are None."""
    parser = _Parser(
        prog="pytest-elastic run",
        description="Run a training program on one or many nodes, and keep it running.",
        epilog="Every option can also be given as an environment variable PET_<NAME>.",
    )
    for option in _OPTIONS:
        flags = list(option.flags)
        flags += [f"--{flag[2:].replace('-', '_')}" for flag in option.flags if "-" in flag[2:]]
        default = "" if option.default in (None, "") else f" (default: {option.default})"
        if option.is_flag:
            parser.add_argument(
                *flags, dest=option.dest, action="store_true", default=None, help=option.help
            )
        else:
            parser.add_argument(
                *flags,
                dest=option.dest,
                metavar=option.metavar,
                choices=option.choices,
                default=None,
                help=option.help.replace("%", "%%") + default,
            )
    parser.add_argument("training_script", metavar="SCRIPT", help="what to run")
    parser.add_argument("training_script_args", metavar="...", nargs=argparse.REMAINDER)
    return parser


@dataclass(frozen=True, slots=True)
class _Values:
    """The merged values of all options, as text, and their origins."""

    by_dest: Mapping[str, str | None]
    origins: Mapping[str, str]

    def text(self, dest: str) -> str:
        value = self.by_dest[dest]
        assert value is not None, f"option {dest} has neither value nor default"
        return value

    def optional(self, dest: str) -> str | None:
        return self.by_dest[dest]

    def is_set(self, dest: str) -> bool:
        return self.by_dest[dest] == "1"

    def number(self, dest: str, *, at_least: int) -> int:
        text = self.text(dest)
        try:
            number = int(text)
        except ValueError:
            number = at_least - 1
        if number < at_least:
            raise UsageError(
                f"{self.name(dest)}={text}: expected a whole number of at least {at_least}"
            )
        return number

    def name(self, dest: str) -> str:
        """Return what the user wrote to give the value: the option or the variable."""
        origin = self.origins[dest]
        return (
            origin.removeprefix("environment ")
            if origin.startswith("environment")
            else "--" + dest.replace("_", "-")
        )


def _merge(arguments: argparse.Namespace, environ: Mapping[str, str]) -> _Values:
    by_dest: dict[str, str | None] = {}
    origins: dict[str, str] = {}
    for option in _OPTIONS:
        given = getattr(arguments, option.dest)
        variable = environ.get(option.variable)
        if given is not None:
            by_dest[option.dest] = "1" if given is True else given
            origins[option.dest] = "command line"
        elif variable is not None:
            by_dest[option.dest] = _from_variable(option, variable)
            origins[option.dest] = f"environment {option.variable}"
        else:
            by_dest[option.dest] = option.default
            origins[option.dest] = "default"
    return _Values(by_dest, origins)


def _from_variable(option: _Option, text: str) -> str:
    if option.is_flag and text not in ("0", "1"):
        raise UsageError(f"{option.variable}={text}: expected 0 or 1")
    if option.choices and text not in option.choices:
        raise UsageError(f"{option.variable}={text}: expected one of {', '.join(option.choices)}")
    return text


def parse_run_command(
    argv: Sequence[str], environ: Mapping[str, str], *, count_devices: Callable[[str], int]
) -> LaunchConfig:
    """Return the settings that a command line and an environment ask for.

    `count_devices(kind)` tells how many workers "auto", "cpu", "gpu" or "xpu" mean here. Raises
    UsageError for anything that cannot be meant.
    """
    arguments = build_parser().parse_args(argv)
    values = _merge(arguments, environ)
    min_nodes, max_nodes = parse_nnodes(values.text("nnodes"))
    conf = parse_rdzv_conf(values.text("rdzv_conf"))
    backend, endpoint, is_host, run_id = _meeting_point(values, max_nodes)
    if is_host is not None and conf.is_host is None:
        conf = replace(conf, is_host=is_host)
    return LaunchConfig(
        run_id=run_id,
        min_nodes=min_nodes,
        max_nodes=max_nodes,
        nproc_per_node=_nproc(values, count_devices),
        backend=backend,
        endpoint=endpoint,
        rendezvous=conf,
        max_restarts=values.number("max_restarts", at_least=0),
        role=values.text("role"),
        program=_program(arguments, values, environ),
        local_addr=values.optional("local_addr"),
        node_rank=(
            values.number("node_rank", at_least=0) if values.optional("node_rank") else None
        ),
        node_name=values.optional("node_name"),
        log_dir=values.optional("log_dir"),
        redirects=values.text("redirects"),
        tee=values.text("tee"),
        local_ranks_filter=_ranks_filter(values.text("local_ranks_filter")),
        log_line_prefix=environ.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"),
        shutdown_timeout_s=_shutdown_timeout(values, environ),
        signals=parse_signals(
            values.text("signals_to_handle"), {s.name: int(s) for s in signal.Signals}
        ),
        worker_start=values.text("worker_start"),
        preload=tuple(filter(None, values.text("preload").split(","))),
        events=environ.get("PYTEST_ELASTIC_EVENTS"),
        standalone=values.is_set("standalone"),
        origins=values.origins,
    )


def _meeting_point(values: _Values, max_nodes: int) -> tuple[str, Endpoint, bool | None, str]:
    """Return backend, endpoint, whether this node hosts it (None: find out), and the run id."""
    run_id = values.text("rdzv_id")
    backend = values.text("rdzv_backend")
    endpoint = values.text("rdzv_endpoint")
    master_port = values.optional("master_port")
    if values.is_set("standalone"):
        if max_nodes > 1:
            raise UsageError(
                f"--standalone is a job of one node, and --nnodes={values.text('nnodes')} asks for "
                f"up to {max_nodes}: leave one of them out"
            )
        return "c10d", Endpoint(host="localhost", port=0), True, str(uuid.uuid4())
    if backend == "static" and not endpoint and master_port is None and max_nodes == 1:
        return "c10d", Endpoint(host="localhost", port=0), True, run_id
    if backend == "static":
        # torchrun's static rendezvous: node 0 is where --master-addr points, and nobody comes late.
        if not endpoint:
            port = values.number("master_port", at_least=0) if master_port else _STATIC_PORT
            endpoint = f"{values.text('master_addr')}:{port}"
        node_rank = values.optional("node_rank")
        rank = values.number("node_rank", at_least=0) if node_rank else 0
        return "static", parse_endpoint(endpoint, default_port=_STATIC_PORT), rank == 0, run_id
    if backend != "c10d":
        raise UsageError(f"{values.name('rdzv_backend')}={backend}: known are c10d and static")
    return "c10d", parse_endpoint(endpoint or "localhost"), None, run_id


def _nproc(values: _Values, count_devices: Callable[[str], int]) -> int:
    text = values.text("nproc_per_node")
    if text in ("auto", "cpu", "gpu", "xpu"):
        return count_devices(text)
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(
            f"{values.name('nproc_per_node')}={text}: expected a number of workers from 1, "
            "or auto, cpu, gpu, xpu"
        )
    return int(text)


def _program(
    arguments: argparse.Namespace, values: _Values, environ: Mapping[str, str]
) -> ProgramConfig:
    target: str = arguments.training_script
    is_module, no_python = values.is_set("module"), values.is_set("no_python")
    is_run_path = values.is_set("run_path")
    if is_module and no_python:
        raise UsageError("--no-python and --module contradict each other: a module needs Python")
    if is_run_path and (is_module or no_python):
        raise UsageError("--run-path runs a file: leave --module and --no-python out")
    kind = (
        "module"
        if is_module
        else "binary"
        if no_python
        else "run_path"
        if is_run_path
        else "script"
    )
    if kind in ("script", "run_path"):
        _check_script(target)
    return ProgramConfig(
        kind=kind,
        target=target,
        args=tuple(arguments.training_script_args),
        python=environ.get("PYTHON_EXEC") or sys.executable,
    )


def _check_script(path: str) -> None:
    if not os.path.exists(path):
        raise UsageError(
            f"there is no script {path!r} (looked from {os.getcwd()})",
            hint="Use -m for a module, --no-python for a program that is not Python.",
        )
    if not os.access(path, os.R_OK):
        raise UsageError(f"the script {path!r} cannot be read: no permission")


def _ranks_filter(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() for part in parts):
        raise UsageError(f"--local-ranks-filter={text}: expected local ranks, as in 0,1")
    return tuple(int(part) for part in parts)


def _shutdown_timeout(values: _Values, environ: Mapping[str, str]) -> float:
    given = values.optional("shutdown_timeout")
    name = values.name("shutdown_timeout")
    if given is None:
        given = environ.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT")
        name = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
    if given is None:
        return DEFAULT_SHUTDOWN_TIMEOUT_S
    try:
        seconds = float(given)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise UsageError(f"{name}={given}: expected a number of seconds from 0")
    return seconds
