"""A worker is started warm only when nothing could tell."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_elastic.boot.host import Host
from pytest_elastic.boot.interpreter import OwnModules
from pytest_elastic.workers.spec import WorkerSpec
from pytest_elastic.workers.warm.warmth import look_around, read_by_libraries, why_cold

NOWHERE: Mapping[str, frozenset[str]] = {}


def host(environ: Mapping[str, str] | None = None, **fields: Any) -> Host:  # noqa: ANN401
    """Return a host that has torch and random imported."""
    values: dict[str, Any] = {
        "environ": environ or {},
        "clean_path": ("/lib",),
        "added_path": (),
        "modules": {"torch": "/lib/torch/__init__.py", "random": "/std/random.py"},
        "preload": ("torch",),
        "ignored_signals": (),
        "cannot_become": "",
        "own": OwnModules(names=(), newest="torch"),
    }
    return Host(**{**values, **fields})


def worker(
    arguments: Sequence[str] = ("train.py",),
    environ: Mapping[str, str] | None = None,
    **fields: Any,  # noqa: ANN401
) -> WorkerSpec:
    """Return a worker that runs `python` with these arguments."""
    values: dict[str, Any] = {
        "local_rank": 0,
        "rank": 0,
        "command": ["python", *arguments],
        "environ": environ or {},
        "cwd": "/job",
    }
    return WorkerSpec(**{**values, **fields})


def test_a_worker_bound_to_processors_is_fresh_unless_its_threads_are_counted() -> None:
    """OpenMP takes as many threads as it found processors when it was loaded."""
    reason = why_cold(worker(cpus=[0, 1]), host(), NOWHERE)
    assert reason.startswith("OpenMP counts the processor")
    environ = {"OMP_NUM_THREADS": "2"}
    assert not why_cold(worker(cpus=[0, 1], environ=environ), host(), NOWHERE)


def test_a_plain_script_is_warm() -> None:
    """The usual case, with what differs from worker to worker in its environment."""
    environ = {
        "RANK": "3",
        "TORCHELASTIC_RUN_ID": "x",
        "OMP_NUM_THREADS": "4",
        "NCCL_DEBUG": "INFO",
    }
    assert why_cold(worker(environ=environ), host(), NOWHERE) == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ("-u", "train.py", "-X", "for the script"),
        ("-u", "-B", "-m", "package.train"),
        ("-c", "print(1)"),
    ],
)
def test_options_that_make_no_difference_are_warm(arguments: Sequence[str]) -> None:
    """Buffering and bytecode are set anew in the child; the rest belongs to the script."""
    assert not why_cold(worker(arguments), host(), NOWHERE)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("-X", "dev", "train.py"), "the interpreter option -X needs a fresh interpreter"),
        (("-O", "train.py"), "the interpreter option -O needs a fresh interpreter"),
        (("-I", "train.py"), "the interpreter option -I needs a fresh interpreter"),
        (("-um", "train"), "the interpreter option -um needs a fresh interpreter"),
        (("-",), "the program comes from standard input"),
        ((), "the program comes from standard input"),
        (("-u",), "the program comes from standard input"),
        (("-m",), "-m names nothing"),
    ],
)
def test_other_options_need_a_fresh_interpreter(arguments: Sequence[str], reason: str) -> None:
    """What the interpreter looks at while it starts cannot be caught up with."""
    assert why_cold(worker(arguments), host(), NOWHERE) == reason


@pytest.mark.parametrize(
    "name",
    [
        *("PYTHONHASHSEED", "PYTHONIOENCODING", "LC_ALL", "LANG", "LD_PRELOAD", "MALLOC_ARENA_MAX"),
        *("MKL_NUM_THREADS", "KMP_AFFINITY", "OMP_PROC_BIND", "TORCH_LOGS", "PYTORCH_JIT"),
        *("TORCH_DISTRIBUTED_DEBUG", "TORCHINDUCTOR_CACHE_DIR"),
    ],
)
def test_a_variable_read_at_start_must_be_as_the_host_found_it(name: str) -> None:
    """Set in one and not in the other, either way, means a fresh start; equal means warm."""
    reason = f"{name} is read at start and differs: 'x' for the worker, None for the warm"
    why = why_cold(worker(environ={name: "x"}), host(), NOWHERE)
    assert why.startswith(reason)
    assert why_cold(worker(), host({name: "x"}), NOWHERE)
    assert not why_cold(worker(environ={name: "x"}), host({name: "x"}), NOWHERE)


def test_a_list_of_thread_numbers_needs_a_fresh_interpreter() -> None:
    """OMP_NUM_THREADS may be one number per nesting level."""
    assert why_cold(worker(environ={"OMP_NUM_THREADS": "4,2"}), host(), NOWHERE)


def test_a_file_that_would_hide_a_loaded_module_needs_a_fresh_interpreter() -> None:
    """`random.py` beside the script would have been imported by torch, too."""
    reach = {"/job": frozenset({"train", "random"})}
    assert (
        why_cold(worker(), host(), reach)
        == "random in /job would hide a module that is already loaded"
    )


def test_a_folder_that_the_loaded_modules_come_from_hides_nothing() -> None:
    """With torch on PYTHONPATH, host and worker find the same one."""
    reach = {"/job": frozenset(), "/lib": frozenset({"torch", "numpy"})}
    assert not why_cold(worker(), host(), reach)


def test_a_module_from_a_folder_the_worker_does_not_have_needs_a_fresh_interpreter() -> None:
    """What the host found there must be on the worker's PYTHONPATH."""
    warm = host(added_path=("/lib",))
    assert (
        why_cold(worker(), warm, NOWHERE)
        == "torch is loaded from /lib, which is not on the worker's path"
    )
    assert not why_cold(worker(environ={"PYTHONPATH": "/lib"}), warm, NOWHERE)


