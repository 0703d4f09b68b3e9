"""What a script may tell the harness, in one line; harmless where there is no harness.

    from elastic_harness.observe import report_step

    report_step(step)      # after the optimizer's step: this many steps are done

Not needed with optimizers of torch: those of Adam's family count steps in their state, and of
others (plain SGD) the parameters that a script begins with tell which step it goes on from. Said
before the first step of the optimizer, it tells where the script resumes; a script that steps
without an optimizer of torch says that with `report_resume(step)`. The probe lives in its own
module, put into the process by the harness; these only look whether it is there. `report_worker`
loads it, where the harness could not know that the process would be a worker.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

__all__ = ["report_resume", "report_samples", "report_step", "report_worker"]


def report_step(step: int) -> None:
    """Say that `step` steps are done, counted over the whole training."""
    if (probe := sys.modules.get("elastic_probe")) is not None:
        probe.report_step(step)


def report_resume(step: int) -> None:
    """Say that `step` steps were done before this process began, counted like those it reports."""
    if (probe := sys.modules.get("elastic_probe")) is not None:
        probe.report_resume(step)


def report_samples(
    indices: Sequence[int], *, epoch: int | None = None, loader: str = "", size: int | None = None
) -> None:
    """Say which samples the next step uses, for a script that uses no DataLoader.

    `size` is the number of samples in the whole data set, `loader` tells several data sets apart.
    """
    if (probe := sys.modules.get("elastic_probe")) is not None:
        probe.report_samples(indices, epoch=epoch, loader=loader, size=size)


def report_worker() -> None:
    """Say that this process is a worker now, where its launcher gave it a rank after its start.

    Ray Train does; with launchers that start a process for each rank nothing is to be said.
    """
    if "ELASTIC_PROBE_SOCKET" not in os.environ or "elastic_probe" in sys.modules:
        return
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "probe")
    sys.path.insert(0, folder)
    try:
        import elastic_probe  # type: ignore[import-not-found,unused-ignore]
    finally:
        sys.path.remove(folder)
    elastic_probe.start(folder)
