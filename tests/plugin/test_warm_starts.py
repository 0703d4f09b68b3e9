"""Jobs start warm, from an installed wheel too; where one does not, the session says why."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from pytest_elastic.events.codec import decode_record
from pytest_elastic.events.model import WorkersStarted
from tests.plugin.place import Place, scenario

ROOT = Path(__file__).parents[2]
LIMIT_S = 240.0

JOBS = {
    "cold": "{script: hello.py, nproc_per_node: 2, env: {PYTHONWARNINGS: default}}",
    "asked-for": "{script: hello.py, options: [--worker-start=exec]}",
    "no-python": "{command: [sh, -c, exec python hello.py]}",
}


def run(*command: Any, cwd: Path = ROOT) -> str:  # noqa: ANN401 (paths and words)
    """Run a command to its end, and return what it prints."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words, cwd=cwd, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an environment with our wheel and, in the same folder, all that the tests' own has.

    That is what `pip install` makes, and it matters where modules lie. The others are links: torch
    alone would take half a minute. The environment is reached by a link, as some are.
    """
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder)
    run(sys.executable, "-m", "venv", "--without-pip", folder / "real")
    (folder / "venv").symlink_to("real")
    venv = folder / "venv"
    site = Path(sysconfig.get_path("purelib", vars={"base": str(venv)}))
    others = Path(sysconfig.get_path("purelib"))
    for entry in others.iterdir():
        if "elastic" not in entry.name:
            (site / entry.name).symlink_to(entry)
    # Nodes have a /tmp of their own: of what lies below it they see what is on the path.
    (site / "others.pth").write_text(f"{others}\n")
    python, (wheel,) = venv / "bin" / "python", folder.glob("*.whl")
    pip = (sys.executable, "-m", "pip", "--quiet", "--python", python)
    run(*pip, "install", "--no-index", "--no-deps", "--ignore-installed", wheel)
    code = "import elastic_harness as h, pytest_elastic as p; print(h.__file__, p.__file__)"
    for file in run(python, "-c", code, cwd=folder).split():
        assert Path(file).is_relative_to(site), "it is the wheel that is tested"
    assert not (site / "elastic_simulation").exists(), "a wheel has what users need"
    return venv


def starts(events: Path) -> list[tuple[str, str]]:
    """Return how each node's workers were started, and why so."""
    records = [decode_record(line) for line in events.read_bytes().splitlines()]
    found = [record.event for record in records if record is not None]
    return [(e.start, e.start_reason) for e in found if isinstance(e, WorkersStarted)]


@pytest.mark.slow
def test_from_a_wheel_everything_starts_warm(installed: Path, tmp_path: Path) -> None:
    """In a scenario and by the command alone, outside of the checkout."""
    place = Place(tmp_path, {"PYTHONPATH": ""})
    place.add_ini()
    place.add_scripts()
    place.add("some.elastic.yaml", scenario("plain"))
    called = place.call(
        [str(installed / "bin/python"), "-m", "pytest", "-rA", "--elastic-keep=all"]
    )
    assert called.outcomes == {"plain": "PASSED"}, called.out
    assert "cold" not in called.out
    events = tmp_path / ".elastic" / place.runs[0] / "history.jsonl"
    warm = ("warm", "nothing tells it from a fresh interpreter")
    assert starts(events) == [warm, warm]

    place.environ["PYTEST_ELASTIC_EVENTS"] = f"file:{tmp_path}/events.jsonl"
    command = [str(installed / "bin/pytest-elastic"), "run", "--standalone", "hello.py"]
    alone = place.call(command)
    assert alone.code == 0, alone.out
    assert starts(tmp_path / "events.jsonl") == [warm]


@pytest.mark.slow
def test_from_a_wheel_torchrun_can_be_ours(installed: Path, tmp_path: Path) -> None:
    """By the shim and by the variable, outside of the checkout."""
    (tmp_path / "own.py").write_text(
        "import os; print('round', os.environ['PYTEST_ELASTIC_ROUND'])"
    )
    run(installed / "bin/pytest-elastic", "install-shim", tmp_path / "shims", cwd=tmp_path)
    assert run(tmp_path / "shims/torchrun", "own.py", cwd=tmp_path) == "round 1\n"
    python = (installed / "bin/python", "-m", "torch.distributed.run", "own.py")
    assert run("env", "PYTEST_ELASTIC_AS_TORCHRUN=1", *python, cwd=tmp_path) == "round 1\n"


def test_a_cold_start_is_said_once_with_its_reason(place: Place) -> None:
    """For all jobs of the session together, and only where the user has not asked for it."""
    place.add_scripts()
    text = "version: 1\nid: {}\ntitle: One of them\nnodes: 1\njob: {}\n"
    for name, jobs in {"one": ["cold"], "others": list(JOBS)}.items():
        place.add(f"{name}.elastic.yaml", "---\n".join(text.format(id, JOBS[id]) for id in jobs))
    why = "PYTHONWARNINGS=default may show warnings of what is imported already"
    for words, count, ids in (
        (("one.elastic.yaml",), 2, {"cold"}),
        (("-n", "2", "--dist=loadfile"), 4, set(JOBS)),
    ):
        called = place.pytest("-rA", *words)
        assert called.code == pytest.ExitCode.OK, called.out
        assert set(called.outcomes) == ids
        said = [line for line in called.out.splitlines() if "cold (" in line]
        assert said == [f"elastic: {count} workers were started cold (slower): {why}"], called.out
