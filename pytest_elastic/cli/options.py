"""The command line of `pytest-elastic run`: torchrun's options, and a few of our own.

Every long option is accepted with dashes and with underscores, and can be given as an environment
variable `PET_<NAME>`, as with torchrun. Command line over environment over default, merged once
here into a `LaunchConfig` that remembers where each value came from.
"""

from __future__ import annotations

import argparse
import difflib
import math
import os
import re
import signal
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NoReturn

from pytest_elastic.agent.environ import visible_device
from pytest_elastic.backends.names import (
    OWN_HANDLER,
    check_backend,
    handler_endpoint,
    registry_file,
)
from pytest_elastic.cli.option_table import OPTIONS, STATIC_PORT
from pytest_elastic.cli.script import check_script, local_rank_option
from pytest_elastic.cli.values import Values, merge
from pytest_elastic.config import (
    DEFAULT_SHUTDOWN_TIMEOUT_S,
    Endpoint,
    LaunchConfig,
    ProgramConfig,
    fill_in,
    parse_endpoint,
    parse_endpoints,
    parse_filters,
    parse_nnodes,
    parse_signals,
)
from pytest_elastic.errors import UsageError
from pytest_elastic.rdzv_conf import RendezvousConf, parse_backend_conf, store_type_of
from pytest_elastic.workers.logs import parse_streams
from pytest_elastic.workers.logs_plugin import check_plugin

__all__ = ["build_parser", "parse_run_command"]


# Above this somebody has mistaken another number for it; each worker is a process.
_MAX_WORKERS = 10_000
# What stands for an endpoint where nodes meet in a file; without a file, nobody is to be met.
_PLACES = {True: "localhost", False: "localhost:0"}
# Of a complaint: its beginning and its end are what it is about.
_MAX_COMPLAINT = 600


class _Parser(argparse.ArgumentParser):
    """Raises UsageError instead of printing a page of usage."""

    def error(self, message: str) -> NoReturn:
        hint = f"See '{self.prog} --help'."
        prefix = "unrecognized arguments: "
        if message.startswith(prefix):
            unknown = message.removeprefix(prefix).split()[0].partition("=")[0]
            known = [flag for option in OPTIONS for flag in option.flags]
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
    for option in OPTIONS:
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


def parse_run_command(
    argv: Sequence[str], environ: Mapping[str, str], *, count_devices: Callable[[str], int]
) -> LaunchConfig:
    """Return the settings that a command line and an environment ask for.

    `count_devices(kind)` tells how many workers "auto", "cpu", "gpu" or "xpu" mean here. Raises
    UsageError for anything that cannot be meant: one line, and perhaps another about what to try.
    """
    try:
        return _parse(argv, environ, count_devices)
    except UsageError as error:
        raise UsageError(_in_one_line(error.message), hint=error.hint) from error


def _in_one_line(message: str) -> str:
    """Return a complaint that quotes what a user gave, whatever that was."""
    plain = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in message)
    half = _MAX_COMPLAINT // 2
    return plain if len(plain) <= _MAX_COMPLAINT else f"{plain[:half]} ... {plain[-half:]}"


def _parse(
    argv: Sequence[str], environ: Mapping[str, str], count_devices: Callable[[str], int]
) -> LaunchConfig:
    arguments = build_parser().parse_args(argv)
    _check_what_has_no_effect(values := merge(arguments, environ))
    with values.blamed("nnodes"):
        min_nodes, max_nodes = parse_nnodes(values.text("nnodes"))
    with values.blamed("signals_to_handle"):
        signals = parse_signals(
            values.text("signals_to_handle"), {s.name: int(s) for s in signal.Signals}
        )
    backend, endpoints, is_host, run_id = _meeting_point(values, max_nodes)
    with values.blamed("rdzv_conf"):
        conf, handler_conf = parse_backend_conf(values.text("rdzv_conf"), backend)
    _check_can_be_found(backend, endpoints, conf, min_nodes)
    if is_host is not None and conf.is_host is None:
        conf = replace(conf, is_host=is_host)
    if file := _registry_file(values):
        conf = replace(conf, quorum="granted")
    workers = _nproc(values, count_devices)
    if values.is_set("virtual_local_rank"):
        visible_device(environ, workers - 1)
    return LaunchConfig(
        run_id=run_id,
        min_nodes=min_nodes,
        max_nodes=max_nodes,
        nproc_per_node=workers,
        backend=backend,
        endpoints=endpoints,
        rendezvous=conf,
        max_restarts=values.number("max_restarts", at_least=0),
        role=values.label("role"),
        program=_program(arguments, values, environ),
        local_addr=values.optional("local_addr"),
        node_rank=_node_rank(values, backend),
        node_name=_node_name(values),
        rdzv_token_file=values.optional("rdzv_token_file"),
        log_dir=_log_dir(values),
        redirects=_streams(values, "redirects"),
        tee=_streams(values, "tee"),
        local_ranks_filter=_ranks_filter(values),
        stdout_filters=parse_filters(values.text("duplicate_stdout_filters")),
        stderr_filters=parse_filters(values.text("duplicate_stderr_filters")),
        log_line_prefix=environ.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"),
        logs_specs=_logs_specs(values),
        shutdown_timeout_s=_shutdown_timeout(values, environ),
        signals=signals,
        worker_start=values.text("worker_start"),
        preload=tuple(filter(None, values.text("preload").split(","))),
        virtual_local_rank=values.is_set("virtual_local_rank"),
        numa_binding=values.optional("numa_binding"),
        events=environ.get("PYTEST_ELASTIC_EVENTS"),
        event_log_handler=_event_log_handler(values),
        error_file=environ.get("TORCHELASTIC_ERROR_FILE") or None,
        standalone=values.is_set("standalone"),
        handler_endpoint=values.text("rdzv_endpoint"),
        handler_conf=handler_conf,
        registry_file=file or None,
        origins=values.origins,
    )


