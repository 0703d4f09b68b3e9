"""What all nodes must agree on: out of what `--rdzv-conf` said and what the job is (R12, R14).

The launcher, the handler that stock torchrun loads and the simulator each know a job in their own
way, and say the same of it here: a setting that the machines learn is added in one place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import asdict

from pytest_elastic.errors import UsageError
from pytest_elastic.rdzv_conf import FROM_LEASE, RendezvousConf
from pytest_elastic.rendezvous.messages import JoinRequest
from pytest_elastic.wire import Value

__all__ = [
    "QuorumChoice",
    "Settings",
    "choose_quorum",
    "difference",
    "settings_of",
]

# Below this many nodes, only the leader could ever be a majority of what remains.
_FEWEST_NODES = 3
# A leader's own lease is a beat old when it grants one.
_LEAST_BEATS_PER_LEASE = 3


def _has_beats(lease_s: float, beat_interval_s: float, beats: int) -> bool:
    """Tell whether a lease is so many beats long: 1.2 s are three of 0.4 s, whatever floats say."""
    return lease_s >= beats * beat_interval_s * (1 - 1e-9)


class Settings(Value):
    """What all nodes of a job must agree on; compared when they meet (R14).

    All durations in seconds. `beat_interval_s` and `lease_s`: see R6. `last_call_s`: how long a
    first round below max_nodes stays open (R1). `join_timeout_s`: how long a job waits below
    min_nodes. `shutdown_timeout_s`: grace between stop and kill; `failure_grace_s`: that where a
    worker failed or a member was lost, as others may wait for it in a collective (R2).
    `kill_timeout_s`: what killed processes may take to be gone before a member is evicted (R2).
    `min_round_s`: shortest round that counts as progress (R3) and shortest time between rounds made
    for newcomers (R7).
    `newcomer_window_s`: how long, from the first arrival, newcomers are gathered (R7).
    `linger_s`: how long an ending job answers peers (R10). `drift_s` is d of R6: the margin for
    clock drift and killing. `store_timeout_s`: how long group rank 0 may take to open a worker
    store (R8). `quorum`: which voters allow a leader to decide (R12), "coordinator" (itself) or
    "majority" (a majority of the voters of the last record, which also elects a successor).
    `endpoints`: where nodes meet if that is in several places, "" if it is in one (R12).
    """

    run_id: str
    min_nodes: int
    max_nodes: int
    max_restarts: int
    beat_interval_s: float = 1.0
    lease_s: float = 5.0
    drift_s: float = 0.5
    last_call_s: float = 30.0
    join_timeout_s: float = 600.0
    shutdown_timeout_s: float = 30.0
    failure_grace_s: float = 3.0
    kill_timeout_s: float = 60.0
    min_round_s: float = 5.0
    newcomer_window_s: float = 1.0
    linger_s: float = 5.0
    store_timeout_s: float = 1.0
    quorum: str = "coordinator"
    endpoints: str = ""

    def __post_init__(self) -> None:
        if not 1 <= self.min_nodes <= self.max_nodes:
            raise UsageError(
                f"a job of {self.min_nodes} to {self.max_nodes} nodes is impossible: "
                "1 <= MIN <= MAX is expected (--nnodes=MIN:MAX)"
            )
        if not _has_beats(self.lease_s, self.beat_interval_s, 2):
            raise UsageError(
                f"a lease of {self.lease_s:g} s with a beat every {self.beat_interval_s:g} s would "
                "be lost by one late beat: lease must be at least twice the beat interval"
            )
        if self.quorum not in {"coordinator", "majority", "granted"}:
            raise UsageError(
                f"quorum={self.quorum!r} is not known: 'coordinator' or 'majority' is expected"
            )
        if self.has_succession and not _has_beats(
            self.lease_s, self.beat_interval_s, _LEAST_BEATS_PER_LEASE
        ):
            raise UsageError(
                f"a lease of {self.lease_s:g} s with a beat every {self.beat_interval_s:g} s is "
                "too short for quorum=majority, where a leader's own lease is a beat old when "
                "it grants one: lease must be at least three times the beat interval"
            )

    @property
    def has_succession(self) -> bool:
        """Whether the members elect a successor of their leader (R11)."""
        return self.quorum == "majority"

    @property
    def could_be_two(self) -> bool:
        """Whether two groups of nodes could both be large enough for a job (R12)."""
        return 2 * self.min_nodes <= self.max_nodes

    @property
    def is_granted(self) -> bool:
        """Whether an external service, such as etcd, names the leader and may name another."""
        return self.quorum == "granted"

    @property
    def outlives_coordinator(self) -> bool:
        """Whether the job can go on under another leader."""
        return self.has_succession or self.is_granted


class QuorumChoice(NamedTuple):
    """What `Settings.quorum` is, and why (R12)."""

    quorum: str
    reason: str


def choose_quorum(
    conf: RendezvousConf, *, min_nodes: int, max_nodes: int, endpoints: int = 1
) -> QuorumChoice:
    """Decide whether the job goes on without its leader (R12).

    All nodes of a job come to the same, as it depends on nothing but what they must agree on.
    """
    if conf.quorum != "auto":
        return QuorumChoice(conf.quorum, f"--rdzv-conf quorum={conf.quorum} asks for it")
    if max_nodes < _FEWEST_NODES:
        reason = f"of {max_nodes} nodes, none is a majority without the other"
        return QuorumChoice("coordinator", reason)
    if not _has_beats(conf.lease_s, conf.beat_interval_s, _LEAST_BEATS_PER_LEASE):
        reason = f"a lease of {conf.lease_s:g} s is less than {_LEAST_BEATS_PER_LEASE} beats"
        return QuorumChoice("coordinator", reason)
    if endpoints > 1:
        needed = "both" if endpoints == 2 else f"{endpoints // 2 + 1} of {endpoints}"
        reason = f"nothing begins before {needed} endpoints are reached, so there is one job"
        return QuorumChoice("majority", reason)
    if 2 * min_nodes > max_nodes:
        reason = f"of at most {max_nodes} nodes, no two groups have {min_nodes}"
        return QuorumChoice("majority", reason)
    reason = (
        f"with {min_nodes} to {max_nodes} nodes and one endpoint, two groups could both be large "
        "enough; several endpoints, or --rdzv-conf quorum=majority, would let the job outlive it"
    )
    return QuorumChoice("coordinator", reason)


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
    `endpoints` are where nodes meet, as every node writes them (`str`): fewer than two
    need not be agreed on.
    """
    count = len(endpoints)
    choice = choose_quorum(conf, min_nodes=min_nodes, max_nodes=max_nodes, endpoints=count)
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
        endpoints=",".join(map(str, endpoints)) if count > 1 else "",
    )


