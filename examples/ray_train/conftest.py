"""Ray Train as a launcher under test: a Ray over all nodes, and a script on the first."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from elastic_harness.scenario.launchers import Launcher

if TYPE_CHECKING:
    from elastic_harness.scenario.launchers import LauncherRegistry

LAUNCH = Path(__file__).with_name("launch.py")


def pytest_elastic_register_launchers(registry: LauncherRegistry) -> None:
    """Add it, as `launcher: ray-train`."""
    words = ("$python", str(LAUNCH), "$endpoint", "$address", "$nproc", "$bare_program")
    registry.add(Launcher(name="ray-train", command=words))