def test_other_programs_exec() -> None:
    """A binary, or another Python."""
    assert (
        why_cold(worker(is_python=False), host(), NOWHERE)
        == "python is not the launcher's own Python"
    )


def test_looking_around_finds_what_an_import_would(tmp_path: Path) -> None:
    """Modules and packages of the script's real folder and of PYTHONPATH, in their order."""
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "train.py").write_text("")
    (tmp_path / "real" / "fast.cpython-311-x86_64-linux-gnu.so").write_text("")
    (tmp_path / "real" / "abi.abi3.so").write_text("")
    (tmp_path / "real" / "package").mkdir()
    (tmp_path / "real" / "package" / "__init__.py").write_text("")
    (tmp_path / "real" / "only_a_folder").mkdir()
    (tmp_path / "train.py").symlink_to("real/train.py")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "mine.py").write_text("")
    spec = worker(["-u", "train.py"], {"PYTHONPATH": "lib:/missing"}, cwd=str(tmp_path))
    folders = look_around(spec, {})
    assert list(folders) == [
        str(tmp_path / "real"),
        str(tmp_path / "lib"),
        "/missing",
    ]
    names, *others = folders.values()
    assert {"train", "abi", "package"} <= names
    assert "only_a_folder" not in names
    assert others == [frozenset({"mine"}), frozenset()]


def test_looking_around_finds_what_is_in_an_archive(tmp_path: Path) -> None:
    """An application in one file, and archives on PYTHONPATH; without what is not at the top."""
    for name in ("app.pyz", "lib.zip"):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            for file in ("queue.py", "package/__init__.pyc", "package/inner.py", "data/x.txt"):
                archive.writestr(file, "")
    spec = worker(["app.pyz"], {"PYTHONPATH": "lib.zip"}, cwd=str(tmp_path))
    names = frozenset({"queue", "package"})
    assert look_around(spec, {}) == {str(tmp_path / each): names for each in ("app.pyz", "lib.zip")}


