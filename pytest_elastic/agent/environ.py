"""The environment each worker gets: torchrun's variables, key by key, and the round.

The contract is what scripts and libraries read under torchrun 2.13. `PYTEST_ELASTIC_ROUND` and
`PYTEST_ELASTIC_TERM` are ours: they name the membership a worker belongs to, which no variable of
torchrun's does, so that a checkpoint writer can refuse to go back.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence

from pytest_elastic.agent.ranks import WorkerRanks
from pytest_elastic.errors import UsageError
from pytest_elastic.rendezvous.model import Assignment

__all__ = ["visible_device", "worker_environ"]


def worker_environ(
    base: Mapping[str, str],
    assignment: Assignment,
    ranks: WorkerRanks,
    *,
    run_id: str,
    error_file: str | None,
    signals: Sequence[int] = (),
    virtual_local_rank: bool = False,
) -> dict[str, str]:
    """Return the complete environment of one worker: `base` (the agent's own) and what is added.

    With `virtual_local_rank` the worker sees one GPU only, the one that would have been the device
    of its local rank.
    """
    environ = {
        **base,
        "RANK": str(ranks.rank),
        "LOCAL_RANK": str(ranks.local_rank),
        "GROUP_RANK": str(ranks.group_rank),
        "ROLE_RANK": str(ranks.role_rank),
        "ROLE_NAME": ranks.role,
        "LOCAL_WORLD_SIZE": str(ranks.local_world_size),
        "WORLD_SIZE": str(ranks.world_size),
        "GROUP_WORLD_SIZE": str(ranks.group_world_size),
        "ROLE_WORLD_SIZE": str(ranks.role_world_size),
        "MASTER_ADDR": assignment.store_address,
        "MASTER_PORT": str(assignment.store_port),
        "TORCHELASTIC_RESTART_COUNT": str(assignment.restart_count),
        "TORCHELASTIC_MAX_RESTARTS": str(assignment.max_restarts),
        "TORCHELASTIC_RUN_ID": run_id,
        # The worker store is hosted by an agent process and outlives the workers.
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_ERROR_FILE": error_file or "",
        "TORCHELASTIC_SIGNALS_TO_HANDLE": ",".join(signal.Signals(n).name for n in signals),
        "PYTEST_ELASTIC_ROUND": str(assignment.round),
        "PYTEST_ELASTIC_TERM": str(assignment.term),
    }
    if ranks.local_world_size > 1:
        # As torchrun: with several workers on a host, each would otherwise start a thread per core.
        environ.setdefault("OMP_NUM_THREADS", "1")
    if virtual_local_rank:
        environ["LOCAL_RANK"] = "0"
        environ["CUDA_VISIBLE_DEVICES"] = visible_device(base, ranks.local_rank)
    return environ


def visible_device(base: Mapping[str, str], local_rank: int) -> str:
    """Return what CUDA_VISIBLE_DEVICES must be for one worker; raises UsageError if it has none."""
    listed = base.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return str(local_rank)
    devices = [device.strip() for device in listed.split(",")]
    if local_rank >= len(devices):
        raise UsageError(
            f"--virtual-local-rank: local rank {local_rank} has no device, because "
            f"CUDA_VISIBLE_DEVICES={listed} names {len(devices)}"
        )
    return devices[local_rank]
