"""Every check, on a small tree with one planted fault: a check that cannot fail proves nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.house import checks
from tests.house.source_tree import PACKAGES, SourceTree, read_tree


def tree_of(root: Path, **files: str) -> SourceTree:
    """Write files, named by module with `__` for each dot, and read the tree."""
    for name, text in files.items():
        package, *rest = name.split("__")
        folder = root / dict(PACKAGES)[package]
        path = folder.joinpath(*rest).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return read_tree(root)


def test_an_empty_tree_breaks_no_rule(tmp_path: Path) -> None:
    """Rooms that do not exist yet are no finding."""
    tree = read_tree(tmp_path)
    assert tree.sources == {}
    assert checks.arrows(tree) == checks.circles(tree, deferred=True) == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pytest_elastic__errors", "from pytest_elastic.agent import machine"),
        ("pytest_elastic__loop", "import elastic_harness.network"),
        ("pytest_elastic__events__model", "def f():\n    import pytest_elastic.workers.spec"),
        (
            "pytest_elastic__rendezvous__member",
            "from pytest_elastic.workers.spec import WorkerSpec",
        ),
        ("pytest_elastic__workers__group", "from pytest_elastic.rendezvous import model"),
        ("pytest_elastic__workers__group", "from ..rendezvous.model import Round"),
        ("pytest_elastic__agent__machine", "from pytest_elastic.rendezvous.coordinator import C"),
        ("pytest_elastic__agent__machine", "from pytest_elastic.launch import launch"),
        ("pytest_elastic__launch", "import pytest_elastic.cli.options"),
        ("pytest_elastic__launch", "import elastic_harness"),
        ("pytest_elastic__plugin__options", "from pytest_elastic.cli.main import main"),
        ("pytest_elastic__plugin__options", "import pytest_elastic.launch"),
        ("elastic_harness__faults__worker", "import pytest_elastic.plugin"),
        ("elastic_harness__scenario__runner", "from pytest_elastic.cli import main"),
        ("elastic_harness__scenario__runner", "from elastic_simulation import run"),
        ("elastic_harness__scenario__runner", "import pytest_elastic.rendezvous.coordinator"),
        ("pytest_elastic__plugin__options", "def f():\n    import elastic_simulation"),
        ("elastic_simulation__run", "from pytest_elastic.cli import main"),
        ("pytest_elastic__newroom__thing", "import pytest_elastic.agent.agent"),
    ],
)
def test_an_import_against_the_arrows_is_found(tmp_path: Path, name: str, text: str) -> None:
    """Whatever the form of the import, and inside functions too."""
    tree = tree_of(tmp_path, **{name: text})
    (finding,) = checks.arrows(tree)
    assert finding.path.endswith(name.rpartition("__")[2] + ".py")
    assert finding.line == text.count("\n") + 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pytest_elastic__loop", "from pytest_elastic.clock import Clock\nimport os, torch"),
        ("pytest_elastic__agent__machine", "from pytest_elastic.rendezvous import ports, model"),
        ("pytest_elastic__agent__agent", "from pytest_elastic.workers.keeper import Keeper"),
        ("pytest_elastic__launch", "from pytest_elastic.rendezvous.driver import Driver"),
        ("elastic_simulation__run", "from pytest_elastic.rendezvous import coordinator"),
        ("elastic_harness__cluster__server", "import pytest_elastic.channel"),
        ("pytest_elastic__plugin__hooks", "def f():\n    from elastic_harness.cluster import x"),
        ("pytest_elastic__cli__chaos", "def f():\n    from elastic_harness.scenario import x"),
    ],
)
def test_an_import_along_the_arrows_is_fine(tmp_path: Path, name: str, text: str) -> None:
    """What the design is made of is not a finding."""
    assert checks.arrows(tree_of(tmp_path, **{name: text})) == []


def test_a_module_in_no_room_is_found(tmp_path: Path) -> None:
    """A new top-level module of the package has to be given a place in the table."""
    (finding,) = checks.arrows(tree_of(tmp_path, pytest_elastic__utils="x = 1"))
    assert "pytest_elastic.utils lives in no room" in finding.text


def test_a_circle_is_found_once_and_named_whole(tmp_path: Path) -> None:
    """Three modules in a ring are one finding; what only hangs on it is not part of it."""
    tree = tree_of(
        tmp_path,
        pytest_elastic__agent__a="import pytest_elastic.agent.b",
        pytest_elastic__agent__b="from pytest_elastic.agent import c",
        pytest_elastic__agent__c="from .a import thing",
        pytest_elastic__agent__d="import pytest_elastic.agent.a",
    )
    (finding,) = checks.circles(tree, deferred=False)
    assert finding.text == (
        "circle of imports: pytest_elastic.agent.a, pytest_elastic.agent.b, pytest_elastic.agent.c"
    )


def test_a_circle_through_a_function_or_for_types_is_counted_apart(tmp_path: Path) -> None:
    """It does not break the import, but it is a circle."""
    tree = tree_of(
        tmp_path,
        pytest_elastic__agent__a="def f():\n    import pytest_elastic.agent.b",
        pytest_elastic__agent__b="import pytest_elastic.agent.a",
        pytest_elastic__agent__c="import pytest_elastic.agent.d",
        pytest_elastic__agent__d="if TYPE_CHECKING:\n    import pytest_elastic.agent.c",
    )
    assert checks.circles(tree, deferred=False) == []
    one, other = checks.circles(tree, deferred=True)
    assert one.text.endswith("pytest_elastic.agent.a, pytest_elastic.agent.b")
    assert other.text.endswith("pytest_elastic.agent.c, pytest_elastic.agent.d")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import time", "imports time"),
        ("from time import monotonic", "imports monotonic from time"),
        ("def f():\n    import threading", "imports threading"),
        ("import os\nx = os.getpid()", "uses os.getpid"),
        ("from os import environ", "imports environ from os"),
        ("import random\nx = random.random()", "uses random.random"),
        ("import signal\nsignal.raise_signal(9)", "uses signal.raise_signal"),
        ("from signal import signal", "imports signal from signal"),
        ("import logging.handlers", "imports logging"),
        ("import torch", "imports torch"),
        ("import subprocess as run", "imports subprocess"),
        ("x = open('file')", "uses open()"),
        ("def f():\n    print('hello')", "uses print()"),
        ("import pytest_elastic.loop", "imports pytest_elastic.loop, which is not"),
        (
            "from pytest_elastic.rendezvous import driver",
            "imports pytest_elastic.rendezvous.driver",
        ),
    ],
)
def test_an_effect_in_a_pure_file_is_found(tmp_path: Path, text: str, expected: str) -> None:
    """Clocks, chance, threads, files, signals, and functions that use them."""
    tree = tree_of(
        tmp_path, pytest_elastic__rendezvous__member=text, pytest_elastic__rendezvous__driver=""
    )
    (finding,) = checks.impurities(tree)
    assert expected in finding.text
    assert finding.line == text.count("\n") + 1


@pytest.mark.parametrize(
    "text",
    [
        "import os.path\nx = os.path.join('a', 'b')",
        "import os\nx = os.path.join('a', 'b')",
        "import random\ndef f(r: random.Random) -> float:\n    return r.random()",
        "import signal\nx = signal.SIGTERM, signal.Signals(9)",
        "from signal import SIGKILL, Signals",
        "import re, json, math, heapq",
        "from pytest_elastic.rendezvous.model import Round",
        "if TYPE_CHECKING:\n    from pytest_elastic.loop import Loop",
    ],
)
def test_what_is_harmless_in_a_pure_file_is_fine(tmp_path: Path, text: str) -> None:
    """Names of signals, paths as text, a stream of chance that was handed in, types."""
    assert checks.impurities(tree_of(tmp_path, pytest_elastic__rendezvous__member=text)) == []


def test_drivers_may_have_effects(tmp_path: Path) -> None:
    """The table names them beside the pure ones of their room."""
    text = "import time, socket\nimport pytest_elastic.loop"
    assert checks.impurities(tree_of(tmp_path, pytest_elastic__rendezvous__driver=text)) == []


def test_torch_is_found_outside_its_files_and_outside_functions(tmp_path: Path) -> None:
    """Only named files, and there only inside functions."""
    inside = "def f():\n    import torch.distributed"
    tree = tree_of(
        tmp_path,
        pytest_elastic__agent__agent=inside,
        pytest_elastic__workers__store__torch_store="from torch import distributed",
        pytest_elastic__backends__handler_host=inside,
    )
    found = {finding.path: finding.text for finding in checks.expensive_imports(tree)}
    assert "only (" in found.pop("pytest_elastic/agent/agent.py")
    assert "outside a function" in found.pop("pytest_elastic/workers/store/torch_store.py")
    assert found == {}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def f(): ...", "has no __all__"),
        ("__all__ = ('f',)\ndef f(): ...", "not a list"),
        ("__all__ = ['f', 'A']\nclass A: ...\ndef f(): ...", "not sorted"),
        ("__all__ = ['A', 'LIMIT_S']\nclass A: ...\nLIMIT_S = 1", "not sorted"),
        ("__all__ = ['f', 'gone']\ndef f(): ...", "exports gone"),
    ],
)
def test_wrong_exports_are_found(tmp_path: Path, text: str, expected: str) -> None:
    """A public module says what it offers, sorted as ruff sorts it, and has it."""
    (finding,) = checks.exports(tree_of(tmp_path, pytest_elastic__thing=text))
    assert expected in finding.text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "pytest_elastic__thing",
            "__all__ = ['LIMIT_S', 'A', 'f']\nLIMIT_S = 1\nclass A: ...\ndef f(): ...",
        ),
        ("pytest_elastic__thing", "from json import dumps\n__all__ = ['dumps']"),
        ("pytest_elastic__thing", "_private = 1"),
        ("pytest_elastic___hidden", "def f(): ..."),
        ("pytest_elastic__boot__site__sitecustomize", "def f(): ..."),
        ("tests__unit__test_thing", "def test_f(): ..."),
    ],
)
def test_right_exports_are_fine(tmp_path: Path, name: str, text: str) -> None:
    """Private modules, tests, and what is loaded by name owe none."""
    assert checks.exports(tree_of(tmp_path, **{name: text})) == []


@pytest.mark.parametrize(
    "text",
    [
        "import time\ndef test_f():\n    time.sleep(1)",
        "from time import sleep\n",
    ],
)
def test_a_sleeping_test_is_found(tmp_path: Path, text: str) -> None:
    """However it is spelled."""
    assert checks.sleeping_tests(tree_of(tmp_path, tests__unit__test_thing=text))
    assert checks.sleeping_tests(tree_of(tmp_path / "other", pytest_elastic__thing=text)) == []
    job = tree_of(tmp_path / "job", tests__frameworks__programs__job=text)
    assert checks.sleeping_tests(job) == []


def test_syntax_newer_than_the_oldest_python_is_refused(tmp_path: Path) -> None:
    """`except*` came with 3.11; every file is read as 3.10 would."""
    with pytest.raises(SyntaxError):
        tree_of(tmp_path, pytest_elastic__new="try:\n    f()\nexcept* OSError:\n    pass\n")


@pytest.mark.parametrize(
    "text",
    [
        "import os\nos.kill(1, 9)",
        "import signal\ndef f(fd): signal.pidfd_send_signal(fd, 9)",
        "def f(pid): return open(f'/proc/{pid}/stat')",
        "\ndef f():\n    from elastic_harness.cluster import process_table",
        "from elastic_harness.cluster.local_processes import LocalProcesses",
    ],
)
def test_what_touches_a_process_beside_the_cluster_is_found(tmp_path: Path, text: str) -> None:
    """Whatever the way; what is below the cluster may."""
    needed = {
        "elastic_harness__cluster__local_processes": "",
        "elastic_harness__cluster__process_table": "",
    }
    tree = tree_of(tmp_path, elastic_harness__faults__node=text, **needed)
    assert [finding.path for finding in checks.touched_processes(tree)] == [
        "harness/elastic_harness/faults/node.py"
    ]
    tree = tree_of(tmp_path / "other", elastic_harness__cluster__node__init=text, **needed)
    assert checks.touched_processes(tree) == []
    tree = tree_of(tmp_path / "words", elastic_harness__faults__node='"""Reads no /proc/PID."""')
    assert checks.touched_processes(tree) == []
