"""What happens to a simulated job, as values: drawn from a seed, written by hand, or shrunk.

A plan names no node: `InjectedFault.who` counts through the nodes that exist when it is injected,
and `InjectedFault.how` chooses among what its kind can do. So a plan stays meaningful when faults
are taken out of it, which is what shrinking does.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import msgspec

from pytest_elastic.rendezvous.settings import Settings

__all__ = ["AIMED", "KINDS", "NAMED", "QUORUMS", "InjectedFault", "Options", "Plan", "draw_plan"]

# What can be done to a world (`faults.py` does it). Each of the first ends a round; the others
# disturb what follows from that.
_ENDS_A_ROUND = (
    "fail",
    "crash",
    "drain",
    "isolate",
    "kill",
    "power",
    "reject",
    "split",
)
_DISTURBS = (
    "back",
    "break",
    "cut",
    "endpoint",
    "freeze",
    "hang",
    "join",
    "lose host",
    "no store",
    "slow",
    "succeed",
    "suspend",
    "turn",
)
# Beat and lease. A coordinator's own lease is a beat old when it grants one (R11).
_PACES = {
    "coordinator": ((0.25, 1.2), (0.5, 1.2), (0.5, 2.0), (1.0, 2.5)),
    "majority": ((0.25, 1.2), (0.4, 1.25), (0.5, 2.0), (0.8, 2.5)),
}
# Mostly as few beats for a lease as there may be: beats are what a run's time goes into.
_BRISK_PACES = ((0.25, 1.2), (0.4, 1.25), (0.4, 1.25), (0.6, 1.9), (0.6, 1.9), (0.8, 2.5))
_PACES["granted"] = _PACES["coordinator"]
QUORUMS: tuple[str, ...] = tuple(_PACES)
KINDS: tuple[str, ...] = tuple(sorted((*_ENDS_A_ROUND, *_DISTURBS)))
# What is done to the leader, at the moment at which it decides, and what makes that worse
# (`aimed.py`). In a draw of their own, and in this order, or plans of known seeds would change.
AIMED: tuple[str, ...] = (
    "beset",
    "lull",
    "on start",
    "on election",
    "on ending",
    "on parting",
    "on proposal",
    "part",
    "slow kill",
)
# Drawn only where they are named: what takes long in virtual time, or needs several endpoints.
NAMED: tuple[str, ...] = ("age", "hosts forget")
# A job that was well for so long is believed to stay so: two beats, or a round of its shortest.
WELL_S = 2.0


# What ends a round for certain.
_LAST = ("crash", "drain", "fail", "kill", "power")
# Of brisk runs, so many leave enough nodes: a job that only waits has not much to be judged by.
_LEFT_ENOUGH = 0.875


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectedFault:
    """One fault: `after_s` since the one before, `who` and `how` as its kind understands them.

    `how` is from 0 (included) to 1 (excluded).
    """

    after_s: float
    kind: str
    who: int = 0
    how: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A job, its surroundings, and what is done to it.

    `arrivals_s` and `clock_rates` have an entry for each node at the start. `latency_s` is what a
    message takes at least, `jitter_s` what it may take beyond, drawn from `seed`. `damage` stays
    when everything else is healed: a node that is "deaf" (hears nothing of the host), "mute" or
    "apart"; the others must go on without it.

    `last` is the kind of one more fault, which comes once a round runs, if no other has ended one.
    With `keeps_enough`, a fault that would leave too few nodes for another round does nothing. A
    job that was well for `well_s` in the quiet period is believed to stay so.
    """

    seed: int
    settings: Settings
    latency_s: float
    jitter_s: float
    arrivals_s: Sequence[float]
    clock_rates: Sequence[float]
    quiet_before_s: float
    damage: str = ""
    last: str = ""
    keeps_enough: bool = False
    well_s: float = WELL_S
    faults: Sequence[InjectedFault]

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of its faults."""
        return frozenset(fault.kind for fault in self.faults)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a draw may choose from; None leaves it to the seed.

    Without `is_swarm` every kind of `kinds` may come in every plan; with it, each plan has a few.
    `is_brisk` is for campaigns: short runs, most of which leave enough nodes for another round.
    Of several `endpoints`, one is on each of the first nodes; then two groups of nodes may be large
    enough for a job. With `is_aimed`, faults of the kinds `AIMED` are added to what is drawn
    without them, some of which is left out.
    """

    nodes: int | None = None
    quorum: str | None = None
    kinds: Sequence[str] = field(default=KINDS)
    is_swarm: bool = True
    is_brisk: bool = False
    endpoints: int = 1
    is_aimed: bool = False


