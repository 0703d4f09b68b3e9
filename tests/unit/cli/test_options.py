"""The command line of `pytest-elastic run`: what it means, and what it refuses."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from pytest_elastic.agent.program import command_line
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
    assert (first.node_rank, second.node_rank) == (0, 1)


@pytest.mark.parametrize("address", ["[0:0:0:0:0:0:0:1]", "0:0:0:0:0:0:0:1"])
def test_node_0_may_have_an_ipv6_address(script: str, address: str) -> None:
    """In brackets as torchrun's help has it, or without."""
    endpoint = parse("--nnodes=2", "--master-addr", address, script).endpoint
    assert endpoint == Endpoint(host="0:0:0:0:0:0:0:1", port=29500)


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


def test_the_job_of_a_bare_command_has_a_name_of_its_own(script: str) -> None:
    """As with torchrun, so that two of them write into different folders; a given name is kept."""
    first, second = parse(script), parse(script)
    assert first.run_id != second.run_id != "none"
    assert parse("--rdzv-id=mine", script).run_id == "mine"
    assert parse("--nnodes=2", "--master-addr=h", script).run_id == "none"


def test_a_script_of_the_old_launcher_gets_its_local_rank(script: str) -> None:
    """--pass-local-rank does what torch.distributed.launch does; --use-env is accepted."""
    program = parse("--pass-local-rank", script, "--steps=3").program
    assert command_line(program, 1)[-3:] == [script, "--local-rank=1", "--steps=3"]
    assert parse("--use-env", script).program.args == ()


def test_the_local_rank_can_stand_in_every_word(script: str) -> None:
    """`${local_rank}` is filled in, `$$` is one dollar, and any other dollar stays; as torchrun."""
    args = ("--out=${local_rank}.txt", "$HOME", "cost=$$5", "$${local_rank}", "${other}")
    program = parse(script, *args).program
    assert command_line(program, 3)[-5:] == [
        "--out=3.txt",
        "$HOME",
        "cost=$5",
        "${local_rank}",
        "${other}",
    ]
    named_by_rank = script.replace("train", "train_${local_rank}")
    Path(script.replace("train", "train_0")).touch()
    program = parse(named_by_rank).program
    assert command_line(program, 1)[-1] == script.replace("train", "train_1")


def test_another_interpreter_looks_for_its_script_itself(script: str) -> None:
    """PYTHON_EXEC is what runs the script, and may see other files than we do."""
    program = parse("/in/the/container.py", environ={"PYTHON_EXEC": "/opt/python"}).program
    assert command_line(program, 0) == ["/opt/python", "-u", "/in/the/container.py"]
    assert parse(script, environ={"PYTHON_EXEC": ""}).program.python == sys.executable


def test_run_path_takes_precedence(script: str) -> None:
    """--run-path beside --no-python or --module is --run-path, as torchrun's help says."""
    for other in ("--no-python", "--module"):
        assert parse("--run-path", other, script).program.kind == "run_path"


def test_filters_are_texts_between_commas(script: str) -> None:
    """Two commas stand for one."""
    config = parse(
        "--duplicate-stdout-filters=loss,a,,b", "--duplicate_stderr_filters", "WARN", script
    )
    assert config.stdout_filters == ("loss", "a,b")
    assert config.stderr_filters == ("WARN",)
    assert parse(script).stdout_filters == ()
    by_variable = parse(script, environ={"PET_DUPLICATE_STDOUT_FILTERS": "x,y"})
    assert by_variable.stdout_filters == ("x", "y")


@pytest.mark.parametrize(
    ("backend", "conf", "warnings"),
    [
        ("c10d", "lease=5", ()),
        ("c10d", "lase=3", ("'lase': it has no effect. Did you mean 'lease'?",)),
        ("c10d", "their_own=1,lease=5,x=y", ("'their_own': it has no", "'x': it has no effect.")),
        ("etcd-v3", "pasword_file=/c", ("Did you mean 'password_file'?",)),
    ],
)
def test_a_setting_that_is_not_known_has_no_effect_and_that_is_said(
    script: str, backend: str, conf: str, warnings: Sequence[str]
) -> None:
    """As torchrun takes it; the warning is how a user finds a misspelt one."""
    config = parse(f"--rdzv-backend={backend}", "--nnodes=1", "--rdzv-conf", conf, script)
    assert len(config.warnings) == len(warnings)
    for warning, part in zip(config.warnings, warnings, strict=True):
        assert warning.startswith("--rdzv-conf has no setting ")
        assert part in warning
    by_variable = parse(script, environ={"PET_RDZV_CONF": "lase=3"}).warnings
    assert by_variable[0].startswith("PET_RDZV_CONF has no setting 'lase'")


