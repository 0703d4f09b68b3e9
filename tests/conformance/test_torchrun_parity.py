"""What the installed torchrun takes and gives, we take and give, or `docs` say why not."""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path

import pytest

from pytest_elastic.agent import environ
from pytest_elastic.cli.option_table import OPTIONS, Option
from pytest_elastic.cli.options import build_parser, parse_run_command
from pytest_elastic.errors import UsageError
from tests import launch_server
from tests.conformance.launchers import OURS, TORCHRUN

DOCUMENT = Path(__file__).parents[2] / "docs" / "torchrun-parity.md"
VERDICTS = ("same", "better", "different", "ours")
LIMIT_S = 240.0

# The page is about the options of this release and later ones; an older torchrun lacks some.
PAGE_IS_OF = (2, 13)
TORCH = tuple(map(int, version("torch").split(".")[:2]))

# A value for every option that takes one, unlike its default.
SAMPLES = {
    "nnodes": "2",
    "nproc_per_node": "2",
    "rdzv_backend": "c10d",
    "rdzv_endpoint": "node0:1234",
    "rdzv_id": "run7",
    "rdzv_conf": "join_timeout=7",
    "max_restarts": "7",
    "monitor_interval": "7",
    "start_method": "fork",
    "event_log_handler": "console",
    "role": "trainer",
    "log_dir": "/tmp",
    "redirects": "0:1,1:3",
    "tee": "3",
    "local_ranks_filter": "0,1",
    "duplicate_stdout_filters": "a,b",
    "duplicate_stderr_filters": "a,b",
    "node_rank": "7",
    "master_addr": "node0",
    "master_port": "1234",
    "local_addr": "10.0.0.1",
    "logs_specs": "mine",
    "numa_binding": "socket",
    "signals_to_handle": "SIGTERM,SIGUSR1",
    "shutdown_timeout": "7",
    "log_line_prefix_template": "${rank}: ",
}


# The document


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a table of the document."""

    name: str
    verdict: str
    because: str


@cache
def table(name: str) -> Mapping[str, Line]:
    """Return the lines of one of the document's tables, by the name in their first column."""
    text = DOCUMENT.read_text(encoding="utf-8")
    body = text.partition(f"<!-- {name}: begin -->")[2].partition(f"<!-- {name}: end -->")[0]
    lines = {}
    for row in body.strip().splitlines()[2:]:
        first, verdict, because = (cell.strip() for cell in row.strip().strip("|").split("|"))
        assert first not in lines, f"{first} has two lines"
        lines[first.strip("`")] = Line(name=first.strip("`"), verdict=verdict, because=because)
    return lines


@pytest.mark.parametrize("name", ["options", "variables"])
def test_the_tables_are_complete_sentences(name: str) -> None:
    """Each line has a known verdict, and whatever is not the same has a reason."""
    assert table(name)
    for line in table(name).values():
        assert line.verdict in VERDICTS, line
        assert line.because or line.verdict == "same", f"{line.name} has no reason"


# Options


def torchs_parser(monkeypatch: pytest.MonkeyPatch) -> argparse.ArgumentParser:
    """Return the parser of the installed torchrun, with no variable set that it would read."""
    for variable in [name for name in os.environ if name.startswith("PET_")]:
        monkeypatch.delenv(variable)
    run = importlib.import_module("torch.distributed.run")
    parser: argparse.ArgumentParser = run.get_args_parser()
    return parser


