"""Give `torch.distributed.run` our launcher in every process with PYTEST_ELASTIC_AS_TORCHRUN=1.

`pytest_elastic_as_torchrun.pth`, which is installed beside the package, calls `install` when such
an interpreter starts. Nothing of torch or of the launcher is loaded then: the module is changed
when it is imported, and only its functions `main` and `run` are. Its parser stays torch's.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType

__all__ = ["install"]

_MODULE = "torch.distributed.run"
_RUN_AS_MAIN = "from pytest_elastic.launcher.as_torchrun import main; main()"


def install() -> None:
    """Have `torch.distributed.run` launch by pytest-elastic, once it is imported here."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder:
    """Finds one module where it would be found anyway, and has its functions replaced."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _MODULE:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Loader(SourceFileLoader):
    """Runs torch's module, then replaces its functions; `python -m` runs ours alone."""

    def exec_module(self, module: ModuleType) -> None:
        SourceFileLoader(self.name, self.path).exec_module(module)
        from pytest_elastic.launcher import as_torchrun

        module.main = as_torchrun.main  # type: ignore[attr-defined]
        module.run = as_torchrun.run  # type: ignore[attr-defined]

    def get_code(self, fullname: str) -> CodeType:
        return compile(_RUN_AS_MAIN, f"<{fullname} of pytest-elastic>", "exec")
