"""`pytest-elastic chaos`: a check-up of a training script, or the scenario files that are named.

A script is run without any fault first, and then once for each fault of a battery; a report card
says what came out. Scenario files and folders are handed to pytest.
"""

from __future__ import annotations

import argparse
import math
import os
import shlex
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any, NoReturn

from pytest_elastic.cli.extensions import (
    BUILT_IN_CLUSTERS,
    add_cluster_option,
    find_cluster,
    find_launcher,
)
from pytest_elastic.cli.program_parser import ProgramParser
from pytest_elastic.errors import UsageError

if TYPE_CHECKING:
    from elastic_harness.checkup.card import Row
    from elastic_harness.checkup.runs import Runs, Settings

    from pytest_elastic.cli.launched import Launched

__all__ = ["build_parser", "main"]

_SUFFIX = ".elastic.yaml"
_NODES = 3
_PATIENCE = "PYTEST_ELASTIC_PATIENCE"
_INTERRUPTED = (
    "Interrupted: the runs are being ended, which takes seconds; Ctrl-C again ends at once."
)
_EXIT_CODES = {"skipped": 0, "valid": 0, "invalid": 1, "unknown": 3}
# Worst first.
_OUTCOMES = ("invalid", "unknown", "valid", "skipped")
# The options that scenario files have no use for.
_OF_A_CHECKUP = (
    *("nodes", "nproc_per_node", "only", "leave_out", "save"),
    *("tolerance", "limit", "observe_step", "jobs"),
)
# Those that pytest has, too, after `--elastic-`.
_OF_BOTH = ("launcher", "cluster", "seed", "artifacts", "patience")
# What launches a script elsewhere: the words behind are options of the launcher.
_LAUNCH_COMMANDS = (
    ("torchrun",),
    ("pytest-elastic", "run"),
    ("python", "-m", "torch.distributed.run"),
    ("python3", "-m", "torch.distributed.run"),
    ("python",),
    ("python3",),
)


def main(argv: Sequence[str]) -> int:
    """Return 0 if every test of the battery is valid, 1 if one is invalid, 3 if one is unknown."""
    parser = build_parser()
    given = parser.read(argv, rest="arguments")
    words = [given.program, *given.arguments]
    if not given.is_module and _are_scenarios(words):
        for name in _OF_A_CHECKUP:
            if getattr(given, name) != parser.get_default(name):
                raise UsageError(
                    f"--{name.replace('_', '-')} is for the check-up of a script, and {words[0]} "
                    "is scenarios",
                    hint="Files say that themselves; `pytest-elastic schema` lists how.",
                )
        _become_pytest(given, words)
    return _check_up(given, words)


