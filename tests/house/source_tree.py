"""Read every Python file of a tree once, and find what it imports: never by importing it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

__all__ = ["Function", "Import", "Source", "SourceTree", "read_tree"]

# Where packages start: import name, and its folder in the repository.
PACKAGES = (
    ("pytest_elastic", "pytest_elastic"),
    ("elastic_harness", "harness/elastic_harness"),
    ("elastic_simulation", "harness/elastic_simulation"),
    ("tests", "tests"),
    ("examples", "examples"),
    ("bench", "bench"),
)
_JUDGED = ("pytest_elastic", "elastic_harness", "elastic_simulation")


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """One imported module.

    `name` is what is taken from it, if anything. `deferred`: inside a function. `typing_only`:
    under `if TYPE_CHECKING`.
    """

    line: int
    module: str
    name: str | None
    deferred: bool
    typing_only: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A function or method, with its lines counted without decorators and docstring."""

    line: int
    qualified_name: str
    lines: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One file."""

    path: str
    module: str
    is_package: bool
    text: str
    tree: ast.Module

    def imports(self) -> tuple[Import, ...]:
        """Return every import statement of the file, one for each name."""
        return _imports_of(self)

    def functions(self) -> list[Function]:
        """Return every function of the file."""
        return list(_functions(self.tree, ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTree:
    """All files, by module name."""

    root: Path
    sources: dict[str, Source] = field(default_factory=dict)

    def ours(self, imported: Import) -> str | None:
        """Return the module of this tree that an import means, if it means one of ours."""
        if imported.name and f"{imported.module}.{imported.name}" in self.sources:
            return f"{imported.module}.{imported.name}"
        if imported.module in self.sources:
            return imported.module
        # A file that does not exist yet still lies in the room that its name says.
        top = imported.module.partition(".")[0]
        return imported.module if top in _JUDGED else None

    def product(self) -> Iterator[Source]:
        """Return the sources of our packages, without tests, benches and examples."""
        for source in self.sources.values():
            if source.module.partition(".")[0] in _JUDGED:
                yield source

    def below(self, package: str) -> Iterator[Source]:
        """Return the sources of a package."""
        for source in self.sources.values():
            if source.module == package or source.module.startswith(f"{package}."):
                yield source


def read_tree(root: Path) -> SourceTree:
    """Parse all Python files of the packages below `root`; folders that are missing are fine."""
    sources: dict[str, Source] = {}
    for package, folder in PACKAGES:
        base = root / folder
        for path in sorted(base.rglob("*.py")):
            parts = [package, *path.relative_to(base).with_suffix("").parts]
            is_package = parts[-1] == "__init__"
            module = ".".join(parts[:-1] if is_package else parts)
            text = path.read_text(encoding="utf-8")
            sources[module] = Source(
                path=str(path.relative_to(root)),
                module=module,
                is_package=is_package,
                text=text,
                # As Python 3.10 reads it: the oldest that is supported.
                tree=ast.parse(text, filename=str(path), feature_version=(3, 10)),
            )
    return SourceTree(root=root, sources=sources)


# Every rule about imports asks every file of one tree.
@lru_cache(maxsize=4096)
def _imports_of(source: Source) -> tuple[Import, ...]:
    return tuple(_imports(source.tree, source, deferred=False, typing_only=False))


def _imports(
    node: ast.AST, source: Source, *, deferred: bool, typing_only: bool
) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(
                    line=child.lineno,
                    module=alias.name,
                    name=None,
                    deferred=deferred,
                    typing_only=typing_only,
                )
        elif isinstance(child, ast.ImportFrom):
            for alias in child.names:
                yield Import(
                    line=child.lineno,
                    module=_absolute(child, source),
                    name=alias.name,
                    deferred=deferred,
                    typing_only=typing_only,
                )
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from _imports(child, source, deferred=deferred, typing_only=True)
        elif not isinstance(child, ast.expr):  # which is most of a tree, and holds no import
            inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            yield from _imports(child, source, deferred=deferred or inside, typing_only=typing_only)


def _absolute(statement: ast.ImportFrom, source: Source) -> str:
    if not statement.level:
        return statement.module or ""
    parts = source.module.split(".")
    keep = len(parts) - statement.level + (1 if source.is_package else 0)
    return ".".join([*parts[:keep], *([statement.module] if statement.module else [])])


def _functions(node: ast.AST, inside: str) -> Iterator[Function]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            continue
        name = inside
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{inside}.{child.name}" if inside else child.name
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            first = child.body[0]
            lines = (child.end_lineno or child.lineno) - child.lineno + 1
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                lines -= (first.end_lineno or first.lineno) - first.lineno + 1
            yield Function(line=child.lineno, qualified_name=name, lines=lines)
        yield from _functions(child, name)