def _check_can_be_found(
    backend: str, endpoints: Sequence[Endpoint], conf: RendezvousConf, min_nodes: int
) -> None:
    if backend in ("c10d", "static") and endpoints[0].port == 0 and min_nodes > 1:
        raise UsageError(
            f"port 0 of the endpoint {endpoints[0]} means any free one, which no other node could "
            "find",
            hint="Give all nodes the same --rdzv-endpoint=HOST:PORT, as in node0:29400.",
        )
    if len(endpoints) > 1 and conf.is_host:
        raise UsageError(
            "--rdzv-conf is_host=true does not say which of several endpoints this node shall host",
            hint="Leave it out: each endpoint is hosted by the node that owns its address.",
        )


def _meeting_point(
    values: Values, max_nodes: int
) -> tuple[str, tuple[Endpoint, ...], bool | None, str]:
    """Return backend, endpoints, whether this node hosts it (None: find out), and the run id."""
    run_id = values.label("rdzv_id")
    if not run_id:
        raise UsageError(
            f"{values.name('rdzv_id')}= names no job: expected any text that all its nodes give"
        )
    backend = values.text("rdzv_backend")
    file = _registry_file(values)
    endpoint = values.text("rdzv_endpoint") if file is None else _PLACES[bool(file)]
    master_port = values.optional("master_port")
    if values.is_set("standalone"):
        if max_nodes > 1:
            raise UsageError(
                f"--standalone is a job of one node, and --nnodes={values.text('nnodes')} asks for "
                f"up to {max_nodes}: leave one of them out"
            )
        return "c10d", (Endpoint(host="localhost", port=0),), True, str(uuid.uuid4())
    if backend == "static" and not endpoint and master_port is None and max_nodes == 1:
        # As torchrun: a bare command is a job like --standalone. A name that was given is kept.
        if values.origins["rdzv_id"] == "default":
            run_id = str(uuid.uuid4())
        return "c10d", (Endpoint(host="localhost", port=0),), True, run_id
    if backend == "static":
        # torchrun's static rendezvous: node 0 is where --master-addr points, and nobody comes late.
        is_host = _node_rank(values, backend) == 0
        if not endpoint:
            return "static", (_master(values),), is_host, run_id
        with values.blamed("rdzv_endpoint"):
            _check_is_one_place(values, endpoint)
            master = parse_endpoint(endpoint, default_port=STATIC_PORT)
        return "static", (master,), is_host, run_id
    check_backend(backend, said=values.name("rdzv_backend"))
    if backend not in ("c10d", OWN_HANDLER):
        with values.blamed("rdzv_endpoint"):
            return backend, (handler_endpoint(endpoint, backend),), None, run_id
    with values.blamed("rdzv_endpoint"):
        return "c10d", parse_endpoints(endpoint or "localhost"), None, run_id


def _check_is_one_place(values: Values, endpoint: str) -> None:
    """Refuse for a static rendezvous what only c10d knows: the word is easily forgotten."""
    is_file = store_type_of(values.text("rdzv_conf")) == "file"
    if is_file or "," in endpoint:
        what = "a file (--rdzv-conf store_type=file)" if is_file else "several endpoints"
        raise UsageError(
            f"--rdzv-endpoint={endpoint!r}: nodes meet at {what} with --rdzv-backend=c10d; the "
            "default, static, is one host that never changes",
            hint="Add --rdzv-backend=c10d.",
        )


def _master(values: Values) -> Endpoint:
    """Return where --master-addr and --master-port point; an IPv6 address may have brackets."""
    address = values.text("master_addr")
    host = address[1:-1] if address[:1] + address[-1:] == "[]" else address
    if not re.fullmatch(r"[\w.:%-]+", host):
        raise UsageError(f"{values.name('master_addr')}={address!r} is no name and no address")
    port = STATIC_PORT
    if values.optional("master_port") is not None:
        port = values.number("master_port", at_least=0)
    if port > 65535:
        raise UsageError(f"{values.name('master_port')}={port}: ports end at 65535")
    return Endpoint(host=host, port=port)


