"""The launcher, called from Python: functions as workers, and jobs from a script of one's own.

    from pytest_elastic.launcher import elastic_launch, launch_config

    results = elastic_launch(launch_config(nproc_per_node=2), train)(0.1)

See docs/launching-from-python.md.
"""

from __future__ import annotations

from pytest_elastic.launcher.call import JobFailed, NodeLeft, elastic_launch, launch
from pytest_elastic.launcher.settings import launch_config

__all__ = ["JobFailed", "NodeLeft", "elastic_launch", "launch", "launch_config"]