def draw_plan(seed: int, options: Options | None = None) -> Plan:
    """Return the plan of a seed: the same one for the same options."""
    options = options or Options()
    draw = random.Random(seed)
    count = max(options.nodes or draw.randint(2, 5), options.endpoints)
    settings = _draw_settings(
        draw, count, options.quorum or "coordinator", is_brisk=options.is_brisk
    )
    if options.endpoints > 1:
        settings = msgspec.structs.replace(
            settings,
            min_nodes=2,
            max_nodes=max(settings.max_nodes, 4),
            endpoints=",".join(f"n{number + 1}" for number in range(options.endpoints)),
        )
    latency_s = draw.choice([0.0005, 0.005, 0.05])
    jitter_s = draw.choice([0.0, latency_s, 0.05])
    damage = draw.choice(["", "", "", "", "", "deaf", "mute", "apart"])
    quiet_before_s = draw.choice([0.0, 0.5, 1.0] if options.is_brisk else [0.0, 0.5, 2.0])
    arrivals_s = tuple(draw.choice([0.0, draw.random()]) for _ in range(count))
    clock_rates = tuple(draw.uniform(0.93, 1.07) for _ in range(count))
    kinds = list(options.kinds)
    if options.is_swarm:
        enders = [kind for kind in kinds if kind in _ENDS_A_ROUND] or kinds
        wanted = draw.sample(kinds, min(draw.randint(0, 5), len(kinds)))
        kinds = sorted({draw.choice(enders), *wanted})
    # Some runs are short and thick, some long enough for every deadline of the protocol.
    length_s = draw.choice([0.5, 1.0, 2.0, 3.0] if options.is_brisk else [1.0, 2.0, 3.0, 5.0, 10.0])
    pause_s = draw.choice([0.1, 0.3] if options.is_brisk else [0.1, 0.3, 1.0])
    faults: list[InjectedFault] = []
    while (length_s := length_s - (after_s := draw.expovariate(1 / pause_s))) > 0:
        faults.append(_draw_fault(draw, after_s, kinds))
    well_s = WELL_S
    if options.is_brisk:
        well_s = max(2 * settings.beat_interval_s, settings.min_round_s)
    plan = Plan(
        seed=seed,
        last=draw.choice(_LAST) if options.is_brisk else "",
        keeps_enough=options.is_brisk and draw.random() < _LEFT_ENOUGH,
        well_s=well_s,
        settings=settings,
        latency_s=latency_s,
        jitter_s=jitter_s,
        damage=damage,
        quiet_before_s=quiet_before_s,
        arrivals_s=arrivals_s,
        clock_rates=clock_rates,
        faults=tuple(faults),
    )
    return _aim(plan) if options.is_aimed else plan


def _aim(plan: Plan) -> Plan:
    """Return a plan with aimed faults among the others, and time for what is armed."""
    draw = random.Random(f"{plan.seed} aimed")
    others = [kind for kind in AIMED if kind not in {"beset", "lull"}]
    kinds = ["beset", "beset", *draw.sample(others, draw.randint(0, 4))]
    share = draw.choice([0.0, 0.0, 0.3, 1.0])
    timed: list[tuple[float, InjectedFault]] = []
    at = 0.0
    for fault in plan.faults:
        at += fault.after_s
        if draw.random() < share:
            timed.append((at, fault))
    length_s = draw.choice([1.0, 2.0, 4.0])
    for _ in range(draw.randint(1, 6)):
        at = length_s * draw.random()
        timed.append((at, _draw_fault(draw, 0.0, kinds)))
    timed.sort(key=lambda each: each[0])
    end = max(length_s, timed[-1][0]) + draw.choice([0.5, 2.0, 4.0])
    timed.append((end, InjectedFault(after_s=0.0, kind="lull")))
    moments = [0.0, *(at for at, _ in timed)]
    faults = [
        replace(fault, after_s=at - before)
        for before, (at, fault) in zip(moments, timed, strict=False)
    ]
    return replace(plan, faults=tuple(faults))


def _draw_fault(draw: random.Random, after_s: float, kinds: Sequence[str]) -> InjectedFault:
    return InjectedFault(
        after_s=after_s, kind=draw.choice(kinds), who=draw.randrange(64), how=draw.random()
    )


def _draw_settings(draw: random.Random, count: int, quorum: str, *, is_brisk: bool) -> Settings:
    if quorum == "majority":
        # Two groups must not both be large enough, or a host that comes back may begin
        # the job anew beside its survivors (R12).
        minimum = draw.choice([count // 2 + 1, count // 2 + 1, count])
        maximum = draw.choice([2 * minimum - 1, max(minimum, count - 1)])
    else:
        minimum = draw.choice([1, 1, 2, count])
        maximum = draw.choice([count, count + 1, count + 3, max(minimum, count - 1)])
    beat_interval_s, lease_s = draw.choice(_BRISK_PACES if is_brisk else _PACES[quorum])
    return Settings(
        run_id="job",
        min_nodes=minimum,
        max_nodes=maximum,
        max_restarts=draw.choice([0, 1, 1, 3, 3, 8, 8, 8] if is_brisk else [0, 1, 3, 8]),
        beat_interval_s=beat_interval_s,
        lease_s=lease_s,
        drift_s=0.2 + lease_s / 8,  # what the clock rates above can differ by, and the killing
        last_call_s=draw.choice([0.2, 1.0]),
        join_timeout_s=60.0,
        shutdown_timeout_s=1.0,
        failure_grace_s=1.0,
        kill_timeout_s=4.0,
        min_round_s=draw.choice([0.2, 1.0]),
        newcomer_window_s=0.2,
        linger_s=5.0,
        store_timeout_s=1.0,
        quorum=quorum,
    )
