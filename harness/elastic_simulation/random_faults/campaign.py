"""Many runs: what each seed came to, and what they came to together."""

from __future__ import annotations

import dataclasses
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from elastic_simulation.checks import Violation
from elastic_simulation.machine_agent import MachineAgent
from elastic_simulation.process import PlayedAgent
from elastic_simulation.random_faults.plan import Options, Plan, draw_plan
from elastic_simulation.random_faults.plan_run import Outcome, PlanRun

__all__ = ["AGENTS", "Finding", "Tally", "finding_of", "run_seeds", "shrink"]

AGENTS: dict[str, type[PlayedAgent]] = {"played": PlayedAgent, "machine": MachineAgent}
# One run in so many has every message turned into JSON and back.
_WIRE_SAMPLE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A seed that broke a promise, and how. `where` is the line that noticed it."""

    seed: int
    message: str
    where: str


@dataclass(slots=True, kw_only=True)
class Tally:
    """What some runs came to.

    `counted` are those in which something was done and two rounds were committed: only they are
    schedules; the others are reported apart.
    """

    runs: int = 0
    counted: int = 0
    faults: int = 0
    rounds: int = 0
    virtual_s: float = 0.0
    endings: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """Count a run that kept every promise."""
        self.runs += 1
        self.counted += outcome.counts
        self.faults += outcome.faults
        self.rounds += outcome.rounds
        self.virtual_s += outcome.virtual_s
        self.endings[outcome.ending] += 1

    def merge(self, other: Tally) -> None:
        """Add the counts of another tally."""
        self.runs += other.runs
        self.counted += other.counted
        self.faults += other.faults
        self.rounds += other.rounds
        self.virtual_s += other.virtual_s
        self.endings += other.endings
        self.findings += other.findings


def finding_of(
    plan: Plan, agent_class: type[PlayedAgent] = PlayedAgent, *, checks_wire: bool = False
) -> Outcome | Finding:
    """Carry a plan out; return how it went, or what is wrong with it."""
    try:
        plan_run = PlanRun(plan, agent_class=agent_class, checks_wire=checks_wire)
        outcome = plan_run.run()
        plan_run.world.dissolve()
        return outcome
    except Violation as error:
        return Finding(seed=plan.seed, message=str(error), where=_where(error))
    except Exception as error:  # noqa: BLE001 (a machine that crashes is a finding, not our end)
        text = f"{type(error).__name__}: {error}"
        return Finding(seed=plan.seed, message=text, where=_where(error))


def _where(error: Exception) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{last.filename.rpartition('/')[2]}:{last.lineno}"


def run_seeds(seeds: range, options: Options, agent: str = "played") -> Tally:
    """Run the plans of some seeds."""
    tally = Tally()
    for seed in seeds:
        plan = draw_plan(seed, options)
        result = finding_of(plan, AGENTS[agent], checks_wire=seed % _WIRE_SAMPLE == 0)
        if isinstance(result, Finding):
            tally.runs += 1
            tally.findings.append(result)
        else:
            tally.add(result)
    return tally


def shrink(plan: Plan, is_broken: Callable[[Plan], bool]) -> Plan:
    """Leave out of a plan whatever it breaks a promise without.

    The time of a fault that is left out is kept, so that the others fall when they did.
    """
    for size in (16, 8, 4, 2, 1):
        place = 0
        while place < len(plan.faults):
            smaller = _without(plan, place, place + size)
            if is_broken(smaller):
                plan = smaller
            else:
                place += size
    simplify: tuple[Callable[[Plan], Plan], ...] = (
        lambda each: dataclasses.replace(each, damage=""),
        lambda each: dataclasses.replace(each, jitter_s=0.0),
        lambda each: dataclasses.replace(each, clock_rates=(1.0,) * len(each.clock_rates)),
        lambda each: dataclasses.replace(each, arrivals_s=(0.0,) * len(each.arrivals_s)),
    )
    for simpler in simplify:
        if is_broken(simpler(plan)):
            plan = simpler(plan)
    return plan


def _without(plan: Plan, first: int, end: int) -> Plan:
    left_out = plan.faults[first:end]
    rest = list(plan.faults[end:])
    if rest:
        waited_s = sum(fault.after_s for fault in left_out)
        rest[0] = dataclasses.replace(rest[0], after_s=rest[0].after_s + waited_s)
    return dataclasses.replace(plan, faults=(*plan.faults[:first], *rest))