def torchs_options(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield the options that are torchrun's own."""
    for action in parser._actions:
        if action.option_strings and action.dest != "help":
            yield action


def differences(theirs: argparse.Action, ours: Option | None) -> list[str]:
    """Say what of an option is missing or is not the same here."""
    if ours is None:
        return ["there is no such option"]
    (action,) = [action for action in build_parser()._actions if action.dest == ours.dest]
    found = []
    missing = set(theirs.option_strings) - set(action.option_strings)
    if missing:
        found.append(f"spelling {sorted(missing)}")
    if plain(theirs.default) != (ours.default or ""):
        found.append(f"default {theirs.default!r}, here {ours.default!r}")
    if tuple(theirs.choices or ()) != (ours.choices or ()):
        found.append(f"choices {theirs.choices}, here {ours.choices}")
    if (theirs.nargs == 0) != ours.is_flag:
        found.append("one takes a value and the other does not")
    return found


def plain(default: object) -> str:
    """Return a default as it would be written on a command line."""
    return "" if default in (None, False, []) else str(default)


def named(dest: str) -> Option | None:
    """Return our option of that name."""
    return next((option for option in OPTIONS if option.dest == dest), None)


def unexplained(parser: argparse.ArgumentParser, lines: Mapping[str, Line]) -> list[str]:
    """Return what of torchrun's options is missing or differs here without a reason in `lines`.

    An option of ours that a newer torchrun has, too, is to be the same.
    """
    found = []
    for action in torchs_options(parser):
        name = "--" + action.dest.replace("_", "-")
        line = lines.get(name)
        if line is None:
            found.append(f"{name}: not in the table as an option of torchrun's")
        elif line.verdict in ("same", "ours"):
            found += [f"{name}: {what}" for what in differences(action, named(action.dest))]
        elif differences(action, named(action.dest))[:1] == ["there is no such option"]:
            found.append(f"{name}: missing; an option may differ, but is at least known")
    return found


def test_every_option_of_torchrun_is_taken_or_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flags, spellings, defaults and choices, from the parser of the installed torch."""
    assert unexplained(torchs_parser(monkeypatch), table("options")) == []


@pytest.mark.skipif(
    TORCH != PAGE_IS_OF, reason="the page is about torchrun 2.13: others have fewer options or more"
)
def test_the_table_names_no_option_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torchrun dropped goes from the table, and so does what we dropped."""
    theirs = {action.dest for action in torchs_options(torchs_parser(monkeypatch))}
    for line in table("options").values():
        dest = line.name.lstrip("-").replace("-", "_")
        assert (dest in theirs) != (line.verdict == "ours"), line.name
        assert named(dest) is not None, line.name
    assert {option.dest for option in OPTIONS if option.is_ours} == {
        option.dest for option in OPTIONS if option.dest not in theirs
    }


@pytest.mark.parametrize(
    ("planted", "message"),
    [
        ({"flags": ("--quantum",)}, "--quantum: not in the table"),
        ({"flags": ("--nnodes", "--num-nodes")}, "spelling ['--num-nodes']"),
        ({"flags": ("--nnodes",), "default": "2:2"}, "default '2:2', here '1:1'"),
        ({"flags": ("--nnodes",), "choices": ["1", "2"]}, "choices ['1', '2'], here None"),
        ({"flags": ("--nnodes",), "action": "store_true"}, "takes a value and the other"),
        ({"flags": ("--log-dir",), "dest": "quantum"}, "--quantum: not in the table"),
    ],
)
def test_what_a_new_torch_adds_or_changes_is_found(
    planted: dict[str, object], message: str
) -> None:
    """A parser with one strange option, and the table as it is."""
    parser = argparse.ArgumentParser()
    flags = planted.pop("flags")
    assert isinstance(flags, tuple)
    if "action" not in planted:
        planted.setdefault("default", "1:1")
    parser.add_argument(*flags, **planted)  # type: ignore[arg-type]  # as the planted fault wants
    assert any(message in what for what in unexplained(parser, table("options")))


def test_an_option_that_is_explained_must_exist_all_the_same() -> None:
    """A line in the table is no excuse for an unrecognized argument."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quantum")
    lines = {"--quantum": Line(name="--quantum", verdict="different", because="not yet")}
    assert unexplained(parser, lines) == [
        "--quantum: missing; an option may differ, but is at least known"
    ]


def test_every_spelling_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dashes, underscores and letters; with `=` and without; and cut short as far as torchrun."""
    parser = torchs_parser(monkeypatch)
    ambiguous = []
    for action in torchs_options(parser):
        values = [] if action.nargs == 0 else [SAMPLES[action.dest]]
        for spelling in action.option_strings:
            forms = [[spelling, *values]]
            forms += [[f"{spelling}={values[0]}"]] if values and spelling[:2] == "--" else []
            forms += [[f"{spelling}{values[0]}"]] if values and spelling[:2] != "--" else []
            for form in forms:
                read = getattr(build_parser().parse_args([*form, "train.py"]), action.dest)
                assert read == (values[0] if values else True), form
            for length in range(3, len(spelling)):
                form = [spelling[:length], *values]
                if reads_as(parser, form, action.dest) and not reads_as(
                    build_parser(), form, action.dest
                ):
                    ambiguous.append(spelling[:length])
    known = {"--node-", "--node_", "--log-", "--log_"}
    assert set(ambiguous) <= known, "the document says so"


@pytest.mark.parametrize(
    "words",
    [
        ["train.py", "--lr", "3"],
        ["train.py", "--", "--lr", "3"],
        ["train.py", "--", "--", "x"],
        ["train.py", "x", "--", "y"],
        ["-m", "train", "--", "--lr", "3"],
        ["--nproc-per-node=2", "train.py", "--", "x"],
        ["--", "train.py", "--lr", "3"],
        ["--", "train.py", "--", "x"],
    ],
)
def test_a_program_gets_the_arguments_that_torchrun_hands_it(
    monkeypatch: pytest.MonkeyPatch, words: Sequence[str]
) -> None:
    """Without a first `--` behind it, as argparse reads it."""
    theirs = torchs_parser(monkeypatch).parse_args(words)
    ours = build_parser().read(words, rest="training_script_args")
    assert ours.training_script == theirs.training_script
    assert ours.training_script_args == theirs.training_script_args


def reads_as(parser: argparse.ArgumentParser, form: Sequence[str], dest: str) -> bool:
    """Tell whether a parser takes an option, and takes it for the one of that name."""
    before = getattr(parser.parse_args(["train.py"]), dest)
    try:
        return bool(getattr(parser.parse_args([*form, "train.py"]), dest) != before)
    except (SystemExit, UsageError):
        return False


def test_every_variable_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What torchrun takes from `PET_...` counts here, with the variable as its origin."""
    script = tmp_path / "train.py"
    script.touch()
    checked = 0
    for action in torchs_options(torchs_parser(monkeypatch)):
        if type(action).__name__ not in ("env", "check_env"):
            continue
        variable = f"PET_{action.dest.upper()}"
        text = "1" if action.nargs == 0 else SAMPLES[action.dest]
        config = parse_run_command([str(script)], {variable: text}, count_devices=lambda _: 1)
        assert config.origins[action.dest] == f"environment {variable}"
        checked += 1
    assert checked > 20


# Variables of a worker


DUMP = (
    "import json, os, sys\n"
    "folder, *args = sys.argv[1:]\n"
    "seen = {'environ': dict(os.environ), 'args': args}\n"
    "json.dump(seen, open(os.path.join(folder, os.environ['RANK'] + '.json'), 'w'))\n"
)
C10D = ("--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--rdzv-id=run7")
# Options, variables, arguments of the script.
JOBS: Mapping[str, tuple[Sequence[str], Mapping[str, str], Sequence[str]]] = {
    "a role, restarts, no threads said": (
        (*C10D, "--role=trainer", "--max-restarts=3", "--signals-to-handle=SIGTERM,SIGUSR1"),
        {},
        ("$$x", "${local_rank}", "$${local_rank}", "$HOME", "${other}"),
    ),
    "virtual local ranks among given devices, threads said, no files": (
        (*C10D, "--virtual-local-rank", "--log-dir=/dev/null"),
        {"CUDA_VISIBLE_DEVICES": "5, 7", "OMP_NUM_THREADS": "3"},
        (),
    ),
    "virtual local ranks, a bare command": (
        ("--virtual-local-rank",),
        {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"},
        (),
    ),
}
LAUNCHERS = {"ours": OURS, "theirs": TORCHRUN}


def options_of(job: str, parser: argparse.ArgumentParser) -> list[str]:
    """Return the options of a job, without those that an older torchrun has not yet."""
    known = {spelling for action in parser._actions for spelling in action.option_strings}
    options = JOBS[job][0]
    return [each for each in options if TORCH >= PAGE_IS_OF or each.partition("=")[0] in known]


def run_job(
    folder: Path, launcher: str, job: str, options: Sequence[str]
) -> tuple[Mapping[str, str], Mapping[int, Mapping[str, object]]]:
    """Run one of the jobs; return the environment it was started with, and what workers saw."""
    _, variables, args = JOBS[job]
    folder.mkdir()
    script = folder / "dump.py"
    script.write_text(DUMP)
    # Folders of logs shall be found and go with the test.
    before = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS" and k[:4] != "PET_"}
    before |= {**variables, "TMPDIR": str(folder)}
    words = [*LAUNCHERS[launcher], *options, "--nproc-per-node=2", str(script), str(folder), *args]
    process = launch_server.start(words, cwd=folder, environ=before)
    _, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, said.decode()
    return before, {rank: json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)}


@pytest.mark.slow
@pytest.mark.parametrize("job", JOBS)
def test_workers_see_what_they_see_under_torchrun(
    tmp_path: Path, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every variable that either launcher adds or changes has a line; the same ones are equal."""
    options = options_of(job, torchs_parser(monkeypatch))
    before, theirs = run_job(tmp_path / "theirs", "theirs", job, options)
    _, ours = run_job(tmp_path / "ours", "ours", job, options)
    lines = table("variables")
    for rank, expected in theirs.items():
        seen, wanted = ours[rank]["environ"], expected["environ"]
        assert isinstance(seen, dict)
        assert isinstance(wanted, dict)
        assert ours[rank]["args"] == expected["args"]
        for name in sorted({*seen, *wanted}):
            if name == "TMPDIR" or before.get(name) == seen.get(name) == wanted.get(name):
                continue
            if TORCH < PAGE_IS_OF and name not in wanted:
                continue  # only a later torchrun sets it
            assert name in lines, f"{name} has no line: {seen.get(name)!r}, {wanted.get(name)!r}"
            verdict = lines[name].verdict
            is_set_by = (verdict != "different", verdict != "ours")
            assert (name in seen, name in wanted) == is_set_by, name
            if verdict == "same":
                assert comparable(seen[name]) == comparable(wanted[name]), name


def comparable(value: str) -> str:
    """Leave out of a path of a log folder what is random or another test's."""
    return re.sub(r"^/.*/torchelastic_\w+/[^/]+/", "", value)


def test_every_line_is_about_a_variable_that_workers_get() -> None:
    """A variable that is no longer set loses its line, or is one that only torchrun sets."""
    source = inspect.getsource(environ)
    lines = table("variables")
    not_set = [name for name in lines if f'"{name}"' not in source]
    assert not_set == [name for name in lines if lines[name].verdict == "different"]
