"""Compare a source tree with the rules; each check returns what it found, with file and line."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tests.house import rules
from tests.house.source_tree import Import, Source, SourceTree

__all__ = [
    "Finding",
    "arrows",
    "circles",
    "expensive_imports",
    "exports",
    "impurities",
    "sleeping_tests",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One place that breaks a rule."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


# Arrows and circles


def room_of(module: str) -> rules.Room | None:
    """Return the room that names this module most precisely."""
    fitting = [
        (len(held), room)
        for room in rules.ROOMS
        for held in room.holds
        if module == held or (module.startswith(f"{held}.") and held != "pytest_elastic")
    ]
    return max(fitting, key=lambda item: item[0])[1] if fitting else None


def arrows(tree: SourceTree) -> list[Finding]:
    """Find imports that no room's table allows, and modules that live in no room."""
    found = []
    for source in tree.product():
        home = room_of(source.module)
        if home is None:
            text = f"{source.module} lives in no room: name it in ROOMS"
            found.append(Finding(path=source.path, line=1, text=text))
            continue
        for imported in source.imports():
            target = tree.ours(imported)
            if target is None or _may_import(home, target):
                continue
            text = f"{source.module} ({home.name}) imports {target}: {home.because}"
            found.append(Finding(path=source.path, line=imported.line, text=text))
    return found


def _may_import(home: rules.Room, target: str) -> bool:
    there = room_of(target)
    if there is None:
        return False
    if there is home or target in home.may_import:
        return True
    if target in {held.rpartition(".")[0] for held in home.may_import if "." in held}:
        return True  # `from package import allowed_module` names the package too
    if there.name not in home.may_import:
        return False
    if home.only_pure_outside_the_ground and there.name != "ground":
        return is_pure(target)
    return True


def circles(tree: SourceTree, *, deferred: bool) -> list[Finding]:
    """Find modules that import each other.

    With `deferred`, imports inside functions and for types alone count too: a reader of one of
    such modules has to read them all.
    """
    edges: dict[str, dict[str, int]] = {}
    for source in tree.product():
        targets = edges.setdefault(source.module, {})
        for imported in source.imports():
            target = tree.ours(imported)
            counts = deferred or not (imported.typing_only or imported.deferred)
            if counts and target in tree.sources and target != source.module:
                targets.setdefault(target, imported.line)
    found = []
    for knot in _knots({module: sorted(targets) for module, targets in edges.items()}):
        if deferred and frozenset(knot) in rules.DEFERRED_CIRCLES:
            continue
        first = min(knot)
        line = min(line for target, line in edges[first].items() if target in knot)
        text = f"circle of imports: {', '.join(sorted(knot))}"
        found.append(Finding(path=tree.sources[first].path, line=line, text=text))
    return found


def _knots(edges: dict[str, list[str]]) -> list[set[str]]:
    """Return the groups of two or more nodes that all reach each other."""
    reach: dict[str, set[str]] = {}
    for start, targets in edges.items():
        seen: set[str] = set()
        waiting = list(targets)
        while waiting:
            node = waiting.pop()
            if node not in seen:
                seen.add(node)
                waiting.extend(edges.get(node, ()))
        reach[start] = seen
    knots: list[set[str]] = []
    for node, seen in sorted(reach.items()):
        knot = {other for other in seen if node in reach.get(other, ())}
        if knot and not any(node in known for known in knots):
            knots.append(knot)
    return knots


# Purity


def is_pure(module: str) -> bool:
    """Say whether the table promises that this module is pure."""
    for pure in rules.PURE:
        if module == pure.holds:
            return True
        if module.startswith(f"{pure.holds}."):
            below = module.removeprefix(f"{pure.holds}.").partition(".")[0]
            return below not in pure.drivers
    return module == "pytest_elastic"


def impurities(tree: SourceTree) -> list[Finding]:
    """Find effects, and imports of modules that are not pure, in modules that promise to be."""
    found = []
    for source in tree.product():
        if not is_pure(source.module):
            continue
        for imported in source.imports():
            text = _impure_import(imported, source, tree)
            top = imported.module.partition(".")[0]
            if text and (source.module, top) not in rules.PURE_EXCEPT:
                found.append(Finding(path=source.path, line=imported.line, text=text))
        for line, used in _effects_used(source):
            if (source.module, used.partition(".")[0]) not in rules.PURE_EXCEPT:
                text = f"{source.module} is pure and uses {used}"
                found.append(Finding(path=source.path, line=line, text=text))
    return list(dict.fromkeys(found))


def _impure_import(imported: Import, source: Source, tree: SourceTree) -> str | None:
    top = imported.module.partition(".")[0]
    target = tree.ours(imported)
    if target and not imported.typing_only and not is_pure(target):
        return f"{source.module} is pure and imports {target}, which is not"
    if top not in rules.EFFECTS or imported.module == "os.path":
        return None
    if imported.name is None:
        # `import os`: judged by what is used of it, below; `import socket` has nothing harmless.
        return None if rules.EFFECTS[top] else f"{source.module} is pure and imports {top}"
    if _is_harmless(top, imported.name):
        return None
    return f"{source.module} is pure and imports {imported.name} from {top}"


def _is_harmless(module: str, name: str) -> bool:
    if name == "SIG_DFL" or not rules.EFFECTS[module]:
        return False
    return any(fnmatchcase(name, pattern) for pattern in rules.EFFECTS[module])


