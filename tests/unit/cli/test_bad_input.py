"""Every option of the table with a value that cannot be meant: named and explained in a line."""

from __future__ import annotations

import string
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_elastic.cli.main import main
from pytest_elastic.cli.option_table import OPTIONS, Option
from pytest_elastic.cli.options import parse_run_command
from pytest_elastic.config import LaunchConfig
from pytest_elastic.errors import UsageError

# dest: a wrong value, what is said of it, and what else it takes for the option to be read at all.
BAD: dict[str, tuple[str, str, Sequence[str]]] = {
    "nnodes": ("4:2", "1 <= MIN <= MAX is expected", ()),
    "nproc_per_node": ("0", "expected a number of workers from 1 to 10000", ()),
    "rdzv_backend": ("zeus", "known are c10d, static, pytest-elastic, etcd-v3, etcd, etcd-v2", ()),
    "rdzv_endpoint": ("node0:", "expected HOST or HOST:PORT", ("--rdzv-backend=c10d",)),
    "rdzv_id": ("", "expected any text that all its nodes give", ()),
    "rdzv_conf": ("lease:5", "expected key=value", ("--rdzv-backend=c10d",)),
    "max_restarts": ("3.5", "expected a whole number of at least 0", ()),
    "monitor_interval": ("-1", "expected a number of seconds", ()),
    "start_method": ("thread", "expected one of spawn, fork, forkserver", ()),
    "role": ("a\nb", "expected a name in one line", ()),
    "redirects": ("9", "expected 0 (none), 1 (stdout)", ()),
    "tee": ("0:1,", "expected 0 (none), 1 (stdout)", ()),
    "local_ranks_filter": ("0;1", "expected local ranks, as in 0,1", ()),
    "node_rank": ("one", "expected a whole number of at least 0", ()),
    "master_addr": ("http://node0", "is no name and no address", ("--nnodes=2",)),
    "master_port": ("ssh", "expected a whole number", ("--nnodes=2",)),
    "logs_specs": ("mine", "there is no entry point of that name", ()),
    "numa_binding": ("near", "expected one of node, socket, exclusive, core-complex", ()),
    "signals_to_handle": ("SIGKILL", "expected names such as SIGTERM", ()),
    "shutdown_timeout": ("-1", "expected a number of seconds from 0", ()),
    "failure_grace": ("soon", "expected a number of seconds from 0", ()),
    "node_name": ("a\tb", "expected a name in one line", ()),
    "worker_start": ("warm", "expected one of auto, exec", ()),
}
# What only shows when it is used, and is tested there with a real launcher.
SHOWS_LATER = {
    "log_dir": "its file system may hang: it is asked when signals are heard",
    "local_addr": "whether an address is this machine's is asked when the node joins",
    "preload": "whether a module can be imported is known when it is",
    "rdzv_token_file": "what is in the file is looked at when the node begins",
}
NEVER_WRONG = {
    "event_log_handler": "a name that is not known has no effect, and a warning says so",
    "log_line_prefix_template": "any text may stand before a line",
    "duplicate_stdout_filters": "any text may be looked for",
    "duplicate_stderr_filters": "any text may be looked for",
}

by_dest = pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.dest)


@pytest.fixture
def script(tmp_path: Path) -> str:
    """Return a script that is there."""
    path = tmp_path / "train.py"
    path.touch()
    return str(path)


def parse(argv: Sequence[str], environ: dict[str, str] | None = None) -> LaunchConfig:
    """Parse, on a machine with two processors."""
    return parse_run_command(argv, environ or {}, count_devices=lambda _: 2)


def error_of(argv: Sequence[str], environ: dict[str, str] | None = None) -> str:
    """Return what is said of a command that cannot be meant: at most two lines, all printable."""
    with pytest.raises(UsageError) as caught:
        parse(argv, environ)
    lines = str(caught.value).splitlines()
    assert 1 <= len(lines) <= 2
    assert all(line.isprintable() for line in lines)
    return str(caught.value)


def test_every_option_has_a_wrong_value_here() -> None:
    """A new option brings one, or the reason why nothing is wrong for it."""
    flags = {option.dest for option in OPTIONS if option.is_flag}
    named = {*BAD, *SHOWS_LATER, *NEVER_WRONG}
    assert named | flags == {option.dest for option in OPTIONS}
    assert not named & flags, "a flag is wrong in its variable only"


