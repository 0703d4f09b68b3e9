"""`options:` are judged as the launchers' own parsers judge them: both of them are asked here."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import pytest
from elastic_harness.scenario.checks.option_checks import read_options
from elastic_harness.scenario.launchers import JobPlan, NodePlan, launcher_named
from elastic_harness.scenario.reading.problems import ScenarioError

from pytest_elastic.cli.options import parse_run_command
from pytest_elastic.errors import UsageError
from tests.unit.scenario.test_loader import GOOD, load

# Of each option values that are right and values that are not; which is which the parsers say.
VALUES = {
    "--monitor-interval": ["0", "0.5", "1e3", "fast", "", "-1", "nan", "inf"],
    "--start-method": ["spawn", "fork", "forkserver", "thread", ""],
    "--event-log-handler": ["null", "console"],
    "--role": ["trainer", "two words", "two\nlines"],
    "--redirects": ["0", "3", "4", "", "0:1", "0:1,1:3", "0:4", "0:1,", "10:1", "a:1"],
    "--tee": ["0", "3", "33", "0:1", "12:3", "x"],
    "--local-ranks-filter": ["", "0", "0,1", "0, 1", "0,", "a", "0;1"],
    "--numa-binding": ["node", "core-complex", "all"],
    "--signals-to-handle": ["SIGTERM", "SIGTERM,SIGUSR1", "sigterm", "SIGFOO", "SIGKILL"],
    "--shutdown-timeout": ["0", "5", "1.5", "soon", "-1", "inf"],
    "--worker-start": ["auto", "exec", "warm"],
    "--master-port": ["0", "29500", "port", "1.5"],
    "--node-rank": ["0", "3", "x", "1.5"],
    "--node-name": ["a", "", "two\nlines"],
    "--duplicate-stdout-filters": ["apple,,pear,plum", ""],
    "--preload": ["torch,json", ""],
}
FORMS: list[list[str]] = [
    ["-t3"],
    ["-r", "0:1"],
    ["-r=3"],
    ["--tee", "3", "--role", "a"],
    ["--local_ranks_filter=0"],
    ["--use-env"],
    ["--run-path"],
    ["--virtual-local-rank"],
    ["--use-env", "--pass-local-rank"],
    ["--tee"],
    ["--tee", "--role=x"],
    ["--tee", "-t"],
    ["--use-env=1"],
    ["--no-such-option=3"],
    ["--monitor-interval", "-1"],
]
# What is refused although a parser takes it: torch fails by it later on, and ours does not look at
# a port that belongs to another kind of rendezvous.
LATE = {
    "torchrun": [
        ["--monitor-interval=-1"], ["--monitor-interval=nan"], ["--monitor-interval=inf"],
        ["--monitor-interval", "-1"],
    ],
    "pytest-elastic": [["--master-port=port"], ["--master-port=1.5"]],
}  # fmt: skip


def command_line(launcher: str, options: Sequence[str]) -> list[str]:
    """Return the words that a node of a job of one node is started with, behind the launcher."""
    job = JobPlan(
        run_id="any",
        program=(os.path.abspath(__file__),),
        nproc_per_node=1,
        min_nodes=1,
        max_nodes=1,
        max_restarts=0,
        endpoint_port=29400,
        endpoint_hosts=("n1",),
        options=options,
    )
    node = NodePlan(name="n1", address="10.77.0.1", index=0, log_dir="/nowhere")
    words = launcher_named(launcher).argv(job, node)
    return words[words.index("run" if "run" in words else "torch.distributed.run") + 1 :]


def our_parser_takes(words: list[str]) -> bool:
    """Ask our own command."""
    try:
        parse_run_command(words, {}, count_devices=lambda _: 1)
    except UsageError:
        return False
    return True


def torchrun_takes(words: list[str]) -> bool:
    """Ask the installed torchrun: its parser, and what it makes of the result."""
    from torch.distributed.elastic.events.handlers import get_logging_handler
    from torch.distributed.run import config_from_args, get_args_parser

    try:
        arguments = get_args_parser().parse_args(words)
        config, _, _ = config_from_args(arguments)
        get_logging_handler(config.event_log_handler)
    except (SystemExit, Exception):  # noqa: BLE001 (its own are of every kind)
        return False
    return True


def is_accepted(launcher: str, options: Sequence[str]) -> bool:
    """Tell whether a scenario with these options is read."""
    text = GOOD.replace("nodes: 2", "nodes: 1").replace("rank: 1", "rank: 0")
    text = text.replace("kill: rank 1", "kill: rank 0")
    text = text.replace("command: [python, train.py]", f"script: {os.path.abspath(__file__)}")
    lines = f"  launcher: {launcher}\n  options: {list(options)!r}\n"
    try:
        (loaded,) = load(text.replace("  nproc_per_node: 2\n", lines))
    except ScenarioError as error:
        return {each.at.line for each in error.problems} != {7}  # those of the options
    return bool(read_options(loaded.scenario.job))


def plain(options: Sequence[str]) -> bool:
    """Tell whether YAML has these words as they are written here."""
    return all(word.isprintable() for word in options)


@pytest.mark.parametrize(
    ("launcher", "takes"), [("pytest-elastic", our_parser_takes), ("torchrun", torchrun_takes)]
)
def test_options_are_judged_as_the_launchers_own_parser_does(
    launcher: str, takes: Callable[[list[str]], bool], capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever it takes can be given, and whatever it refuses is refused when the file is read."""
    cases = [[f"{name}={value}"] for name, values in VALUES.items() for value in values] + FORMS
    different = []
    for options in filter(plain, cases):
        accepted = is_accepted(launcher, options)
        if accepted != takes(command_line(launcher, options)):
            different.append((options, accepted))
    capsys.readouterr()  # argparse's pages of usage
    assert different == [(options, False) for options in cases if options in LATE[launcher]]
