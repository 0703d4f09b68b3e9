"""What `--elastic-cluster=simulated` stands for: the launcher's machines in virtual time."""

from __future__ import annotations

from typing import ClassVar

from elastic_harness.cluster.client import ClusterClient
from elastic_harness.cluster.cluster import CAPABILITIES, Capabilities, Capability
from pytest_elastic.errors import UsageError

__all__ = ["SIMULATED", "SimulatedCluster"]

_CAN = {
    "network": "links are cut, and power is lost in silence; nothing slows or loses packets",
    "names": "names are addresses",
    "pause": "a whole node stands still",
    "private_pids": "there are no processes",
}
SIMULATED = Capabilities(
    tuple(
        Capability(
            name=name,
            available=name in _CAN,
            reason=_CAN.get(name, "simulated nodes are machines of the control plane and no more"),
        )
        for name in CAPABILITIES
    )
)


class SimulatedCluster(ClusterClient):
    """A kind of cluster that has no processes: it runs scenarios and nothing else.

    A scenario is handed to `simulation.run`, which needs no cluster; whoever asks this one to start
    a program gets a UsageError.
    """

    kind: ClassVar[str] = "simulated"

    def __init__(self, *_arguments: object, **_named: object) -> None:
        raise UsageError(
            "a simulated cluster plays scenarios and runs no programs",
            hint="Use a scenario file, or --elastic-cluster=auto.",
        )
