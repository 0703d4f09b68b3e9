"""The command line of `pytest-elastic run`: torchrun's options, and a few of our own.

Every long option is accepted with dashes and with underscores, and can be given as an environment
variable `PET_<NAME>`, as with torchrun. Command line over environment over default, merged once
here into a `LaunchConfig` that remembers where each value came from.
"""

from __future__ import annotations

import argparse
import difflib
import math
import re
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

from pytest_elastic.agent.environ import visible_device
from pytest_elastic.cli.meeting_point import (
    check_can_be_found,
    file_of_registry,
    meeting_point,
    node_rank,
)
from pytest_elastic.cli.option_table import OPTIONS
from pytest_elastic.cli.program_parser import ProgramParser
from pytest_elastic.cli.script import check_script, local_rank_option
from pytest_elastic.cli.values import Values, merge
from pytest_elastic.config import (
    DEFAULT_FAILURE_GRACE_S,
    DEFAULT_SHUTDOWN_TIMEOUT_S,
    LaunchConfig,
    ProgramConfig,
    fill_in,
    parse_filters,
    parse_nnodes,
    parse_signals,
)
from pytest_elastic.credentials import read_token_file
from pytest_elastic.errors import UsageError
from pytest_elastic.printed import printable
from pytest_elastic.rdzv_conf import parse_backend_conf
from pytest_elastic.workers.logs.folders import parse_streams
from pytest_elastic.workers.logs.plugin import check_plugin

if TYPE_CHECKING:
    from elastic_harness.scenario.checks.launcher_options import Reading

__all__ = ["build_parser", "check_option", "parse_run_command", "read_options"]


# A larger number is a mistake: each worker is a process.
_MAX_WORKERS = 10_000
_SEE = "See 'pytest-elastic run --help'."
# Characters of an error message; its middle is left out first.
_MAX_MESSAGE = 600


def check_option(name: str) -> None:
    """Raise UsageError for what is not the whole name of an option, with the nearest."""
    known = [flag for option in OPTIONS for flag in option.flags]
    dashed = name.replace("_", "-")
    if dashed not in known:
        close = [flag for flag in known if flag.startswith(f"{dashed}-")]
        close += difflib.get_close_matches(dashed, known, n=1)
        hint = f"Did you mean {close[0]}? {_SEE}" if close else _SEE
        raise UsageError(f"there is no option {name}", hint=hint)


class _Parser(ProgramParser):
    """Raises UsageError instead of printing a page of usage."""

    def error(self, message: str) -> NoReturn:
        prefix = "unrecognized arguments: "
        if message.startswith(prefix):
            check_option(message.removeprefix(prefix).split()[0].partition("=")[0])
        raise UsageError(message, hint=_SEE)


class _QuietParser(_Parser):
    """Shows no help: what reads command lines of others prints nothing."""

    def print_help(self, file: object = None) -> None:
        """Print nothing."""