@by_dest
def test_a_wrong_value_on_the_command_line_is_named_and_explained(
    option: Option, script: str
) -> None:
    """What, where, what was expected; a flag takes no value at all."""
    flag = option.flags[-1]
    if option.is_flag:
        assert f"argument {'/'.join(option.flags)}" in error_of([f"{flag}=1", script])
    elif option.dest in BAD:
        value, expected, others = BAD[option.dest]
        said = error_of([*others, f"{flag}={value}", script])
        assert flag in said
        if option.choices is None:
            assert expected in said
        else:
            assert all(choice in said for choice in option.choices)


@by_dest
def test_a_wrong_value_of_a_variable_is_told_by_the_variables_name(
    option: Option, script: str
) -> None:
    """Nobody finds an option that they have not written."""
    if option.is_flag:
        said = error_of([script], {option.variable: "perhaps"})
        assert said == f"{option.variable}=perhaps: expected 0 or 1"
    elif option.dest in BAD:
        value, expected, others = BAD[option.dest]
        said = error_of([*others, script], {option.variable: value})
        assert said.startswith(f"{option.variable}=") or f" {option.variable}=" in said
        assert expected in said
        assert option.flags[-1] not in said.splitlines()[0]


ANY_TEXT = st.text(max_size=50) | st.text(alphabet=string.digits + ":,.-=", max_size=30)
SURROGATES = st.text(alphabet=st.characters(categories=("Cs", "Cc", "Nd")), max_size=8)


@by_dest
@settings(max_examples=15)
@given(value=ANY_TEXT | SURROGATES | st.just("--"))
def test_any_text_for_an_option_is_taken_or_refused_in_words(option: Option, value: str) -> None:
    """Nothing that can be typed ends in a traceback, on the command line or in a variable."""
    argv = ["--nnodes=2", "--rdzv-backend=c10d", "--no-python", "true"]
    for words, environ in (
        ([f"{option.flags[-1]}={value}", *argv], {}),
        (argv[2:], {option.variable: value}),
    ):
        try:
            config = parse(words, environ)
        except UsageError as error:
            lines = str(error).splitlines()
            assert 1 <= len(lines) <= 2
            assert all(line.isprintable() for line in lines)
        else:
            assert config.run_id.isprintable()


@pytest.mark.parametrize(
    "dest",
    [
        *("nnodes", "nproc_per_node", "max_restarts", "node_rank", "master_port"),
        *("redirects", "tee", "local_ranks_filter"),
    ],
)
def test_a_page_of_digits_is_no_number_and_is_not_repeated(dest: str, script: str) -> None:
    """Python itself refuses to read that many, by an error of its own."""
    others = BAD[dest][2]
    said = error_of([*others, f"--{dest}={'9' * 5000}", script])
    assert len(said) < 1500


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (".", "is a folder without a __main__.py"),
        ("nowhere.py", "there is no script 'nowhere.py' (looked from "),
        ("two\nlines.py", r"there is no script 'two\nlines.py'"),
    ],
)
def test_what_is_no_script_is_refused_before_anything_starts(
    path: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what to try instead."""
    monkeypatch.chdir(tmp_path)
    for words in ([path], ["--run-path", path]):
        said = error_of(words)
        assert expected in said
        assert "-m for a " in said


def test_a_folder_with_a_main_file_is_a_script(tmp_path: Path) -> None:
    """As for Python itself."""
    (tmp_path / "__main__.py").touch()
    assert parse([str(tmp_path)]).program.kind == "script"


def test_no_other_node_could_find_a_port_that_is_any_free_one(script: str) -> None:
    """Port 0 is for a job that can begin with this node alone."""
    c10d = ("--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0")
    assert "which no other node could find" in error_of([*c10d, "--nnodes=2", script])
    assert parse([*c10d, "--nnodes=1:2", script]).endpoint.port == 0


@pytest.mark.parametrize("command", [["check"], ["schema", "--conftest"]])
def test_no_command_prints_what_moves_a_cursor(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Whichever error quotes it: a file's name may come from anywhere."""
    assert main([*command, "\x1b[2J.py"]) == 2
    printed = capsys.readouterr().err
    assert "\\x1b[2J.py" in printed
    assert printed.replace("\n", "").isprintable()
