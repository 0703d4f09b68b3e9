"""A warm worker cannot be told from `python script.py`, or is not started warm."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from pytest_elastic.workers.messages import GroupGone, StartGroup, WorkerEnded, WorkersRunning
from pytest_elastic.workers.spec import WorkerSpec
from tests.integration.behaviours import BEHAVIOURS, Behaviour
from tests.integration.small_agent import AgentProcess

LIMIT_S = 240.0


@pytest.fixture(scope="module")
def warm_agent() -> Iterator[AgentProcess]:
    """An agent whose keeper has torch imported; for all tests of this file."""
    with AgentProcess() as agent:
        yield agent


def run_worker(
    agent: AgentProcess,
    command: list[str],
    folder: Path,
    environ: Mapping[str, str],
    *,
    expect_start: str = "warm",
    workers: int = 1,
) -> list[tuple[str, str, int]]:
    """Run workers to their ends; return what each printed, and its exit code."""
    specs = [
        WorkerSpec(
            local_rank=local_rank,
            rank=local_rank,
            command=[sys.executable, *command],
            environ=dict(environ),
            cwd=str(folder),
            stdout=str(folder.parent / f"stdout.{local_rank}"),
            stderr=str(folder.parent / f"stderr.{local_rank}"),
        )
        for local_rank in range(workers)
    ]
    agent.send(StartGroup(round=1, workers=specs))
    agent.wait_for(GroupGone, within_s=LIMIT_S)
    running = agent.wait_for(WorkersRunning)
    assert running.start == expect_start, running.start_reason
    ends = [agent.wait_for(WorkerEnded) for _ in specs]
    codes = {end.local_rank: end.exit_code for end in ends}
    return [
        (Path(spec.stdout or "").read_text(), Path(spec.stderr or "").read_text(), codes[rank])
        for rank, spec in enumerate(specs)
    ]


def without_extensions(run: tuple[str, str, int]) -> tuple[str, str, int]:
    """Leave out the list of loaded extension modules that faulthandler prints at the end."""
    out, err, code = run
    lines = err.splitlines(keepends=True)
    said = [line for line in lines if not line.startswith(("Extension modules", "Current thread"))]
    return out, "".join(said).rstrip("\n"), code


def prepare(behaviour: Behaviour, folder: Path) -> dict[str, str]:
    """Write the files of a behaviour; return its environment."""
    for name, text in behaviour.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return {**os.environ, **behaviour.environ}


@pytest.mark.parametrize("name", BEHAVIOURS)
def test_a_warm_worker_behaves_as_a_fresh_interpreter(
    name: str, warm_agent: AgentProcess, tmp_path: Path
) -> None:
    """The same command prints the same, and ends the same way, warm and fresh."""
    behaviour = BEHAVIOURS[name]
    folder = tmp_path / "work"
    folder.mkdir()
    environ = prepare(behaviour, folder)
    command = list(behaviour.command)
    (warm,) = run_worker(warm_agent, command, folder, environ)
    with (tmp_path / "out").open("w") as out, (tmp_path / "err").open("w") as err:
        fresh = subprocess.run(
            [sys.executable, *command],
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            timeout=LIMIT_S,
            check=False,
            start_new_session=True,
        )
    expected = ((tmp_path / "out").read_text(), (tmp_path / "err").read_text(), fresh.returncode)
    assert without_extensions(warm) == without_extensions(expected)


def test_workers_draw_different_random_numbers(warm_agent: AgentProcess, tmp_path: Path) -> None:
    """What a fresh process seeds from the system, each warm worker seeds anew."""
    folder = tmp_path / "work"
    folder.mkdir()
    code = (
        "import torch, numpy, random, uuid, tempfile, multiprocessing\n"
        "print(torch.rand(1).item(), torch.initial_seed())\n"
        "print(numpy.random.rand())\nprint(random.random())\nprint(uuid.uuid4())\n"
        "print(next(tempfile._get_candidate_names()))\n"
        "print(bytes(multiprocessing.current_process().authkey))\n"
        "import sympy.core.random\nprint(sympy.core.random.rng.random())\n"
    )
    runs = run_worker(warm_agent, ["-c", code], folder, os.environ, workers=3)
    assert all((err, code) == ("", 0) for _, err, code in runs)
    for draws in zip(*(out.splitlines() for out, _, _ in runs), strict=True):
        assert len(set(draws)) == 3, draws


@pytest.mark.parametrize("module", ["random", "traceback"])  # `boot` itself has the second
def test_a_file_that_hides_a_loaded_module_is_respected(
    module: str, warm_agent: AgentProcess, tmp_path: Path
) -> None:
    """A script beside a `random.py` of its own gets that one: its worker is exec'ed."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / f"{module}.py").write_text("MINE = True")
    (folder / "script.py").write_text(f"import {module}; print({module}.MINE)")
    (run,) = run_worker(warm_agent, ["script.py"], folder, os.environ, expect_start="exec")
    assert run == ("True\n", "", 0)


