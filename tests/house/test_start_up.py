"""Loading us costs nothing that was not asked for: seen in fresh interpreters."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.house import rules

ROOT = Path(__file__).parents[2]


def run_python(*arguments: str, cwd: Path = ROOT) -> str:
    """Run an interpreter to its good end and return what it printed."""
    run = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def loaded_by(statement: str) -> set[str]:
    """Return the names of the modules that are loaded after a statement."""
    return set(run_python("-c", f"{statement}\nimport sys\nprint(*sys.modules)").split())


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("pytest_elastic", rules.HEAVY_FOR_THE_COMMAND),
        ("pytest_elastic.plugin", rules.HEAVY_FOR_THE_PLUGIN),
        ("pytest_elastic.cli.main", rules.HEAVY_FOR_THE_COMMAND),
    ],
)
def test_importing_a_face_loads_nothing_heavy(module: str, heavy: tuple[str, ...]) -> None:
    """The plugin is loaded by every pytest run; the command answers `--help` at once."""
    loaded = loaded_by(f"import {module}")
    assert module in loaded
    assert sorted(loaded.intersection(heavy)) == []


def test_this_way_of_looking_does_see_torch() -> None:
    """The check above can fail."""
    assert "torch" in loaded_by("import torch.version")


def test_a_pytest_run_that_does_not_use_us_never_loads_torch(tmp_path: Path) -> None:
    """Collecting and running someone else's test with the plugin installed."""
    tmp_path.joinpath("test_other.py").write_text("def test_nothing(): pass\n")
    tmp_path.joinpath("conftest.py").write_text(
        "import sys\n"
        "def pytest_unconfigure(config):\n"
        "    print('plugin:', config.pluginmanager.hasplugin('elastic'))\n"
        "    print('torch:', 'torch' in sys.modules)\n"
    )
    printed = run_python("-m", "pytest", "-p", "no:cacheprovider", "-q", cwd=tmp_path)
    assert "plugin: True" in printed, "the plugin is not installed: pip install -e ."
    assert "torch: False" in printed


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["chaos", "--help"]])
def test_asking_the_command_for_help_never_loads_torch(words: list[str]) -> None:
    """`pytest-elastic --help`, seen from inside; nor any process that is started for it."""
    printed = run_python(
        "-c",
        "import sys\n"
        "started = []\n"
        "sys.addaudithook(lambda event, _: started.append(event)"
        " if event in ('os.fork', 'os.posix_spawn', 'subprocess.Popen') else None)\n"
        "from pytest_elastic.cli.main import main\n"
        "try:\n"
        f"    code = main({words!r})\n"
        "except SystemExit as error:\n"
        "    code = error.code\n"
        "assert not code, code\n"
        "heavy = {'torch', 'importlib.metadata', 'email', 'ssl', 'asyncio'} & {*sys.modules}\n"
        "print('heavy:', heavy, started)\n",
    )
    assert "usage: pytest-elastic" in printed
    assert "heavy: set() []" in printed