# What a user says to give each setting its value; what is not here is a setting of --rdzv-conf.
_NODES = "--nnodes"
_OPTIONS = {
    "min_nodes": _NODES,
    "max_nodes": _NODES,
    "max_restarts": "--max-restarts",
    "shutdown_timeout_s": "--shutdown-timeout",
    "failure_grace_s": "--failure-grace",
    "endpoints": "--rdzv-endpoint",
    "last_call_s": "--rdzv-conf last_call_timeout",
    "quorum": "--rdzv-conf quorum (or, without it, what follows from --nnodes and --rdzv-endpoint)",
}
_ONE_ENDPOINT = "a single one"


def difference(request: JoinRequest, settings: Settings, leader: str) -> str | None:
    """Say why a node is not of this job or wants it to be run differently; None if it is fine.

    `leader` is the name of the node that leads, whose settings these are.
    """
    name = request.node.name
    act = f"cannot join run {settings.run_id!r} as node {name!r}: "
    if request.run_id != settings.run_id:
        return act + f"it belongs to run {request.run_id!r}. Another job uses this endpoint."
    expected = asdict(settings)
    if request.settings == expected:
        return None
    theirs, ours = _as_said(request.settings), _as_said(expected)
    # Two nodes that were given no name have that of their host, which may be one.
    is_named = name != leader
    there, here = (name, leader) if is_named else ("this node", "the node that leads")
    # Where the lease is another one, what follows from it is, too.
    is_lease_same = theirs.get(_said("lease_s")) == ours.get(_said("lease_s"))
    explained = set() if is_lease_same else set(map(_said, FROM_LEASE))
    differences = [
        f"{option} is {theirs.get(option, 'unknown')} on {there} "
        f"and {ours.get(option, 'unknown')} on {here}"
        for option in sorted({*ours, *theirs} - explained)
        if theirs.get(option) != ours.get(option)
    ]
    if not differences:
        return None
    return (
        f"{act}its settings differ from those of {here}{', which leads' if is_named else ''}: "
        f"{'; '.join(differences)}. Give all nodes the same options."
    )


def _as_said(values: Mapping[str, float | str]) -> Mapping[str, str]:
    """Return the settings in a join request as a user gives them: by option, as text."""
    said = {
        _said(name): _shown(name, value)
        for name, value in values.items()
        if name != "run_id" and _OPTIONS.get(name) != _NODES
    }
    if "min_nodes" in values and "max_nodes" in values:
        low, high = (_shown(name, values[name]) for name in ("min_nodes", "max_nodes"))
        said[_NODES] = low if low == high else f"{low}:{high}"
    return said


def _said(name: str) -> str:
    """Return the option that gives a setting its value."""
    return _OPTIONS.get(name, f"--rdzv-conf {name.removesuffix('_s')}")


def _shown(name: str, value: float | str) -> str:
    if name == "endpoints":
        return str(value) or _ONE_ENDPOINT
    return f"{value:g}" if isinstance(value, int | float) else str(value)
