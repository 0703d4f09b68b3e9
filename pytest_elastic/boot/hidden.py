"""Preloaded modules, out of a program's sight until it imports them.

A fresh interpreter imports torch when the program does, and torch reads its variables then. A warm
one has done so before. So what was preloaded is taken out of `sys.modules`; the import of a module
brings it back, together with what was imported for its sake. Until then a variable that one of them
has read must stay as it was when the program began: if it does not, `Late.missed` is called.

The program's variables are looked at twice. When one is set from Python, as the program can begin
again then (later it may have joined a process group); and when modules come back, which sees
variables that were deleted or that C code has set.
"""

from __future__ import annotations

import copy
import ctypes
import itertools
import os
import sys
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from types import ModuleType
from typing import Any, Protocol

from pytest_elastic.boot import pools
from pytest_elastic.boot.loggers import HiddenLoggers
from pytest_elastic.boot.variables import Reads
from pytest_elastic.boot.warning_filters import HiddenFilters

__all__ = ["HiddenModules", "Late"]


class Late(Protocol):
    """What a program does about a variable that it sets after what is preloaded has read it."""

    @property
    def libraries(self) -> Mapping[str, Container[str]]:
        """What modules have read but by Python."""

    def begin(self) -> None:
        """Note the process, as its program is about to begin."""

    def started(self, threads: int) -> None:
        """Note threads that modules have started, which came back."""

    def missed(self, variable: str) -> None:
        """Begin again, or return."""


