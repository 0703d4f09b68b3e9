"""What a program's own source sets is read, and what it merely asks for is not mistaken for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_elastic.workers import own_source
from pytest_elastic.workers.own_source import SetVariable, sources_of, variables_set


def found(text: str) -> str:
    """Return the name of the first variable that a text sets."""
    variable = variables_set(text, [], [], lambda _: True)
    return "" if variable is None else variable.name


@pytest.mark.parametrize(
    "text",
    [
        "import os; os.environ['OMP_X'] = '4'",
        "from os import environ\nenviron.setdefault('OMP_X', '4')",
        "import os; os.environ.update({'OMP_X': '4'})",
        "import os; os.environ.update(OMP_X='4')",
        "import os; os.putenv('OMP_X', '4')",
        "import os; os.environb[b'OMP_X'] = b'4'",
        "import os; del os.environ['OMP_X']",
        "import os\nfor name in ('OMP_X', 'B'): os.environ[name] = '4'",
        "import ctypes; ctypes.CDLL(None).setenv(b'OMP_X', b'4', 1)",
    ],
)
def test_a_variable_that_a_program_sets_is_found(text: str) -> None:
    """In the ways that scripts have of doing so."""
    assert found(text) == "OMP_X"


@pytest.mark.parametrize(
    "text",
    [
        "import os; print(os.environ['OMP_X'], os.environ.get('OMP_X'), os.getenv('OMP_X'))",
        "import os; print('OMP_X' in os.environ)",
        "# os.environ: OMP_X\n'''OMP_X'''",
        "import os; os.environ; print('set OMP_X=4')",
        "X = 'OMP_X'",
        "import os; os.environ[",
        "environ\0",
    ],
)
def test_what_only_reads_or_says_is_not_taken_for_it(text: str) -> None:
    """Nor what is no Python."""
    assert found(text) == ""


def test_what_is_imported_from_the_programs_own_folders_is_read_too(tmp_path: Path) -> None:
    """Packages, relative imports and imports in a circle; installed modules are not looked at."""
    (tmp_path / "package" / "deep").mkdir(parents=True)
    (tmp_path / "train.py").write_text("import json, sys\nfrom package import settings\n")
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "settings.py").write_text("from . import other\nfrom .deep.x import y")
    (tmp_path / "package" / "other.py").write_text("import package.settings, train")
    last = tmp_path / "package" / "deep" / "x.py"
    last.write_text("import os\n\nos.environ['OMP_X'] = '1'\n")
    folders = [str(tmp_path)]
    _, files = sources_of(["train.py", "--steps=3"], str(tmp_path), folders)
    variable = variables_set("", files, folders, lambda name: name == "OMP_X")
    assert variable == SetVariable(name="OMP_X", file=str(last.resolve()), line=3)
    assert variables_set("", files, folders, lambda name: name == "OTHER") is None
    last.write_text("import os\nprint(os.environ['OMP_X'])\n")
    assert variables_set("", files, folders, lambda _: True) is None, "it was read again"


def test_a_program_is_found_where_python_would_find_it(tmp_path: Path) -> None:
    """A file, a module, a package, a folder, a text; and nothing for what is not there."""
    (tmp_path / "app").mkdir()
    for name in ("app/__init__.py", "app/__main__.py", "tool.py"):
        (tmp_path / name).write_text("")
    place = str(tmp_path.resolve())

    def of(*target: str) -> list[str]:
        text, files = sources_of(target, place, [place])
        assert text == ("print(1)" if target[0] == "-c" else "")
        return files

    assert of("tool.py") == [f"{place}/tool.py"]
    assert of("app") == [f"{place}/app/__main__.py"]
    assert of("-m", "app") == [f"{place}/app/__init__.py", f"{place}/app/__main__.py"]
    assert of("-m", "tool", "x") == [f"{place}/tool.py"]
    assert of("-m", "json.tool") == []
    assert of("-c", "print(1)", "x") == []
    assert variables_set("", [f"{place}/missing.py", place], [place], lambda _: True) is None


def test_the_search_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program of very many files is looked at as far as that."""
    monkeypatch.setattr(own_source, "_MAX_FILES", 10)
    for number in range(30):
        (tmp_path / f"m{number}.py").write_text(f"import m{number + 1}\n")
    (tmp_path / "m30.py").write_text("import os; os.environ['OMP_X'] = '1'")
    folders = [str(tmp_path)]
    files = [str(tmp_path / "m0.py")]
    assert variables_set("", files, folders, lambda _: True) is None
    monkeypatch.setattr(own_source, "_MAX_FILES", 100)
    assert variables_set("", files, folders, lambda _: True) is not None
