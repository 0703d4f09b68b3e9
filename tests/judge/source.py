"""The judges' own source is changed, one place at a time, and the tests have to notice.

    python -m tests.judge.source                            every file: minutes on two processors
    python -m tests.judge.source safety judge --jobs 1      some files
    python -m tests.judge.source --sample 30 --seed 7       some changes of all files

Of a fault only what decides whether it took effect, and what it exempts, is changed: how its
parameters are read and what it hits is no verdict.

Nothing on disk is changed. Each change is tried in a process of its own, forked from one that has
imported what the tests need save the judged packages; that process imports the changed source in
place of the file. A change that is noticed by no test is a survivor: a test is missing, or the
change makes no difference, which `equivalent.txt` then says with the reason. The exit code is 1 if
a survivor is not named there.
"""

from __future__ import annotations

import argparse
import ast
import importlib.abc
import importlib.machinery
import os
import random
import signal
import sys
import tempfile
import time
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:  # cosmic-ray is needed by who changes something, not by who reads the lists
    from tests.judge.operators import Mutant

__all__ = ["FILES", "Tried", "campaign", "equivalent", "source_of"]

_ROOT: Final = "harness/elastic_harness"
_EQUIVALENT: Final = "tests/judge/equivalent.txt"
_HISTORY: Final = "tests/unit/history"
_CHECKERS: Final = tuple(
    f"{_HISTORY}/test_{name}.py"
    for name in ("boundaries", "checkers", "late_steps", "cut_short", "jobs", "workers_observed")
)
_TRAINING: Final = (
    *(f"{_HISTORY}/test_{name}.py" for name in ("training", "training_boundaries")),
    *(f"{_HISTORY}/test_{name}.py" for name in ("final_state", "rate")),
    *_CHECKERS[:2],
)
_CONDUCT: Final = (*_CHECKERS, f"{_HISTORY}/test_judge.py")
_CONSISTENT: Final = tuple(
    f"{_HISTORY}/test_{name}.py" for name in ("consistent", "checkers", "boundaries")
)
_JUDGE: Final = (
    *(f"{_HISTORY}/test_{name}.py" for name in ("judge", "judge_cases", "verdict")),
    *_CHECKERS[:2],
)
_CLAUSES: Final = tuple(
    f"tests/unit/scenario/test_{name}.py"
    for name in ("clauses", "conditions", "planned_clauses", "engine_clauses")
)
_ENGINE: Final = tuple(
    f"tests/unit/scenario/test_{name}.py"
    for name in (
        "engine_end",
        "engine",
        "engine_faults",
        "engine_clauses",
        "broken_for_good",
        "engine_stated",
        "fault_flow",
        "held_writers",
        "holds",
        "standing_still",
    )
)
# All of them: most faults are shown in the tables of one file.
_FAULTS: Final = ("tests/unit/faults",)

_CHECKUP: Final = ("tests/unit/checkup/test_saved_state.py",)

# What judges, and the tests that have to notice a change of it. They are to take about a second.
FILES: Final[Mapping[str, tuple[str, ...]]] = {
    "history/checkers/safety": _CHECKERS,
    "history/checkers/limits": _CHECKERS,
    "history/checkers/conduct": _CONDUCT,
    "history/checkers/consistent": _CONSISTENT,
    "history/checkers/liveness": _CHECKERS,
    "history/checkers/training": _TRAINING,
    "history/checkers/samples": _TRAINING,
    "history/checkers/distance": (f"{_HISTORY}/test_distance.py",),
    "history/checkers/final_state": _TRAINING,
    "history/checkers/rate": _TRAINING,
    "history/checkers/never_seen": _CHECKERS,
    "history/checkers/registry": (
        *_JUDGE, f"{_HISTORY}/test_final_state.py", f"{_HISTORY}/test_other_clocks.py",
    ),
    "history/judge": _JUDGE,
    "history/verdict": _JUDGE,
    "checkup/saved_state": _CHECKUP,
    "checkup/battery": ("tests/unit/checkup/test_battery.py",),
    "checkup/measured": ("tests/unit/checkup/test_measured.py",),
    "checkup/card": ("tests/unit/checkup/test_card.py",),
    "scenario/engine/clauses": _CLAUSES,
    "scenario/planning/planned_clauses": _CLAUSES,
    "scenario/engine/conditions": _CLAUSES,
    **{f"scenario/engine/{name}": _ENGINE for name in (
        "engine", "fault_flow", "holds", "observed", "timeline",
    )},
    **{f"faults/{name}": _FAULTS for name in (
        "command", "context", "evidence",
        "disks/disk", "disks/files",
        "links/capture", "links/degrade", "links/foreign_bytes", "links/link_fault",
        "links/names", "links/network", "links/store", "links/toxic",
        "nodes/clock", "nodes/limits", "nodes/membership", "nodes/node",
        "workers/file_limit", "workers/gpu", "workers/pause", "workers/stall", "workers/stops",
        "workers/worker",
    )},
}  # fmt: skip