@pytest.mark.parametrize("backend", ["c10d", "static", "etcd-v3"])
def test_an_ipv6_endpoint_without_brackets_is_taken_with_a_warning(
    script: str, backend: str
) -> None:
    """Whatever the backend; the warning names what the user wrote."""
    words = (f"--rdzv-backend={backend}", "--nnodes=2", "--node-rank=0", script)
    config = parse("--rdzv-endpoint=fd00::7:29400", *words)
    assert config.endpoint == Endpoint(host="fd00::7", port=29400)
    (warning,) = config.warnings
    assert warning.startswith("--rdzv-endpoint='fd00::7:29400' is read as host fd00::7 and port ")
    (warning,) = parse(*words, environ={"PET_RDZV_ENDPOINT": "fd00::7:29400"}).warnings
    assert warning.startswith("PET_RDZV_ENDPOINT='fd00::7:29400' ")


def test_an_event_log_handler_that_is_not_known_has_no_effect_and_that_is_said(
    script: str,
) -> None:
    """Torch knows it only if something in torchrun's own process has added it."""
    (warning,) = parse("--event-log-handler=kafka", script).warnings
    assert warning.startswith("--event-log-handler=kafka has no effect: known are null and console")
    (warning,) = parse(script, environ={"PET_EVENT_LOG_HANDLER": "a\tb"}).warnings
    assert warning.startswith("PET_EVENT_LOG_HANDLER=a")
    for name in ("null", "console", "dynamic_rendezvous"):
        assert not parse(f"--event-log-handler={name}", script).warnings


@pytest.mark.parametrize("quote", ["'", '"', " "])
def test_quotes_that_a_shell_left_are_taken_away(script: str, quote: str) -> None:
    """As in a file of variables, or in arguments that a scheduler passes on."""
    config = parse("--rdzv-conf", f"{quote}lease=7,drift=0.2{quote}", script)
    assert (config.rendezvous.lease_s, config.rendezvous.drift_s) == (7.0, 0.2)


def test_settings_that_only_torchrun_needs_are_accepted(script: str) -> None:
    """Commands that work today go on to work, though some settings have nothing to set here."""
    conf = "store_type=tcp,close_timeout=30,heartbeat_timeout=5,timeout=900,rank=1,read_timeout=60"
    assert parse("--rdzv-conf", conf, script).rendezvous.lease_s == 5
    assert parse("--event-log-handler=null", "--monitor-interval=5", script).events is None
    assert parse("--event_log_handler=console", script).event_log_handler == "console"
    assert parse("--numa_binding", "core-complex", script).numa_binding == "core-complex"


