"""What installed packages give launchers: names of backends, and classes that place output."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Final

from elastic_harness.history.parameters import did_you_mean
from elastic_harness.scenario.checks.finding import Finding
from elastic_harness.scenario.checks.option_checks import read_options
from elastic_harness.scenario.model import Scenario

__all__ = ["check_packages"]

# Backends of both launchers; and the launchers that are known to look for no others, or classes,
# than those of packages.
_BACKENDS: Final = ("c10d", "static", "etcd", "etcd-v2", "etcd-v3", "pytest-elastic")
_OPEN_TO_PACKAGES: Final = (None, "pytest-elastic", "torchrun", "torchrun-best")


def check_packages(scenario: Scenario) -> Iterator[Finding]:
    """Yield a backend that neither launcher has, nor any package, and a class that no package has.

    The packages are those of this interpreter, which runs the launchers too.
    """
    job = scenario.job
    if job.launcher not in _OPEN_TO_PACKAGES:
        return
    name = job.rdzv.backend
    if name not in _BACKENDS:
        known = dict.fromkeys((*_BACKENDS, *_names_in("torchrun.handlers")))
        if name not in known:
            yield Finding(
                path=("job", "rdzv", "backend"),
                message=f"there is no backend {name!r}",
                suggestion=did_you_mean(name, known),
            )
    for each in read_options(job):
        if each.name == "--logs-specs" and each.value:
            classes = _names_in("torchrun.logs_specs")
            if each.value not in classes:
                yield Finding(
                    path=each.path,
                    message=f"--logs-specs={each.value}: no package has a class of that name",
                    suggestion=did_you_mean(each.value, classes) if classes else None,
                )


def _names_in(group: str) -> list[str]:
    return [found.name for found in entry_points(group=group)]