def test_a_module_or_a_text_starts_in_the_working_folder(tmp_path: Path) -> None:
    """`-m` and `-c` put the working folder first; a folder as program puts itself."""
    (tmp_path / "app").mkdir()
    for arguments, first in (
        (["-m", "x"], tmp_path),
        (["-c", "x"], tmp_path),
        (["app"], tmp_path / "app"),
        (["app/x.py"], tmp_path / "app"),
    ):
        assert next(iter(look_around(worker(arguments, cwd=str(tmp_path)), {}))) == str(first)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PYTHONPROFILEIMPORTTIME", "1"),
        ("PYTHONVERBOSE", "1"),
        ("PYTHONTRACEMALLOC", "5"),
        ("PYTHONDEVMODE", "1"),
        ("PYTHONINSPECT", "1"),
        ("PYTHONWARNINGS", "ignore::UserWarning,error::DeprecationWarning"),
        ("COVERAGE_PROCESS_START", ".coveragerc"),
        ("COVERAGE_PROCESS_CONFIG", "{}"),
    ],
)
def test_what_shows_how_an_interpreter_starts_wants_a_fresh_one(name: str, value: str) -> None:
    """The warm interpreter was started with the same, but its imports are over."""
    environ = {name: value}
    reason = why_cold(worker(environ=environ), host(environ), NOWHERE)
    assert name in reason


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PYTHONWARNINGS", "ignore,ignore::DeprecationWarning"),
        ("PYTHONBREAKPOINT", "0"),
        ("PYTHONVERBOSE", ""),
    ],
)
def test_what_does_not_show_at_the_start_is_no_reason(name: str, value: str) -> None:
    """Ignored warnings are shown by nobody, and an empty variable means nothing to Python."""
    environ = {name: value}
    assert not why_cold(worker(environ=environ), host(environ), NOWHERE)


def test_variables_that_torchs_libraries_read_are_known_by_family() -> None:
    """Listed ones and those of a family that is read at start, but not what is read later."""
    reads = read_by_libraries(host())
    assert list(reads) == ["torch"]
    for name, is_read in (
        *(("OMP_NUM_THREADS", True), ("TORCH_LOGS", True), ("KINETO_USE_DAEMON", True)),
        *(("TORCH_HOME", False), ("NCCL_DEBUG", False), ("CUDA_VISIBLE_DEVICES", False)),
    ):
        assert (name in reads["torch"]) == is_read, name
    modules = {"torch": "", "triton": ""}
    assert "OMP_NUM_THREADS" not in read_by_libraries(host(modules=modules))["triton"]
    assert "TRITON_INTERPRET" in read_by_libraries(host(modules=modules))["triton"]


@pytest.mark.parametrize("module", ["cProfile", "trace", "coverage", "memray.run"])
def test_what_observes_a_program_sees_it_import_what_it_imports(module: str) -> None:
    """A profile without torch's import is another one."""
    reason = why_cold(worker(["-m", module, "train.py"]), host(), NOWHERE)
    assert reason.startswith(f"{module} observes")


@pytest.mark.parametrize(
    "name", ["TRITON_INTERPRET", "KINETO_USE_DAEMON", "DNNL_DEFAULT_FPMATH_MODE", "CUSTOM_READ"]
)
def test_a_variable_that_what_is_preloaded_has_read_must_be_the_same(name: str) -> None:
    """By getenv, as listed, or from Python, as recorded."""
    warm = host(read=frozenset({"CUSTOM_READ"}))
    reason = why_cold(worker(environ={name: "1"}), warm, NOWHERE)
    assert reason.partition(":")[0] == f"{name} is read by what is preloaded and differs"


@pytest.mark.parametrize(
    ("fields", "why", "reader"),
    [
        ({"torch": "2.9.0+cpu"}, "what torch 2.9.0+cpu reads has not been traced", "torch"),
        (
            {"torch": "2.13.0+cpu", "unlisted": "mine loads x.so", "unlisted_in": "mine"},
            *("mine loads x.so", "mine"),
        ),
    ],
)
def test_where_it_is_not_known_what_was_read_no_variable_may_differ(
    fields: Mapping[str, Any], why: str, reader: str
) -> None:
    """But for those that the launcher gives to each worker."""
    unknown = host(None, **fields)
    reason = why_cold(worker(environ={"MINE": "1"}), unknown, NOWHERE)
    assert reason.partition(":")[0] == f"MINE differs, and {why}"
    reads = read_by_libraries(unknown)
    assert [name for name, read in reads.items() if "MINE" in read] == [reader]
    assert "RANK" not in reads[reader]
    given = {"RANK": "1", "MASTER_PORT": "9", "TORCHELASTIC_RUN_ID": "x", "ELASTIC_PROBE": "y"}
    assert not why_cold(worker(environ=given), unknown, NOWHERE)
    assert not why_cold(worker(environ={"MINE": "1"}), host(torch="2.13.0+cpu"), NOWHERE)