class HiddenModules:
    """The finder that brings them back; the first on `sys.meta_path` until all are back."""

    def __init__(self, reads: Reads, *, is_visible: Callable[[str], bool]) -> None:
        """Hide what was imported, but for what `is_visible`, and what such a module imported."""
        # New texts lie together: a child that puts them back writes into what it shares.
        names = {name: name.encode().decode() for name in (*reads.imported_by, *sys.modules)}
        self._imported_by = {
            names[name]: names.get(by, "") for name, by in reads.imported_by.items()
        }
        self.modules: dict[str, ModuleType] = {}
        for name in [name for name in sys.modules if self._was_imported(name)]:
            is_module = isinstance(sys.modules[name], ModuleType)
            if is_module and not any(map(is_visible, self._importers(name))):
                self.modules[names[name]] = sys.modules.pop(name)
        self._needs: dict[str, list[str]] = {}
        for name in (*self._imported_by, *self.modules):
            by = self._imported_by.get(name, name.rpartition(".")[0])
            self._needs.setdefault(names.get(by, by), []).append(name)
        self._attributes: dict[str, ModuleType] = {}  # of what packages have lost a module
        self._found: set[str] = set()  # what was asked for since it was last looked at
        for name in self.modules:
            self._detach(name)
        self._loggers = HiddenLoggers(
            {
                name: self._hidden_importer(names.get(maker, maker))
                for name, maker in reads.loggers.items()
            }
        )
        self._filters = HiddenFilters(
            reads.filters, lambda name: self._hidden_importer(names.get(name, name)), self.modules
        )
        self._first = next((name for name in self._imported_by if name in self.modules), "")
        self._reads: dict[str, list[Container[str]]] = {}
        self._add_reads(reads.names)
        self._late: Late | None = None
        self._variables: dict[str, str] = {}
        self._putenv = os.putenv
        if self.modules:
            sys.meta_path.insert(0, self)

    # --- a program -----------------------------------------------------------------------------

    def watch(self, late: Late) -> None:
        """Look, from now on, whether this process changes a variable that a hidden module read."""
        if not self.modules:
            return
        late.begin()
        self._late = late
        self._add_reads(late.libraries)
        self._variables = _variables()
        process = os.getpid()

        def putenv(name: bytes | str, value: bytes | str) -> None:
            self._putenv(name, value)
            # A child that was forked may be about to execute something; what it imports is seen.
            if os.getpid() == process:
                self._look(self._reads, {os.fsdecode(name)})

        os.putenv = putenv  # type: ignore[assignment]

    def find_spec(
        self, name: str, _path: object = None, _target: object = None
    ) -> ModuleSpec | None:
        """Return the specification of a hidden module, whose loader brings it back."""
        module = self.modules.get(name)
        if module is None:
            return None
        self._found.add(name)
        known = getattr(module, "__spec__", None)
        is_its_own = isinstance(known, ModuleSpec) and known.name == name
        spec = copy.copy(known) if is_its_own else ModuleSpec(name, None)
        spec.loader = _Loader(self, name, module)  # type: ignore[union-attr]
        return spec

    def give_back(self, name: str) -> None:
        """Put a module back, and what was imported for it; does not return if it begins again."""
        names = self._needed_for(name)
        self._look(names)
        for each in names:
            self._reads.pop(each, None)
        self.modules.pop(name, None)
        # Who waits for a module to be imported hears of it: those that are asked before us.
        finders: Any = list(itertools.takewhile(lambda each: each is not self, sys.meta_path))
        claimed = [
            spec
            for each in (names if finders else ())
            if each in self.modules and (spec := self._claimed(each, finders)) is not None
        ]
        those = {each.name for each in claimed}
        # What the program has put there itself stays: another module of that name, or None.
        given = {
            each: module
            for each in names
            if each not in those
            and each not in sys.modules
            and (module := self.modules.get(each)) is not None
        }
        sys.modules.update(given)
        # Not before: another thread may be looking for one of them.
        for each in given:
            self.modules.pop(each, None)
        for each in names if self._attributes else ():
            if (package := self._attributes.pop(each, None)) is not None:
                module = sys.modules.get(each, self.modules.get(each))
                if module is not None:
                    setattr(package, each.rpartition(".")[2], module)
        back = {**given, name: sys.modules[name]}
        if crunchers := {each: back[each] for each in pools.LIBRARIES if each in back}:
            # A fresh process begins their threads here, with the signals and processors of now.
            started = pools.resize(os.environ, crunchers)
            if self._late is not None:
                self._late.started(started)
        self._loggers.give_back(self.modules)
        self._filters.give_back(self.modules)
        for spec in claimed:
            assert spec.loader is not None, "it stands before the loader that we have given it"
            spec.loader.exec_module(module_from_spec(spec))
        if not self.modules:
            self._leave()

    # --- what belongs together -----------------------------------------------------------------

    def _was_imported(self, name: str) -> bool:
        """Tell whether a module came with an import: its own, or that of a library around it."""
        while name and name not in self._imported_by:
            name = name.rpartition(".")[0]
        return bool(name)

    def _importers(self, name: str) -> Iterable[str]:
        """Yield a module, what imported it, what imported that, and so on."""
        while name:
            yield name
            name = self._imported_by.get(name) or (
                "" if name in self._imported_by else name.rpartition(".")[0]
            )

    def _hidden_importer(self, name: str) -> str:
        """Return the hidden module for which a module was imported, maybe itself, or nothing."""
        return next((each for each in self._importers(name) if each in self.modules), "")

    def _add_reads(self, reads: Mapping[str, Container[str]]) -> None:
        """Note what modules have read: until the hidden one is back that imported them, or is one.

        Of what none of them has imported, a program could only know with the first.
        """
        for reader, variables in reads.items():
            by = self._hidden_importer(reader) or self._first
            self._reads.setdefault(by, []).append(variables)

    def _detach(self, name: str) -> None:
        """Take a module off its package, where that may be back before it.

        That is where it was imported neither for it, nor for the outermost package around both.
        """
        package, _, attribute = name.rpartition(".")
        found = self.modules.get(package) or sys.modules.get(package)
        if (
            found is not None
            and {package, name.partition(".")[0]}.isdisjoint(self._importers(name))
            and found.__dict__.get(attribute) is self.modules[name]
        ):
            delattr(found, attribute)
            self._attributes[name] = found

    def _needed_for(self, name: str) -> list[str]:
        found: dict[str, None] = {}
        waiting = [name]
        while waiting:
            each = waiting.pop()
            if each not in found:
                found[each] = None
                waiting += self._needs.get(each, ())
                if (package := each.rpartition(".")[0]) in self.modules:
                    waiting.append(package)
        return list(found)

    def _claimed(self, name: str, finders: Iterable[Any]) -> ModuleSpec | None:
        """Return what a finder makes of our specification of a module, if one wants to hear of it.

        One that finds the file by itself, as pytest's does for `test_*.py`, would have it executed
        anew.
        """
        package = name.rpartition(".")[0]
        parent = self.modules.get(package) or sys.modules.get(package)
        path = getattr(parent, "__path__", None)
        for finder in finders:
            self._found.discard(name)
            spec: ModuleSpec | None = finder.find_spec(name, path, None)
            if spec is not None:
                is_ours = name in self._found or name not in self.modules
                return spec if is_ours else None
        return None

    def _look(self, names: Collection[str], variables: Collection[str] = ()) -> None:
        """Say which variable is not as these modules have read it, if there is one."""
        if self._late is None:
            return
        now, start = _variables(), self._variables
        for variable in sorted(variables or {*now, *start}):
            if now.get(variable) == start.get(variable):
                continue
            if any(variable in read for name in names for read in self._reads.get(name, ())):
                start.pop(variable, None)  # it is told of once
                if variable in now:
                    start[variable] = now[variable]
                self._late.missed(variable)

    def _leave(self) -> None:
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
        if self._late is not None and getattr(os.putenv, "__module__", "") == __name__:
            os.putenv = self._putenv
        self._late = None
        self._loggers.leave()


class _Loader:
    """In the place of a hidden module's own loader, which does the rest."""

    def __init__(self, hidden: HiddenModules, name: str, module: ModuleType) -> None:
        self._hidden, self._name, self._module = hidden, name, module
        self._own = {each: getattr(module, each, None) for each in ("__spec__", "__loader__")}

    def __getattr__(self, attribute: str) -> Any:  # noqa: ANN401 (whatever its own loader has)
        return getattr(self._own["__loader__"], attribute)

    def create_module(self, _spec: object) -> ModuleType:
        return self._module

    def exec_module(self, _module: object) -> None:
        # The import system has put its own there.
        vars(self._module).update(self._own)
        sys.modules[self._name] = self._module
        self._hidden.give_back(self._name)


def _variables() -> dict[str, str]:
    """Return the environment as C has it."""
    table: Any = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
    # No pointer at all is an empty table.
    entries = itertools.takewhile(lambda entry: entry is not None, table) if table else ()
    pairs = (os.fsdecode(entry).partition("=") for entry in entries)
    return {name: value for name, _, value in pairs}
