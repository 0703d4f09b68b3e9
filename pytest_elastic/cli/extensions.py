"""What a user's conftest.py registers, for commands that run no pytest."""

from __future__ import annotations

import argparse
import importlib.util
import os
from typing import TYPE_CHECKING

from pytest_elastic.errors import UsageError

if TYPE_CHECKING:
    from elastic_harness.faults.registry import FaultRegistry
    from elastic_harness.history.checkers.registry import Registry

__all__ = ["add_option", "registries"]


def add_option(parser: argparse.ArgumentParser) -> None:
    """Let a command be told of files with hooks."""
    parser.add_argument(
        "--conftest",
        metavar="FILE",
        action="append",
        default=[],
        help="a conftest.py whose hooks register faults and checkers of your own (repeatable)",
    )


def registries(paths: list[str]) -> tuple[FaultRegistry, Registry]:
    """Return the faults and checkers there are; raises UsageError for a file that has none."""
    from elastic_harness.faults.registry import built_in_faults
    from elastic_harness.history.checkers.library import standard_checkers

    faults, checkers = built_in_faults(), standard_checkers()
    hooks = {
        "pytest_elastic_register_faults": faults,
        "pytest_elastic_register_checkers": checkers,
    }
    for number, path in enumerate(paths):
        spec = importlib.util.spec_from_file_location(f"elastic_conftest_{number}", path)
        if spec is None or spec.loader is None or not os.path.isfile(path):
            raise UsageError(f"--conftest={path}: there is no Python file of that name")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for name, registry in hooks.items():
            if (hook := getattr(module, name, None)) is not None:
                hook(registry=registry)
    return faults, checkers