def _effects_used(source: Source) -> Iterator[tuple[int, str]]:
    """Yield uses of `module.name` that are effects, and of builtins that do input or output."""
    imported = {item.module for item in source.imports() if item.name is None}
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module, name = node.value.id, node.attr
            watched = module in imported and bool(rules.EFFECTS.get(module))
            if watched and not _is_harmless(module, name):
                yield node.lineno, f"{module}.{name}"
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in rules.EFFECT_CALLS:
            yield node.lineno, f"{ast.unparse(node.func)}()"


# Processes


def touched_processes(tree: SourceTree) -> list[Finding]:
    """Find what signals or looks at processes of the harness beside the cluster.

    Nodes may be on other machines, where a pid means another process.
    """
    found = []
    for source in tree.below("elastic_harness"):
        is_in = source.module.startswith(tuple(f"{each}." for each in rules.PROCESSES_IN))
        if is_in or source.module in rules.PROCESSES_EXCEPT:
            continue
        for line, what in _processes_touched(source, tree):
            text = f"{source.module} uses {what}: ask the cluster"
            found.append(Finding(path=source.path, line=line, text=text))
    return found


def _processes_touched(source: Source, tree: SourceTree) -> Iterator[tuple[int, str]]:
    for imported in source.imports():
        if tree.ours(imported) in rules.PROCESS_MODULES:
            yield imported.line, str(tree.ours(imported))
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node) in rules.PROCESS_CALLS:
            yield node.lineno, ast.unparse(node)
        if isinstance(node, ast.Constant) and id(node) not in docstrings:
            yield from [(node.lineno, "/proc")] if "/proc/" in str(node.value) else []


# Expensive imports


def expensive_imports(tree: SourceTree) -> list[Finding]:
    """Find imports of torch and YAML outside the named files, or at the top of a file."""
    found = []
    for importer in rules.IMPORTERS:
        for source in tree.product():
            for imported in source.imports():
                if imported.module.partition(".")[0] != importer.package or imported.typing_only:
                    continue
                text = None
                if source.module not in importer.modules:
                    text = (
                        f"{source.module} imports {importer.package}: only {importer.modules} may"
                    )
                elif not imported.deferred and source.module not in importer.at_top:
                    text = f"{source.module} imports {importer.package} outside a function"
                if text:
                    found.append(Finding(path=source.path, line=imported.line, text=text))
    return found


# Exports


def exports(tree: SourceTree) -> list[Finding]:
    """Find public modules whose `__all__` is missing, not a sorted list, or names nothing."""
    found = []
    for source in tree.product():
        text = _wrong_exports(source) if _has_exports(source) else None
        if text:
            found.append(Finding(path=source.path, line=1, text=f"{source.module} {text}"))
    return found


def _has_exports(source: Source) -> bool:
    if any(part.startswith("_") for part in source.module.split(".")):
        return False
    if any(source.module.startswith(folder) for folder in rules.OUTSIDE_PYTHON_PATH):
        return False
    return any(not name.startswith("_") for name in _defined(source))


def _wrong_exports(source: Source) -> str | None:
    listed: list[str] | None = None
    for node in source.tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            if not isinstance(node.value, ast.List):
                return "has an __all__ that is not a list"
            listed = [ast.literal_eval(item) for item in node.value.elts]
    if listed is None:
        return "has no __all__"
    if listed != sorted(listed, key=_export_order):
        return "has an __all__ that is not sorted (constants, classes, functions)"
    known = _defined(source) | {
        node.asname or node.name.partition(".")[0]
        for statement in source.tree.body
        if isinstance(statement, ast.Import | ast.ImportFrom)
        for node in statement.names
    }
    if missing := [name for name in listed if name not in known]:
        return f"exports {', '.join(missing)}, which it does not define"
    return None


def _export_order(name: str) -> tuple[int, list[tuple[int, int | str]]]:
    """Sort as ruff's RUF022 does: constants, classes, the rest; numbers by value."""
    is_constant = name.isupper() and len(name) > 1
    group = 0 if is_constant else 1 if name[:1].isupper() else 2
    parts = (part for part in re.split(r"(\d+)", name) if part)
    return group, [(0, int(part)) if part.isdigit() else (1, part) for part in parts]


def _defined(source: Source) -> set[str]:
    """Return the names that the top level of a module defines by itself."""
    names: set[str] = set()
    blocks: list[list[ast.stmt]] = [source.tree.body]
    while blocks:
        for node in blocks.pop():
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                names.add(node.name)
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    names |= {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}
            elif isinstance(node, ast.If):
                blocks += [node.body, node.orelse]
            elif isinstance(node, ast.Try):
                blocks += [node.body, node.orelse, *(handler.body for handler in node.handlers)]
    return names


# Tests


def sleeping_tests(tree: SourceTree) -> list[Finding]:
    """Find tests that wait for time to pass instead of for what they need.

    The jobs that tests run are no tests: a step of theirs takes its time.
    """
    found = []
    for source in tree.below("tests"):
        if source.module.startswith("tests.frameworks.programs."):
            continue
        for imported in source.imports():
            if imported.module == "time" and imported.name == "sleep":
                text = f"{source.module} imports time.sleep: wait for the thing itself"
                found.append(Finding(path=source.path, line=imported.line, text=text))
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("time.sleep", "sleep"):
                text = f"{source.module} sleeps: wait for the thing itself"
                found.append(Finding(path=source.path, line=node.lineno, text=text))
    return found