def build_parser(kind: type[_Parser] = _Parser) -> ProgramParser:
    """Return the parser of `pytest-elastic run`; values that were not given are None."""
    parser = kind(
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

    `count_devices(word)` tells how many workers "auto", "cpu", "gpu", "xpu" or the name of a
    backend mean here. Raises UsageError for anything that cannot be meant: one line, and perhaps
    another about what to try.
    """
    try:
        return _parse(argv, environ, count_devices)
    except UsageError as error:
        raise UsageError(_in_one_line(error.message), hint=error.hint) from error


def read_options(lines: Sequence[Sequence[str]]) -> list[Reading]:
    """Return what is made of command lines before a job is started with them.

    Beside what `parse_run_command` refuses, that is a token file that holds no token.
    """
    return [_read_options(argv) for argv in lines]


def _read_options(argv: Sequence[str]) -> Reading:
    from elastic_harness.scenario.checks.launcher_options import Reading

    found = Reading()
    try:
        # Not by turning sys.stdout away, which is that of all threads.
        arguments = vars(build_parser(_QuietParser).read(argv, rest="training_script_args"))
        is_given = [name for name, value in arguments.items() if value is not None]
        given = frozenset(f"--{name.replace('_', '-')}" for name in is_given)
        found = Reading(given, arguments["training_script"])
        config = parse_run_command(argv, {}, count_devices=lambda _: 1)
        if config.rdzv_token_file is not None:
            read_token_file(config.rdzv_token_file, said="--rdzv-token-file")
    except SystemExit:
        return Reading(frozenset({"--help"}))
    except UsageError as error:
        return replace(found, refusal=error)
    return found


def _in_one_line(message: str) -> str:
    """Return an error message that quotes what a user gave, made printable and cut to length."""
    plain = printable(message)
    half = _MAX_MESSAGE // 2
    return plain if len(plain) <= _MAX_MESSAGE else f"{plain[:half]} ... {plain[-half:]}"


def _parse(
    argv: Sequence[str], environ: Mapping[str, str], count_devices: Callable[[str], int]
) -> LaunchConfig:
    arguments, warnings = build_parser().read(argv, rest="training_script_args"), list[str]()
    _check_what_has_no_effect(values := merge(arguments, environ))
    with values.blamed("nnodes"):
        min_nodes, max_nodes = parse_nnodes(values.text("nnodes"))
    with values.blamed("signals_to_handle"):
        signals = parse_signals(
            values.text("signals_to_handle"), {s.name: int(s) for s in signal.Signals}
        )
    backend, endpoints, is_host, run_id = meeting_point(
        values, max_nodes, on_warning=warnings.append
    )
    with values.blamed("rdzv_conf"):
        conf, handler_conf = parse_backend_conf(
            values.text("rdzv_conf"),
            backend,
            on_unknown=lambda text: warnings.append(values.as_given("rdzv_conf", text)),
        )
    check_can_be_found(backend, endpoints, conf, min_nodes)
    if is_host is not None and conf.is_host is None:
        conf = replace(conf, is_host=is_host)
    if file := file_of_registry(values):
        conf = replace(conf, quorum="granted")
    workers = _nproc(values, count_devices)
    if values.is_set("virtual_local_rank"):
        visible_device(environ, workers - 1)
    shutdown_timeout_s = _shutdown_timeout(values, environ)
    return LaunchConfig(
        run_id=run_id,
        warnings=(*warnings, *_check_event_log_handler(values)),
        min_nodes=min_nodes,
        max_nodes=max_nodes,
        nproc_per_node=workers,
        backend=backend,
        endpoints=endpoints,
        rendezvous=conf,
        max_restarts=values.number("max_restarts"),
        role=values.label("role"),
        program=_program(arguments, values, environ),
        local_addr=values.optional("local_addr"),
        node_rank=node_rank(values, backend),
        node_name=_node_name(values),
        rdzv_token_file=values.optional("rdzv_token_file"),
        log_dir=values.optional("log_dir") or None,
        redirects=_streams(values, "redirects"),
        tee=_streams(values, "tee"),
        local_ranks_filter=_ranks_filter(values),
        stdout_filters=parse_filters(values.text("duplicate_stdout_filters")),
        stderr_filters=parse_filters(values.text("duplicate_stderr_filters")),
        log_line_prefix=values.text("log_line_prefix_template")
        or environ.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"),
        logs_specs=_logs_specs(values),
        shutdown_timeout_s=shutdown_timeout_s,
        failure_grace_s=_failure_grace(values, shutdown_timeout_s),
        signals=signals,
        worker_start=values.text("worker_start"),
        preload=tuple(filter(None, values.text("preload").split(","))),
        virtual_local_rank=values.is_set("virtual_local_rank"),
        numa_binding=values.optional("numa_binding"),
        events=environ.get("PYTEST_ELASTIC_EVENTS"),
        event_log_handler=values.text("event_log_handler"),
        error_file=environ.get("TORCHELASTIC_ERROR_FILE") or None,
        standalone=values.is_set("standalone"),
        handler_endpoint=values.text("rdzv_endpoint"),
        handler_conf=handler_conf,
        registry_file=file or None,
        origins=values.origins,
    )


def _nproc(values: Values, count_devices: Callable[[str], int]) -> int:
    text = values.text("nproc_per_node")
    if text.isascii() and text.isidentifier():
        with values.blamed("nproc_per_node"):
            return count_devices(text)
    count = int(text) if re.fullmatch(r"\d{1,9}", text) else 0
    if not 1 <= count <= _MAX_WORKERS:
        raise UsageError(
            f"{values.name('nproc_per_node')}={text}: expected a number of workers from 1 to "
            f"{_MAX_WORKERS}, or auto, cpu, gpu, xpu, or the name of a backend of torch"
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


def _streams(values: Values, dest: str) -> str:
    text = values.text(dest)
    parse_streams(text, option=values.name(dest))
    return text


def _check_event_log_handler(values: Values) -> Sequence[str]:
    """Return what to say of a handler that is not known: one line, or none."""
    name = values.text("event_log_handler")
    # "dynamic_rendezvous" is a name of torch's registry and forgets what it is given.
    if name in ("null", "console", "dynamic_rendezvous"):
        return ()
    said = f"{values.name('event_log_handler')}={name}"
    there_is = "known are null and console (PYTEST_ELASTIC_EVENTS=file:/path writes a file)"
    return (f"{said} has no effect: {there_is}",)


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
    return _seconds(name, given)


def _failure_grace(values: Values, shutdown_timeout_s: float) -> float:
    given = values.optional("failure_grace")
    if given is None:
        return min(DEFAULT_FAILURE_GRACE_S, shutdown_timeout_s)
    return _seconds(values.name("failure_grace"), given)


def _seconds(name: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise UsageError(f"{name}={text}: expected a number of seconds from 0")
    return seconds
