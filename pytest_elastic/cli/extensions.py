"""What a project registers by hooks of pytest, for commands that run no tests."""

from __future__ import annotations

import argparse
import importlib.util
import os
from typing import TYPE_CHECKING

from pytest_elastic.errors import UsageError

if TYPE_CHECKING:
    from elastic_harness.cluster.choose import ClusterChoice
    from elastic_harness.cluster.registry import ClusterRegistry
    from elastic_harness.faults.registry import FaultRegistry
    from elastic_harness.history.checkers.registry import Registry
    from elastic_harness.scenario.launchers import Launcher

    from pytest_elastic.plugin.options import ElasticOptions

__all__ = [
    "BUILT_IN_CLUSTERS",
    "add_cluster_option",
    "add_option",
    "find_cluster",
    "find_launcher",
    "registries",
]

# Those that need no pytest to be found, which takes a second.
BUILT_IN_CLUSTERS = ("auto", "namespace", "process")
_HOW_TO_REGISTER = (
    "A kind of cluster is registered by the hook pytest_elastic_register_clusters, a launcher by "
    "pytest_elastic_register_launchers: in a conftest.py that pytest loads here, or in a plugin."
)


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


def add_cluster_option(parser: argparse.ArgumentParser, help: str) -> None:
    """Let a command be told of a kind of cluster."""
    option = parser.add_argument("--cluster", metavar="KIND", help=help)
    # argcomplete asks for it by this name; others are taken too.
    option.completer = lambda **_: BUILT_IN_CLUSTERS  # type: ignore[attr-defined]


def find_cluster(name: str) -> ClusterChoice:
    """Return the cluster of a kind that is built in, or that the project here has registered.

    Raises UsageError where there is no such kind, or where it cannot be had.
    """
    from elastic_harness.cluster.choose import choose_cluster

    if name in BUILT_IN_CLUSTERS:
        return choose_cluster(name)
    clusters, options = _ask_project(f"--elastic-cluster={name}")
    try:
        return clusters.find(name).choose(options)
    except UsageError as error:
        ini = (
            "Here, pytest's options --elastic-... are taken from its ini file: elastic_hosts = FILE"
        )
        raise UsageError(f"--cluster={name}: {error.message}", hint=error.hint or ini) from error


def find_launcher(name: str) -> Launcher:
    """Return a launcher by its name, also one of the project here, or one made from a command."""
    from elastic_harness.scenario.launchers import LAUNCHERS, launcher_named

    if name not in LAUNCHERS.names and " " not in name:
        _ask_project()
    try:
        return launcher_named(name)
    except UsageError as error:
        raise UsageError(error.message, hint=error.hint or _HOW_TO_REGISTER) from error


def _ask_project(*words: str) -> tuple[ClusterRegistry, ElasticOptions]:
    """Let pytest load what it loads when it is called here, and ask what that registers.

    Launchers are known by name from then on; the options are those of the ini file and of `words`.
    Raises UsageError where these are wrong, and where pytest cannot begin: it has said why.
    """
    import pytest
    from elastic_harness.scenario.launchers import LAUNCHERS

    from pytest_elastic.plugin.options import known_clusters, options_of

    found: list[tuple[ClusterRegistry, ElasticOptions]] = []
    wrong: list[str] = []

    class Asking:
        """Ends pytest where a session would begin."""

        @pytest.hookimpl(tryfirst=True)
        def pytest_cmdline_main(self, config: pytest.Config) -> int:
            config.hook.pytest_elastic_register_launchers(registry=LAUNCHERS)
            try:
                found.append((known_clusters(config.hook), options_of(config)))
            except pytest.UsageError as error:
                wrong.append(str(error).replace("--elastic-cluster", "--cluster"))
            return 0

    # Our plugin is needed, wherever plugins are not loaded by themselves.
    pytest.main(["-p", "elastic", *words], plugins=[Asking()])
    if wrong:
        raise UsageError(wrong[0], hint=_HOW_TO_REGISTER)
    if not found:
        raise UsageError(
            "what is registered here is not known: pytest could not begin",
            hint="`pytest --collect-only` has to work here.",
        )
    return found[0]
