"""The command line of `pytest-elastic run`: what it means, and what it refuses."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from pytest_elastic.cli.options import build_parser, parse_run_command
from pytest_elastic.config import Endpoint, LaunchConfig
from pytest_elastic.errors import UsageError


@pytest.fixture
def script(tmp_path: Path) -> str:
    """Return the path of a script that is there."""
    path = tmp_path / "train.py"
    path.write_text("print('hello')\n")
    return str(path)


def parse(*argv: str, environ: Mapping[str, str] | None = None) -> LaunchConfig:
    """Read a command line on a machine with four devices of each kind."""
    return parse_run_command(argv, environ or {}, count_devices=lambda _: 4)


def test_a_bare_command_is_a_job_of_this_node_alone(script: str) -> None:
    """Without options: one node, one worker, no restart, any free port."""
    config = parse(script, "--steps=3")
    assert (config.min_nodes, config.max_nodes, config.nproc_per_node) == (1, 1, 1)
    assert config.max_restarts == 0
    assert config.endpoint == Endpoint(host="localhost", port=0)
    assert config.program.kind == "script"
    assert tuple(config.program.args) == ("--steps=3",)
    assert config.program.python == sys.executable
    assert config.signals == (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


def test_both_spellings_mean_the_same(script: str) -> None:
    """Dashes and underscores, as torchrun takes them."""
    one = parse("--nproc-per-node=2", "--max-restarts=3", script)
    two = parse("--nproc_per_node", "2", "--max_restarts", "3", script)
    assert (one.nproc_per_node, one.max_restarts) == (two.nproc_per_node, two.max_restarts)


def test_the_command_line_beats_the_environment_beats_the_default(script: str) -> None:
    """Every option can be a PET_ variable, and each value remembers where it came from."""
    environ = {"PET_NNODES": "2:3", "PET_MAX_RESTARTS": "7", "PET_STANDALONE": "0"}
    config = parse("--nnodes=1:4", script, environ=environ)
    assert (config.min_nodes, config.max_nodes, config.max_restarts) == (1, 4, 7)
    assert config.origins["nnodes"] == "command line"
    assert config.origins["max_restarts"] == "environment PET_MAX_RESTARTS"
    assert config.origins["role"] == "default"


def test_static_rendezvous_meets_at_node_0(script: str) -> None:
    """The default of torchrun for several nodes: --master-addr hosts, node rank 0 is it."""
    options = ("--nnodes=2", "--master-addr=10.0.0.7", "--master-port=1234")
    first = parse(*options, script)
    second = parse(*options, "--node-rank=1", script)
    assert first.backend == "static"
    assert first.endpoint == Endpoint(host="10.0.0.7", port=1234)
    assert first.rendezvous.is_host is True
    assert second.rendezvous.is_host is False
    assert second.node_rank == 1


def test_keep_alive_settings_of_torchrun_become_beat_and_lease(script: str) -> None:
    """keep_alive_interval and its attempts say after which silence a node is given up."""
    conf = "keep_alive_interval=2,keep_alive_max_attempt=4,last_call_timeout=7"
    config = parse("--rdzv-conf", conf, script)
    assert config.rendezvous.beat_interval_s == 2
    assert config.rendezvous.lease_s == 8
    assert config.rendezvous.last_call_s == 7


def test_devices_can_be_counted(script: str) -> None:
    """auto, cpu, gpu and xpu ask the machine."""
    assert parse("--nproc-per-node=auto", script).nproc_per_node == 4


def test_what_stands_behind_the_script_is_the_scripts(script: str) -> None:
    """Options after the script are not ours."""
    config = parse(script, "--nnodes=9", "--", "-x")
    assert config.max_nodes == 1
    assert tuple(config.program.args) == ("--nnodes=9", "--", "-x")


def test_a_module_needs_no_file(script: str) -> None:
    """-m names a module; --no-python a program."""
    assert parse("-m", "package.train").program.kind == "module"
    assert parse("--no-python", "/bin/true").program.kind == "binary"
    assert parse("--run-path", script).program.kind == "run_path"


REFUSED = [
    (("--nnodes=4:2",), "--nnodes=4:2 asks for at least 4 and at most 2"),
    (("--nnodes=many",), "not a number of nodes"),
    (("--nnodes=0",), "1 <= MIN <= MAX"),
    (("--nproc-per-node=0",), "--nproc-per-node=0: expected a number of workers"),
    (("--nproc-per-node=tpu",), "auto, cpu, gpu, xpu"),
    (("--max-restarts=-1",), "at least 0"),
    (("--max-restarts=often",), "whole number"),
    (("--rdzv-backend=zeus",), "known are c10d and static"),
    (("--rdzv-backend=c10d", "--rdzv-endpoint=host:port"), "not an endpoint"),
    (("--rdzv-backend=c10d", "--rdzv-endpoint=host:99999"), "ports end at 65535"),
    (("--rdzv-conf=lase=3",), "Did you mean 'lease'?"),
    (("--rdzv-conf=lease=soon",), "expected a number of seconds"),
    (("--rdzv-conf=lease",), "expected key=value"),
    (("--rdzv-conf=is_host=perhaps",), "expected true or false"),
    (("--standalone", "--nnodes=2"), "leave one of them out"),
    (("--module", "--no-python"), "contradict each other"),
    (("--shutdown-timeout=-1",), "number of seconds from 0"),
    (("--signals-to-handle=SIGKILL",), "SIGKILL is not a signal that can be handled"),
    (("--signals-to-handle=SIGFOO",), "SIGFOO is not a signal"),
    (("--local-ranks-filter=a",), "expected local ranks"),
    (("--start-method=teleport",), "invalid choice"),
    (("--max-restart=1", "--max-restrats=2"), "there is no option --max-restrats"),
]


@pytest.mark.parametrize(("options", "complaint"), REFUSED)
def test_what_cannot_be_meant_is_refused_in_a_line(
    script: str, options: tuple[str, ...], complaint: str
) -> None:
    """One clear sentence, never a traceback or a page of usage."""
    with pytest.raises(UsageError) as caught:
        parse(*options, script)
    assert complaint in str(caught.value)
    assert len(str(caught.value).splitlines()) <= 2


def test_a_misspelt_option_is_recognised(script: str) -> None:
    """The closest option is offered."""
    with pytest.raises(UsageError, match="Did you mean --nnodes"):
        parse("--nnode5=2", script)


def test_a_missing_script_says_where_it_was_looked_for() -> None:
    """The name and the folder are in the message."""
    with pytest.raises(UsageError, match=r"there is no script 'nowhere\.py' \(looked from "):
        parse("nowhere.py")


def test_no_script_at_all_is_a_usage_error() -> None:
    """What argparse complains of is said in one line."""
    with pytest.raises(UsageError, match="SCRIPT"):
        parse("--nnodes=1")


def test_a_wrong_variable_is_named(script: str) -> None:
    """What came from the environment is complained about by its own name."""
    with pytest.raises(UsageError, match="PET_NPROC_PER_NODE=zero"):
        parse(script, environ={"PET_NPROC_PER_NODE": "zero"})
    with pytest.raises(UsageError, match="PET_MODULE=yes"):
        parse(script, environ={"PET_MODULE": "yes"})


def test_help_names_every_option() -> None:
    """Each option has a help text of its own."""
    text = build_parser().format_help()
    for flag in ("--nnodes", "--rdzv-endpoint", "--shutdown-timeout", "--worker-start"):
        assert flag in text