def build_parser() -> ProgramParser:
    """Return the parser of the command line."""
    parser = ProgramParser(
        prog="pytest-elastic chaos",
        usage="pytest-elastic chaos [options] SCRIPT [arguments of the script]\n"
        "       pytest-elastic chaos [options] -m MODULE [arguments]\n"
        "       pytest-elastic chaos [options] torchrun [options of torchrun] SCRIPT [arguments]\n"
        "       pytest-elastic chaos [options] FILE.elastic.yaml ...",
        description="Check a training script: run it without any fault, then once for each fault "
        "of a battery, and say what it survived and what that cost. Or run scenario files.",
        epilog="Exit code: 0 valid, 1 invalid, 3 unknown, 2 wrong usage.",
    )
    parser.add_argument(
        "-m", dest="is_module", action="store_true", help="the program is a module: python -m"
    )
    parser.add_argument("program", metavar="SCRIPT|FILE", help="what is checked, or run")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parser.add_argument("--launcher", metavar="NAME|COMMAND", help="the launcher under test")
    add_cluster_option(
        parser, "what nodes are: auto, namespace, process, or any other that pytest takes here"
    )
    parser.add_argument("--seed", metavar="N", type=int, help="where all chance comes from")
    parser.add_argument("--artifacts", metavar="DIR", help="where runs leave their traces")
    parser.add_argument(
        "--patience",
        type=_factor,
        metavar="FACTOR",
        help="how many times longer than it says a run waits for anything, on a slow machine",
    )
    checkup = parser.add_argument_group("check-up of a script")
    checkup.add_argument("--nodes", type=_positive, metavar="N", help="default: 3")
    checkup.add_argument("--nproc-per-node", type=_positive, metavar="N", help="default: 1")
    checkup.add_argument(
        "--only",
        action="extend",
        type=_tests,
        metavar="TEST,...",
        help="these tests of the battery, and no others; uninterrupted: none of them",
    )
    checkup.add_argument(
        "--leave-out",
        metavar="PATH,...",
        default="",
        help="what of the working folder is not copied for the runs: old checkpoints",
    )
    checkup.add_argument(
        "--save", metavar="DIR", help="write the battery into a folder, as scenario files to keep"
    )
    checkup.add_argument(
        "--tolerance",
        type=_tolerance,
        default=1e-6,
        metavar="PART",
        help="the relative difference that parameters may have at the end (default: 1e-6)",
    )
    checkup.add_argument(
        "--limit",
        type=_seconds,
        default=300.0,
        metavar="TIME",
        help="what the undisturbed run may take (default: 5m)",
    )
    checkup.add_argument(
        "--observe-step",
        type=_step_pattern,
        metavar="REGEX",
        help=r"how the script prints a step, such as 'step (\d+)', where its optimizer counts none",
    )
    checkup.add_argument(
        "--jobs",
        type=_positive,
        metavar="N",
        help="runs at a time (default: one a processor; one, on a kind of cluster of your own)",
    )
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: a whole number of at least 1 is expected")
    return int(text)


def _seconds(text: str) -> float:
    from elastic_harness.scenario.fields import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _number(text: str, *, at_least: float, at_most: float) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not at_least <= number <= at_most:
        raise argparse.ArgumentTypeError(
            f"{text!r}: a number from {at_least:g} to {at_most:g} is expected"
        )
    return number


def _tolerance(text: str) -> float:
    return _number(text, at_least=0, at_most=1)


def _factor(text: str) -> float:
    return _number(text, at_least=1, at_most=1000)


def _step_pattern(text: str) -> str:
    from elastic_harness.scenario.job_spec import Observe
    from elastic_harness.scenario.validation import first_message
    from pydantic import ValidationError

    try:
        Observe(step=text)
    except ValidationError as error:
        message = first_message(error, ()).removeprefix("step: ")
        raise argparse.ArgumentTypeError(message) from error
    return text


def _tests(text: str) -> Sequence[str]:
    from elastic_harness.checkup.battery import BATTERY, UNDISTURBED

    names = [name for name in text.split(",") if name]
    known = [UNDISTURBED, *(test.name for test in BATTERY)]
    wrong = [name for name in names if name not in known]
    if wrong or not names:
        found = f"there is no test {wrong[0]!r}" if wrong else "no test is named"
        raise argparse.ArgumentTypeError(f"{found}: known are {', '.join(known)}")
    return names


def _are_scenarios(words: Sequence[str]) -> bool:
    return words[0].endswith(_SUFFIX) or f"{_SUFFIX}::" in words[0] or os.path.isdir(words[0])


def _become_pytest(given: argparse.Namespace, words: Sequence[str]) -> NoReturn:
    """Become pytest, which runs the scenarios."""
    named = {name: getattr(given, name) for name in _OF_BOTH}
    # Options may stand behind the files as well: nothing there is a script's.
    options = [f"--elastic-{name}={value}" for name, value in named.items() if value is not None]
    pytest = [sys.executable, "-m", "pytest_elastic.plugin.chaos_session"]
    # In our place, not below us: signals are then pytest's own.
    os.execv(sys.executable, [*pytest, *options, *_renamed(words), "--elastic-keep=all"])


def _renamed(words: Sequence[str]) -> list[str]:
    """Return what stands behind scenario files for pytest: our options by their names there."""
    found = []
    for word in words:
        name, _, value = word.partition("=")
        is_ours = name.startswith("--") and name[2:] in _OF_BOTH
        prefix = f"--elastic-{name[2:]}" if is_ours else name
        found.append(f"{prefix}={value}" if value else prefix)
    return found