def test_nodes_can_meet_in_a_file_as_with_torchrun(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The endpoint is its path, from here; a job of one node needs none, a static one no file."""
    monkeypatch.chdir(tmp_path)
    c10d = ("--rdzv-backend=c10d", "--nnodes=2", "--rdzv-conf", "store_type= FILE ,is_host=1")
    config = parse(*c10d, "--rdzv-endpoint=shared:1/job 7", script)
    assert config.registry_file == f"{tmp_path}/shared:1/job 7"
    assert config.rendezvous.quorum == "granted"
    one = parse("--rdzv-backend=c10d", "--rdzv-conf=store_type=file", script)
    assert (one.registry_file, one.endpoint.port, one.rendezvous.quorum) == (None, 0, "auto")
    alone = parse("--standalone", "--rdzv-endpoint=/f", "--rdzv-conf=store_type=file", script)
    assert (alone.registry_file, alone.endpoint.port) == (None, 0)
    static = parse("--nnodes=2", "--rdzv-conf=store_type=file", script)
    assert (static.registry_file, static.endpoint.port) == (None, 29500)


def test_signals_can_be_named_that_do_not_end_the_job(script: str) -> None:
    """SIGUSR1 and SIGUSR2, as Slurm sends them."""
    config = parse("--signals-to-handle=SIGTERM, sigusr1", script)
    assert config.signals == (signal.SIGTERM, signal.SIGUSR1)


def test_with_virtual_local_ranks_each_worker_needs_a_device(script: str) -> None:
    """Without CUDA_VISIBLE_DEVICES nobody knows before; with it, too few are refused."""
    options = ("--virtual-local-rank", "--nproc-per-node=2")
    assert parse(*options, script).virtual_local_rank
    assert parse(*options, script, environ={"CUDA_VISIBLE_DEVICES": "5, 6"}).virtual_local_rank
    with pytest.raises(UsageError, match="local rank 1 has no device, because CUDA_VISIBLE_DEV"):
        parse(*options, script, environ={"CUDA_VISIBLE_DEVICES": "5"})


def test_the_error_file_of_this_agent_is_what_its_environment_says(script: str) -> None:
    """An empty one is none."""
    assert parse(script, environ={"TORCHELASTIC_ERROR_FILE": "/e.json"}).error_file == "/e.json"
    assert parse(script, environ={"TORCHELASTIC_ERROR_FILE": ""}).error_file is None


def test_what_contradicts_itself_is_named_as_it_was_given(script: str) -> None:
    """A variable that is left over from another job is an option that nobody wrote."""
    with pytest.raises(UsageError, match=r"--standalone is .* and PET_NNODES=2 asks for up to 2"):
        parse("--standalone", script, environ={"PET_NNODES": "2"})


def test_a_variable_of_a_flag_is_a_number(script: str) -> None:
    """As with torchrun, any number but 0 sets it."""
    assert parse(script, environ={"PET_STANDALONE": "2"}).standalone
    assert not parse(script, environ={"PET_STANDALONE": "0"}).standalone


def test_a_module_needs_no_file(script: str) -> None:
    """-m names a module; --no-python a program."""
    assert parse("-m", "package.train").program.kind == "module"
    assert parse("--no-python", "/bin/true").program.kind == "binary"
    assert parse("--run-path", script).program.kind == "run_path"


# Values, or several options together; a wrong value of each option is in `test_bad_input.py`.
REFUSED = [
    (("--nnodes=many",), "not a number of nodes"),
    (("--nproc-per-node=2x",), "auto, cpu, gpu, xpu, or the name of a backend"),
    (("--max-restarts=-1",), "at least 0"),
    (("--rdzv-backend=c10d", "--rdzv-endpoint=host:port"), "not an endpoint"),
    (("--rdzv-backend=c10d", "--rdzv-endpoint=host:99999"), "ports end at 65535"),
    (("--nnodes=3", "--rdzv-endpoint=a,b,c"), "nodes meet at several endpoints with"),
    (
        ("--nnodes=2", "--rdzv-endpoint=job.rdzv", "--rdzv-conf=store_type=file"),
        "nodes meet at a file (--rdzv-conf store_type=file) with --rdzv-backend=c10d",
    ),
    (("--rdzv-conf=lease=soon",), "expected a number of seconds"),
    (("--rdzv-conf=is_host=perhaps",), "expected true or false"),
    (("--standalone", "--nnodes=2"), "and --nnodes=2 asks for up to 2: leave one of them out"),
    (("--module", "--no-python"), "contradict each other"),
    (("--signals-to-handle=SIGFOO",), "SIGFOO is not a signal"),
    (("--nnodes=2", "--master-port=99999"), "--master-port=99999: ports end at 65535"),
    (("--rdzv-conf=store_type=disk",), "store_type=disk: expected tcp (nodes meet at a port"),
    (("--rdzv-backend=c10d", "--nnodes=2", "--rdzv-conf=store_type=file"), "names no file"),
    (
        ("--rdzv-backend=c10d", "--rdzv-endpoint=n0:29400", "--rdzv-conf=store_type=file"),
        "the path of a file is expected, and this is a host and a port",
    ),
    (
        ("--rdzv-backend=c10d", "--rdzv-endpoint=/f", "--rdzv-conf=store_type=file,quorum=auto"),
        "quorum=auto has no effect with store_type=file: the file names the leader",
    ),
    (("--rdzv-backend=etcd-v3", "--rdzv-conf=quorum=majority"), "no effect with etcd-v3"),
    (("--rdzv-backend=etcd-v3", "--rdzv-conf=is_host=true"), "is_host is a setting of c10d"),
    (("--rdzv-conf=protocol=https",), "protocol is a setting of torch's etcd backends"),
    (("--rdzv-backend=etcd-v3", "--rdzv-conf=cacert=/c"), "backends; here it is etcd-v3"),
    (("--use-env", "--pass-local-rank"), "contradict each other"),
    (("--max-restart=1", "--max-restrats=2"), "there is no option --max-restrats"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_what_cannot_be_meant_is_refused_in_a_line(
    script: str, options: tuple[str, ...], message: str
) -> None:
    """One clear sentence, never a traceback or a page of usage."""
    with pytest.raises(UsageError) as caught:
        parse(*options, script)
    assert message in str(caught.value)
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
    with pytest.raises(UsageError, match="PET_NPROC_PER_NODE=0x"):
        parse(script, environ={"PET_NPROC_PER_NODE": "0x"})
    with pytest.raises(UsageError, match="PET_MODULE=yes"):
        parse(script, environ={"PET_MODULE": "yes"})
    with pytest.raises(UsageError, match="PET_TEE=9"):
        parse(script, environ={"PET_TEE": "9"})
    with pytest.raises(UsageError, match="PET_LOCAL_RANKS_FILTER=all"):
        parse(script, environ={"PET_LOCAL_RANKS_FILTER": "all"})
    for name, text in (
        ("NNODES", "4:2"),
        ("RDZV_CONF", "lease=soon"),
        ("SIGNALS_TO_HANDLE", "SIGKILL"),
        ("MASTER_PORT", "99999"),
    ):
        with pytest.raises(UsageError, match=f"^PET_{name}") as caught:
            parse(script, environ={"PET_MASTER_ADDR": "node0", f"PET_{name}": text})
        assert "--" not in str(caught.value).splitlines()[0]
    with pytest.raises(UsageError, match=r"^PET_RDZV_ENDPOINT='a b' is not an endpoint"):
        parse("--rdzv-backend=c10d", script, environ={"PET_RDZV_ENDPOINT": "a b"})


def test_help_names_every_option() -> None:
    """Each option has a help text of its own."""
    text = build_parser().format_help()
    for flag in ("--nnodes", "--rdzv-endpoint", "--shutdown-timeout", "--worker-start"):
        assert flag in text
