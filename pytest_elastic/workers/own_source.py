"""Which variables a program's own source sets, read and not run.

`os.environ["OMP_NUM_THREADS"] = "4"` above `import torch` is how many scripts choose their threads.
A warm worker has imported torch before its first line: so the source of the program, and of what it
imports from its own folders, is looked through before such a start. This is a reading of texts and
not a proof: what is imported by a computed name, or installed, is not looked at.
"""

from __future__ import annotations

import ast
import os
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

__all__ = ["SetVariable", "sources_of", "variables_set"]

# A program that has more files of its own sets its variables in one of the first.
_MAX_FILES = 64
_MAX_BYTES = 1 << 20
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*\Z")
# Cheap, before anything is parsed: most files set nothing, or name nothing of interest.
_SETS = re.compile(rb"environ|putenv|setenv")
_WORD = re.compile(rb"\b[A-Z][A-Z0-9_]+\b")
_IMPORT = re.compile(
    rb"^[ \t]*(?:from[ \t]+([.\w]+)[ \t]+import[ \t]+([\w, \t]*)|import[ \t]+([\w., \t]+))",
    re.MULTILINE,
)
_READERS = frozenset({"get", "getenv", "getenvb"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SetVariable:
    """A variable's name where it is not merely read: the file ("-c" for a text) and its line."""

    name: str
    file: str
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    variables: Sequence[SetVariable]
    imports: Sequence[str]


def sources_of(target: Sequence[str], cwd: str, folders: Sequence[str]) -> tuple[str, list[str]]:
    """Return the text of a `-c` program, if it is one, and the files that it begins with.

    `target` is the command line behind the interpreter's options; `folders` are where its imports
    are looked for first.
    """
    kind, name = (*target, "", "")[:2]
    if kind == "-c":
        return name, []
    if kind == "-m":
        return "", [*_files_of(f"{name}.__main__", folders)]
    script = os.path.join(cwd, kind)
    return "", [os.path.join(script, "__main__.py") if os.path.isdir(script) else script]


def variables_set(
    text: str, files: Sequence[str], folders: Sequence[str], is_wanted: Callable[[str], bool]
) -> SetVariable | None:
    """Return the first variable of interest that a program may set, if there is one."""
    waiting = [os.path.realpath(file) for file in files]
    seen, names = set(waiting), set[str]()
    sources = [_read(text.encode(errors="replace"), "-c", is_wanted)] if text else []
    for _ in range(_MAX_FILES):
        if not sources and not waiting:
            break
        source = sources.pop() if sources else _read_file(waiting.pop(0), is_wanted)
        if source.variables:
            return source.variables[0]
        for name in source.imports:
            if name in names:
                continue
            names.add(name)
            for file in _files_of(name, folders):
                if file not in seen:
                    seen.add(file)
                    waiting.append(file)
    return None


def _read_file(path: str, is_wanted: Callable[[str], bool]) -> _Source:
    try:
        if not os.path.isfile(path) or os.stat(path).st_size > _MAX_BYTES:
            return _NOTHING
        with open(path, "rb") as file:
            return _read(file.read(), path, is_wanted)
    except (OSError, ValueError):
        return _NOTHING


def _read(code: bytes, path: str, is_wanted: Callable[[str], bool]) -> _Source:
    names = set(_WORD.findall(code)) if _SETS.search(code) else ()
    is_worth_it = any(is_wanted(name.decode()) for name in names)
    variables = _variables_in(code, path) if is_worth_it else ()
    return _Source(
        variables=tuple(variable for variable in variables if is_wanted(variable.name)),
        imports=tuple(dict.fromkeys(_imports_in(code, path))),
    )


def _variables_in(code: bytes, path: str) -> Iterator[SetVariable]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its own making, and told when it is run
            tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return  # it will say so itself
    read = set()
    for node in ast.walk(tree):
        match node:
            case (
                ast.Subscript(slice=ast.Constant() as name, ctx=ast.Load())
                | ast.Compare(left=ast.Constant() as name)
                | ast.Expr(value=ast.Constant() as name)
            ):
                read.add(name)
            case ast.Call(func=function, args=[ast.Constant() as name, *_]):
                called = getattr(function, "attr", getattr(function, "id", ""))
                if called in _READERS:
                    read.add(name)
            case _:
                pass
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str() | bytes() as value) if node not in read:
                text = value if isinstance(value, str) else value.decode(errors="replace")
                if _VARIABLE.match(text):
                    yield SetVariable(name=text, file=path, line=node.lineno)
            case ast.keyword(arg=str() as text) if _VARIABLE.match(text):
                yield SetVariable(name=text, file=path, line=node.value.lineno)
            case _:
                pass


def _imports_in(code: bytes, path: str) -> Iterator[str]:
    """Yield dotted names, as far as a line tells; relative ones as the path of their folder."""
    for base, members, plain in _IMPORT.findall(code):
        if plain:
            yield from (part.split()[0].decode() for part in plain.split(b",") if part.split())
            continue
        dots = len(base) - len(base.lstrip(b"."))
        name = base[dots:].decode()
        if dots:
            folder = path
            for _ in range(dots):
                folder = os.path.dirname(folder)
            name = f"{folder}{os.sep}{name}"
        yield name
        for part in members.split(b","):
            if part.split():
                yield (
                    f"{name}.{part.split()[0].decode()}"
                    if name[-1:] != os.sep
                    else (name + part.split()[0].decode())
                )


def _files_of(name: str, folders: Sequence[str]) -> Iterator[str]:
    """Yield the files that importing a dotted name would run, its packages first."""
    where, _, dotted = name.rpartition(os.sep)
    for folder in [where] if where else folders:
        parts = dotted.split(".")
        for count in range(1, len(parts) + 1):
            stem = os.path.join(folder, *parts[:count])
            for file in (os.path.join(stem, "__init__.py"), f"{stem}.py"):
                if os.path.isfile(file):
                    yield os.path.realpath(file)


_NOTHING = _Source(variables=(), imports=())