# --- the check-up ------------------------------------------------------------------------------


def _check_up(given: argparse.Namespace, words: Sequence[str]) -> int:
    from elastic_harness.checkup.battery import Checkup
    from elastic_harness.checkup.card import card_text
    from elastic_harness.checkup.runs import Runs
    from elastic_harness.cluster.server.server_process import sharing_one_interpreter
    from elastic_harness.report.run_directory import create_run_directory
    from elastic_harness.scenario.launchers import modules_to_preload

    from pytest_elastic.cli.status_line import StatusLine

    launched = _launched(given, words)
    job, shown = _job(given, launched)
    name = f"chaos-{os.path.splitext(os.path.basename(shown))[0]}"
    artifacts = create_run_directory(given.artifacts or ".elastic", name).path
    folder = os.path.abspath(given.save or os.path.join(artifacts, "scenarios"))
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder} cannot be made: {error.strerror}") from error
    if job.get("script"):
        job["script"] = os.path.relpath(job["script"], folder)
    runs = Runs(
        _settings(given, folder, artifacts),
        Checkup(
            job=job,
            nodes=given.nodes or launched.nodes or _NODES,
            tolerance=given.tolerance,
            limit_s=given.limit,
        ),
        shown,
        notes=[launched.note] if launched.note else [],
    )
    jobs = runs.settings.jobs
    shared = sharing_one_interpreter(modules_to_preload()) if jobs > 1 else nullcontext()
    _answer_interrupts()
    try:
        with shared, StatusLine(runs.under_way) as screen:
            rows = _run(runs, shown, given.only or (), screen.tell)
    except UsageError as error:
        if name := _own_option_in(job.get("args", ())):
            error.hint = (
                f"{error.hint or ''}\n{name} stands behind the script, which gets it: options of "
                "the check-up stand before the script."
            ).lstrip()
        raise
    finally:
        runs.close()
    card = card_text(shown, rows, runs.notes)
    print(f"\n{card}\n\nThe runs are in {os.path.relpath(artifacts)}.")
    with open(os.path.join(artifacts, "card.txt"), "w", encoding="utf-8") as file:
        file.write(f"{card}\n")
    if given.save:
        print(f"The battery is in {os.path.relpath(folder)}: pytest {os.path.relpath(folder)}")
    worst = min((row.outcome for row in rows), key=_OUTCOMES.index)
    return _EXIT_CODES[worst]


def _answer_interrupts() -> None:
    """Say at the first Ctrl-C, at once, what happens now; end at the second one.

    Supervisors outlive this process and remove what it has started. Where SIGINT is ignored, as in
    a background job, it still is.
    """

    def end_at_once(*_: object) -> NoReturn:
        os._exit(128 + signal.SIGINT)

    def end(*_: object) -> NoReturn:
        signal.signal(signal.SIGINT, end_at_once)
        start = "\r\x1b[K" if sys.stdout.isatty() else ""
        # Not by sys.stderr, or the status line: what was interrupted may hold their locks.
        with suppress(OSError):
            os.write(2, f"{start}{_INTERRUPTED}\n".encode())
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, end)


def _own_option_in(arguments: Sequence[str]) -> str:
    """Return the first argument of a script that is named like an option of the check-up."""
    text = build_parser().format_help()
    names = (word.partition("=")[0] for word in arguments if word.startswith("--"))
    return next((name for name in names if f"\n  {name} " in text), "")