def _registry_file(values: Values) -> str | None:
    """Return the file in which nodes find each other (empty: none is named), if they do so."""
    if values.text("rdzv_backend") not in ("c10d", OWN_HANDLER) or values.is_set("standalone"):
        return None
    with values.blamed("rdzv_conf"):
        if store_type_of(values.text("rdzv_conf")) != "file":
            return None
    with values.blamed("rdzv_endpoint"):
        min_nodes, _ = parse_nnodes(values.text("nnodes"))
        return registry_file(values.text("rdzv_endpoint"), is_needed=min_nodes > 1)


def _node_rank(values: Values, backend: str) -> int | None:
    """Return the node's place in the order; a fixed set of nodes has one that nobody numbers: 0."""
    if values.optional("node_rank"):
        return values.number("node_rank", at_least=0)
    return 0 if backend == "static" else None


def _nproc(values: Values, count_devices: Callable[[str], int]) -> int:
    text = values.text("nproc_per_node")
    if text in ("auto", "cpu", "gpu", "xpu"):
        return count_devices(text)
    count = int(text) if re.fullmatch(r"\d{1,9}", text) else 0
    if not 1 <= count <= _MAX_WORKERS:
        raise UsageError(
            f"{values.name('nproc_per_node')}={text}: expected a number of workers from 1 to "
            f"{_MAX_WORKERS}, or auto, cpu, gpu, xpu"
        )
    return count


def _node_name(values: Values) -> str | None:
    if values.optional("node_name") is None:
        return None
    name = values.label("node_name")
    if not name:
        raise UsageError(f"{values.name('node_name')}= names nothing: leave it out, or give a name")
    return name


def _program(
    arguments: argparse.Namespace, values: Values, environ: Mapping[str, str]
) -> ProgramConfig:
    target: str = arguments.training_script
    is_module, no_python = values.is_set("module"), values.is_set("no_python")
    passes_local_rank = values.is_set("pass_local_rank")
    if passes_local_rank and values.is_set("use_env"):
        raise UsageError("--use-env and --pass-local-rank contradict each other: leave one out")
    if values.is_set("run_path"):
        kind = "run_path"  # it takes precedence, as with torchrun
    elif is_module and no_python:
        raise UsageError("--no-python and --module contradict each other: a module needs Python")
    else:
        kind = "module" if is_module else "binary" if no_python else "script"
    python = environ.get("PYTHON_EXEC")
    if kind == "run_path" or (kind == "script" and not python):
        # What PYTHON_EXEC names may look for the script elsewhere, as in a container.
        check_script(fill_in(target, local_rank=0))
    args = tuple(arguments.training_script_args)
    if passes_local_rank:
        name = local_rank_option(target if kind in ("script", "run_path") else "")
        args = (f"{name}=${{local_rank}}", *args)
    return ProgramConfig(
        kind=kind,
        target=target,
        args=args,
        python=sys.executable if kind == "run_path" or not python else python,
    )


def _check_what_has_no_effect(values: Values) -> None:
    """Refuse impossible values of what is accepted for torchrun's sake only."""
    text = values.text("monitor_interval")
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise UsageError(f"{values.name('monitor_interval')}={text}: expected a number of seconds")


def _logs_specs(values: Values) -> str | None:
    name = values.optional("logs_specs")
    if name:
        with values.blamed("logs_specs"):
            check_plugin(name)
    return name or None


def _log_dir(values: Values) -> str | None:
    path = values.optional("log_dir")
    if path and path != os.devnull and os.path.exists(path) and not os.path.isdir(path):
        raise UsageError(f"{values.name('log_dir')}={path}: it is not a folder")
    return path or None


def _streams(values: Values, dest: str) -> str:
    text = values.text(dest)
    parse_streams(text, option=values.name(dest))
    return text


def _event_log_handler(values: Values) -> str:
    name = values.text("event_log_handler")
    # "dynamic_rendezvous" is a name of torch's registry and forgets what it is given.
    if name not in ("null", "console", "dynamic_rendezvous"):
        raise UsageError(
            f"{values.name('event_log_handler')}={name}: known are null and console",
            hint="PYTEST_ELASTIC_EVENTS=file:/path writes events to a file.",
        )
    return name


def _ranks_filter(values: Values) -> tuple[int, ...]:
    text = values.text("local_ranks_filter")
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(re.fullmatch(r"\d{1,9}", part) for part in parts):
        raise UsageError(
            f"{values.name('local_ranks_filter')}={text}: expected local ranks, as in 0,1"
        )
    return tuple(int(part) for part in parts)


def _shutdown_timeout(values: Values, environ: Mapping[str, str]) -> float:
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