# What judges in a fault, with all functions of `faults/` that it calls.
_JUDGES_IN_FAULTS: Final = ("inject", "exempt_nodes")

# What is asked of a scenario before it runs, or of nothing but names.
_JUDGE_NO_RUN: Final = ("findings", "schema")

# What is imported anew for every change.
_OURS: Final = ("elastic_harness", "pytest_elastic", "tests")
# A change may make a loop endless.
_LIMIT_S: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A change of a file, and what became of it: "killed", "survived" or "equivalent"."""

    file: str
    mutant: Mutant
    outcome: str


class _Instead(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports a changed source in place of a module's file."""

    def __init__(self, name: str, path: str, source: str) -> None:
        self._name, self._path, self._source = name, path, source

    def find_spec(
        self, fullname: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, origin=self._path)

    def exec_module(self, module: types.ModuleType) -> None:
        module.__file__ = self._path
        exec(compile(self._source, self._path, "exec"), module.__dict__)


def campaign(
    work: Sequence[tuple[str, Mutant]], *, jobs: int, seconds: int = _LIMIT_S
) -> Iterator[Tried]:
    """Try changes, so many at a time, and yield what became of each as it is known."""
    needs = _needs()
    waiting = list(reversed(work))
    running: dict[int, tuple[str, Mutant]] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            file, mutant = waiting.pop()
            running[_start(file, mutant.source, needs, seconds)] = file, mutant
        pid, status = os.wait()
        file, mutant = running.pop(pid)
        is_noticed = status != 0
        outcome = "killed" if is_noticed else _outcome_of_survivor(file, mutant)
        yield Tried(file=file, mutant=mutant, outcome=outcome)


def _try_unchanged(file: str) -> None:
    """Import a file anew as it is: tests that fail by that alone would notice every change."""
    _, status = os.waitpid(_start(file, source_of(file), _needs(), _LIMIT_S), 0)
    if status != 0:
        raise SystemExit(f"{file}: its tests fail when it is imported anew: {status}")


def _outcome_of_survivor(file: str, mutant: Mutant) -> str:
    is_named = (file, _plain(mutant.old), _plain(mutant.new)) in equivalent()
    return "equivalent" if is_named else "survived"


def equivalent() -> set[tuple[str, str, str]]:
    """Return the changes that no test can notice: a file, the lines before, the lines after."""
    found, file, old = set(), "", ""
    with open(_EQUIVALENT, encoding="utf-8") as lines:
        for line in lines:
            match line[:2]:
                case "- ":
                    old = line[2:].strip()
                case "+ ":
                    found.add((file, old, line[2:].strip()))
                case _:
                    file = line.partition(":")[0]
    return found


def _refuse_stale_names(files: Sequence[str], work: Sequence[tuple[str, Mutant]]) -> None:
    """Raise SystemExit where what is named as making no difference is no change of a file."""
    changes = {(file, _plain(mutant.old), _plain(mutant.new)) for file, mutant in work}
    for file, old, new in sorted(equivalent() - changes):
        if file in files:
            raise SystemExit(f"{file}: equivalent.txt names a change that is none: {old}\n{new}")


def _plain(lines: str) -> str:
    return " ".join(lines.split())


def _forget(file: str, needs: Mapping[str, set[str]]) -> None:
    """Forget a module, and all that import it: they are imported anew."""
    forgotten = {_module(file)}
    while more := {name for name in needs if name not in forgotten and needs[name] & forgotten}:
        forgotten |= more
    for name in forgotten:
        del sys.modules[name]
        package, _, own = name.rpartition(".")
        vars(sys.modules.get(package, sys)).pop(own, None)


def _is_ours(name: str) -> bool:
    return name.partition(".")[0] in _OURS and not name.startswith("tests.judge")


def _needs() -> dict[str, set[str]]:
    """Return what each module of ours imports."""
    return {name: _imports(module) for name, module in sys.modules.items() if _is_ours(name)}


def _imports(module: types.ModuleType) -> set[str]:
    """Return the modules that a module's source imports, by their full names."""
    if not module.__file__:
        return set()
    with open(module.__file__, encoding="utf-8") as source:
        tree = ast.parse(source.read())
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.update(f"{node.module}.{each.name}" for each in node.names)
            found.add(node.module)
    return found


def _module(file: str) -> str:
    return f"elastic_harness.{file.replace('/', '.')}"