def _run(runs: Runs, shown: str, names: Sequence[str], tell: Callable[[str], None]) -> list[Row]:
    nodes, kind = runs.checkup.nodes, runs.settings.choice.kind
    launcher = runs.settings.launcher.name
    tell(f"{shown} on {nodes} nodes ({kind} cluster), started by {launcher}")
    tell("  twice without any fault to compare with ...")
    seen, undisturbed = runs.measure()
    if (saved := seen.checkpoints) is not None:
        saves = f"saves {saved.named} every {saved.interval} steps"
    else:
        saves = "what it saves was not seen" if seen.misses_files else "no checkpoint was seen"
    tell(f"  {seen.steps} steps of {1000 * seen.step_s:.3g} ms on {seen.world_size} ranks; {saves}")
    runs.notes += [f"{what}: {why}" for what, why in seen.unseen.items()]
    rows = []
    for row in runs.battery(seen, names):
        rows.append(row)
        pause = "" if row.pause_s is None else f", {row.pause_s:.1f} s without steps"
        tell(f"  {row.name}: {row.outcome}{pause}")
    limit = seen.loss_limit
    if limit is not None and any(row.state.startswith("loss ") for row in rows):
        runs.notes.append(
            "loss: the mean of the last losses, and in brackets that without a fault. At most "
            f"{limit:.2g} is allowed: that mean, and three standard deviations of those losses"
        )
    from elastic_harness.checkup.battery import BATTERY

    order = [test.name for test in BATTERY]
    return [undisturbed, *sorted(rows, key=lambda row: order.index(row.name))]


def _launched(given: argparse.Namespace, words: Sequence[str]) -> Launched:
    """Return the program, and what a launcher's command line says of its job."""
    from pytest_elastic.cli.launched import Launched, read_launched

    for command in _LAUNCH_COMMANDS:
        if not given.is_module and tuple(words[: len(command)]) == command:
            rest = words[len(command) :]
            return read_launched(rest, nodes=given.nodes, nproc=given.nproc_per_node)
    return Launched(words=words, is_module=given.is_module)


def _job(given: argparse.Namespace, launched: Launched) -> tuple[dict[str, Any], str]:
    """Return the job as a scenario has it, and the program's name for people."""
    name, *arguments = launched.words
    if not launched.is_module and not os.path.isfile(name):
        raise UsageError(
            f"there is no script {name!r}",
            hint="A module is given as -m MODULE, a folder of scenario files by its path.",
        )
    is_module = launched.is_module
    job: dict[str, Any] = {"module": name} if is_module else {"script": os.path.abspath(name)}
    job |= {"args": arguments} if arguments else {}
    job |= {"nproc_per_node": given.nproc_per_node} if given.nproc_per_node else {}
    left_out = [_below_here(path) for path in given.leave_out.split(",") if path]
    job |= {"max_restarts": 3, "working_copy": {"leave_out": left_out} if left_out else True}
    job |= launched.job
    if given.observe_step:
        job["observe"] = {"step": given.observe_step}
    return job, name if is_module else os.path.relpath(name)


def _below_here(path: str) -> str:
    """Return what is to be left out, relative to the working folder; raises UsageError."""
    relative = os.path.relpath(path)
    if relative.split(os.sep)[0] in (os.curdir, os.pardir):
        raise UsageError(
            f"--leave-out={path} is no file or folder below the working folder, {os.getcwd()}",
            hint="Only that folder is copied for the runs: --leave-out=checkpoints, say.",
        )
    return relative


def _settings(given: argparse.Namespace, folder: str, artifacts: str) -> Settings:
    from elastic_harness.checkup.runs import Settings

    kind = given.cluster or "auto"
    # A cluster of another package may not allow several at a time.
    jobs = len(os.sched_getaffinity(0)) if kind in BUILT_IN_CLUSTERS else 1
    return Settings(
        choice=find_cluster(kind),
        launcher=find_launcher(given.launcher or "pytest-elastic"),
        folder=folder,
        artifacts=artifacts,
        seed=given.seed if given.seed is not None else 1,
        jobs=given.jobs or jobs,
        environ=dict(os.environ),
        patience=given.patience or _patience_of(os.environ),
        command=shlex.join(["pytest-elastic", "chaos", *sys.argv[2:]]),
    )


def _patience_of(environ: Mapping[str, str]) -> float:
    """Return the patience that pytest would have here."""
    try:
        return _factor(environ.get(_PATIENCE) or "1")
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"{_PATIENCE}={error}") from error
