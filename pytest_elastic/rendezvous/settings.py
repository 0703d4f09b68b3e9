"""What all nodes must agree on, out of what `--rdzv-conf` said and what the job is.

Pure. The launcher, the handler that stock torchrun loads and the simulator each know a job in their
own way, and say the same of it here: a setting that the machines learn is added in one place.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_elastic.rdzv_conf import RendezvousConf
from pytest_elastic.rendezvous.model import Settings
from pytest_elastic.rendezvous.quorum import QuorumChoice, choose_quorum

__all__ = ["quorum_of", "settings_of"]


def settings_of(
    conf: RendezvousConf,
    *,
    run_id: str,
    min_nodes: int,
    max_nodes: int,
    max_restarts: int,
    shutdown_timeout_s: float,
    failure_grace_s: float,
    endpoints: Sequence[object] = (),
) -> Settings:
    """Return the settings of a job's machines; raises UsageError for what cannot be together.

    `shutdown_timeout_s` is the grace between stop and kill, `failure_grace_s` that after a failure.
    `endpoints` are where nodes meet, as
    every node writes them (`str`): with fewer than two, nobody needs to agree on them.
    """
    choice = quorum_of(conf, min_nodes=min_nodes, max_nodes=max_nodes, endpoints=len(endpoints))
    return Settings(
        run_id=run_id,
        min_nodes=min_nodes,
        max_nodes=max_nodes,
        max_restarts=max_restarts,
        beat_interval_s=conf.beat_interval_s,
        lease_s=conf.lease_s,
        drift_s=conf.drift_s,
        last_call_s=conf.last_call_s,
        join_timeout_s=conf.join_timeout_s,
        shutdown_timeout_s=shutdown_timeout_s,
        failure_grace_s=failure_grace_s,
        kill_timeout_s=conf.kill_timeout_s,
        min_round_s=conf.min_round_s,
        newcomer_window_s=conf.newcomer_window_s,
        linger_s=conf.linger_s,
        store_timeout_s=conf.store_timeout_s,
        quorum=choice.quorum,
        endpoints=",".join(map(str, endpoints)) if len(endpoints) > 1 else "",
    )


def quorum_of(
    conf: RendezvousConf, *, min_nodes: int, max_nodes: int, endpoints: int
) -> QuorumChoice:
    """Return who allows a coordinator to decide, and why (R12), with so many endpoints."""
    return choose_quorum(
        conf.quorum,
        min_nodes=min_nodes,
        max_nodes=max_nodes,
        beat_interval_s=conf.beat_interval_s,
        lease_s=conf.lease_s,
        endpoints=endpoints,
    )