# What Python reads when it starts, and a warm interpreter was started with as well.
READ_AT_START = {
    "PYTHONASYNCIODEBUG": "1",
    "PYTHONFAULTHANDLER": "1",
    "PYTHONHASHSEED": "5",
    "PYTHONINTMAXSTRDIGITS": "1000",
    "PYTHONIOENCODING": "latin-1:replace",
    "PYTHONNODEBUGRANGES": "1",
    "PYTHONNOUSERSITE": "1",
    "PYTHONOPTIMIZE": "1",
    "PYTHONSAFEPATH": "1",
    "PYTHONUNBUFFERED": "1",
    "PYTHONUTF8": "1",
    "PYTHONWARNDEFAULTENCODING": "1",
    "PYTHONWARNINGS": "ignore",
}
WHAT_THEY_CHANGE = """
import asyncio, faulthandler, locale, site, sys, traceback, warnings
print(asyncio.coroutines._is_debug_mode(), faulthandler.is_enabled(), hash("a"))
print(sys.get_int_max_str_digits(), sys.stdout.encoding, sys.stdout.errors, sys.stdin.encoding)
print(sys.flags, sys.path, site.ENABLE_USER_SITE, sys.stdout.write_through, sys._xoptions)
print(sys.getfilesystemencoding(), locale.getpreferredencoding(), sys.warnoptions)
print([(rule[0], rule[2].__name__, rule[4]) for rule in warnings.filters])
warnings.warn("not shown", UserWarning)
assert False, "not checked"
try: raise ValueError("shown without marks")
except ValueError: traceback.print_exc()
import ctypes
ctypes.string_at(0)
"""


def test_variables_that_python_reads_at_its_start_mean_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the launcher's environment, all at once."""
    for name, value in READ_AT_START.items():
        monkeypatch.setenv(name, value)
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "script.py").write_text(WHAT_THEY_CHANGE)
    with AgentProcess(preload=["json"]) as agent:
        (warm,) = run_worker(agent, ["script.py"], folder, os.environ)
    fresh = subprocess.run(
        [sys.executable, "script.py"],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="latin-1",
        timeout=LIMIT_S,
        check=False,
    )
    expected = (fresh.stdout, fresh.stderr, fresh.returncode)
    assert without_extensions(warm) == without_extensions(expected)
    assert "Fatal Python error: Segmentation fault" in fresh.stderr


def test_a_variable_that_is_read_at_start_is_respected(
    warm_agent: AgentProcess, tmp_path: Path
) -> None:
    """PYTHONHASHSEED that differs from the warm interpreter's means a fresh one."""
    folder = tmp_path / "work"
    folder.mkdir()
    code = "import sys; print(sys.flags.hash_randomization, hash('a') != 0)"
    environ = {**os.environ, "PYTHONHASHSEED": "0"}
    (run,) = run_worker(warm_agent, ["-c", code], folder, environ, expect_start="exec")
    assert run == ("0 True\n", "", 0)


def test_a_warm_group_starts_within_the_time_of_a_fork(
    warm_agent: AgentProcess, tmp_path: Path
) -> None:
    """Two warm workers reach their first line in a small part of what importing torch takes."""
    folder = tmp_path / "work"
    folder.mkdir()
    # In time of the processor, which does not grow with what else the machine does.
    code = (
        "import time; began = time.process_time()\n"
        "import torch\n"
        "print(began, time.process_time() - began)"
    )
    runs = run_worker(warm_agent, ["-c", code], folder, os.environ, workers=2)
    for out, err, status in runs:
        assert (err, status) == ("", 0)
        began_s, import_s = map(float, out.split())
        # Measured 15 to 40 ms; a cold import takes more than a second.
        assert began_s < 0.5
        assert import_s < 0.1