def _start(file: str, source: str, needs: Mapping[str, set[str]], seconds: int) -> int:
    """Fork a process that runs a file's tests with another source; return its id."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    status = 2
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(seconds)
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        _forget(file, needs)
        sys.meta_path.insert(0, _Instead(_module(file), f"{_ROOT}/{file}.py", source))
        status = _run_tests(FILES[file])
    finally:
        os._exit(status)


def _run_tests(paths: Sequence[str]) -> int:
    """Run some tests to the first that fails, with nothing of pytest that they can do without."""
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    options = ["-p", "no:cacheprovider", "--noconftest", "--assert=plain", "--tb=no", "-x", "-q"]
    return int(pytest.main([*options, *paths]))


def source_of(file: str) -> str:
    """Return the source of a file that is named in `FILES`."""
    with open(f"{_ROOT}/{file}.py", encoding="utf-8") as lines:
        return lines.read()


def _mutants(file: str) -> list[Mutant]:
    from tests.judge.operators import mutants_of

    source = source_of(file)
    before_runs = {
        line
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and node.name in _JUDGE_NO_RUN
        for line in range(node.lineno, (node.end_lineno or 0) + 1)
    }
    found = [mutant for mutant in mutants_of(source) if mutant.line not in before_runs]
    if not file.startswith("faults/"):
        return found
    judging = _judging_lines(file)
    return [mutant for mutant in found if mutant.line in judging]


def _judging_lines(file: str) -> set[int]:
    """Return the lines of a fault's functions that judge: those that they call by name, too."""
    functions: dict[str, list[tuple[str, ast.FunctionDef]]] = {}
    for each in (each for each in FILES if each.startswith("faults/")):
        for node in ast.walk(ast.parse(source_of(each))):
            if isinstance(node, ast.FunctionDef):
                functions.setdefault(node.name, []).append((each, node))
    lines: set[int] = set()
    waiting = [found for name in _JUDGES_IN_FAULTS for found in functions[name]]
    seen = set(_JUDGES_IN_FAULTS)
    while waiting:
        place, function = waiting.pop()
        if place == file:
            lines.update(range(function.lineno, (function.end_lineno or 0) + 1))
        called = {getattr(node, "id", getattr(node, "attr", "")) for node in ast.walk(function)}
        for name in called & functions.keys() - seen:
            seen.add(name)
            waiting.extend(functions[name])
    return lines


def _chosen(names: Sequence[str]) -> list[str]:
    files = [file for file in FILES if not names or file in names or file.split("/")[-1] in names]
    if not files:
        raise SystemExit(f"no file is called {', '.join(names)}: known: {', '.join(FILES)}")
    return files


def main(arguments: Sequence[str]) -> int:
    """Change the files that are named, all by default; print the survivors and the numbers."""
    parser = argparse.ArgumentParser(prog="python -m tests.judge.source")
    parser.add_argument("files", nargs="*", help=", ".join(FILES))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--sample", type=int, help="try only so many changes of all")
    parser.add_argument("--seed", type=int, default=random.randrange(10_000))
    options = parser.parse_args(arguments)
    files = _chosen(options.files)
    for paths in dict.fromkeys(FILES[file] for file in files):
        if _run_tests(paths) != 0:
            raise SystemExit(f"these tests fail as it is: {' '.join(paths)}")
    for file in files:
        _try_unchanged(file)
    work = [(file, mutant) for file in files for mutant in _mutants(file)]
    _refuse_stale_names(files, work)
    if options.sample is not None:
        print(f"seed {options.seed}")
        work = random.Random(options.seed).sample(work, min(options.sample, len(work)))
    began = time.monotonic()
    counts: dict[str, dict[str, int]] = {file: {} for file in files}
    for tried in campaign(work, jobs=options.jobs):
        count = counts[tried.file]
        count[tried.outcome] = count.get(tried.outcome, 0) + 1
        if tried.outcome == "survived":
            mutant = tried.mutant
            print(f"{tried.file}.py:{mutant.line}: {mutant.operator}")
            print(f"  - {_plain(mutant.old)}\n  + {_plain(mutant.new)}", flush=True)
    print(f"{'file':30} changes  killed  equivalent  survived")
    for file, count in counts.items():
        killed, named, left = (count.get(k, 0) for k in ("killed", "equivalent", "survived"))
        print(f"{file:30} {killed + named + left:7} {killed:7} {named:11} {left:9}")
    survived = sum(count.get("survived", 0) for count in counts.values())
    print(f"{len(work)} changes in {time.monotonic() - began:.0f} s, {survived} survived")
    return 1 if survived else 0


if __name__ == "__main__":
    # A process that tries a change ends at once, or is killed: its files go with this folder.
    with tempfile.TemporaryDirectory(prefix="judge-") as tempfile.tempdir:
        sys.exit(main(sys.argv[1:]))
