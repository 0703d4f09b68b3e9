"""One run of a plan: its faults are injected, all is healed, and the job must recover."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from elastic_simulation.checks import Violation, Watch
from elastic_simulation.granted import ETCD
from elastic_simulation.process import KILL_S, STOP_S, PlayedAgent
from elastic_simulation.random_faults.faults import inject
from elastic_simulation.random_faults.health import SLOWEST_CLOCK, Health, health_of, seems_over
from elastic_simulation.random_faults.plan import AIMED, InjectedFault, Plan, draw_plan
from elastic_simulation.random_faults.target import Target, can_boot, may_come
from elastic_simulation.world import World
from elastic_simulation.worlds import world_class
from pytest_elastic.events import model as events
from pytest_elastic.rendezvous.leases import announced_within_s

__all__ = ["Outcome", "PlanRun", "finish_what_is_done", "run_plan", "run_seed"]

# The longest honest way back: a lease, a stop with its eviction, a join window, and some rounds.
QUIET_S = 25.0
_LOOK_S = 0.25
# A job whose nodes are well forms within this.
_LAST_WITHIN_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run went: how many faults did something, how many rounds were committed, the end.

    `ending` is how the job ended, or "runs", or "waits" with the exemption for that; `virtual_s` is
    the time that passed in the world.
    """

    faults: int
    rounds: int
    ending: str
    virtual_s: float

    @property
    def counts(self) -> bool:
        """Whether the run tests anything: something was done to it, and two rounds came of it."""
        return self.faults >= 1 and self.rounds >= 2


class PlanRun:
    """One run of a plan."""

    def __init__(
        self,
        plan: Plan,
        *,
        agent_class: type[PlayedAgent] = PlayedAgent,
        keeps_messages: bool = False,
        checks_wire: bool = False,
    ) -> None:
        self.plan = plan
        self.world = world_class(plan.settings)(
            plan.settings,
            checks_wire=checks_wire,
            keeps_messages=keeps_messages,
            agent_class=agent_class,
        )
        self.watch = Watch(self.world)
        self.said: list[tuple[float, str]] = []
        """What was done, in order, with the time."""
        self._faults = 0
        self._has_injected_last = False
        self._left_out = ""  # a node that others must do without
        self._healed_at = float("-inf")
        self._health = Health()
        self._target = Target(
            self.world,
            self.watch,
            stops_at=plan.quiet_before_s + sum(fault.after_s for fault in plan.faults),
            keeps_enough=plan.keeps_enough,
        )
        self._target.tell = self._take_note

    def run(self) -> Outcome:
        """Carry the plan out and judge; raises `Violation` when a promise was broken.

        An exception of any other type comes from a machine, and is a finding too.
        """
        plan, world = self.plan, self.world
        world.latency_s = plan.latency_s
        if plan.jitter_s:
            world.jitter_s = plan.jitter_s
            world.draw = random.Random(plan.seed).random
        for number, (arrival_s, rate) in enumerate(
            zip(plan.arrivals_s, plan.clock_rates, strict=True), start=1
        ):
            world.expected += 1
            world.later(arrival_s, self._starter(f"n{number}", rate))
        world.run(plan.quiet_before_s)
        for fault in plan.faults:
            world.run(fault.after_s)
            self._inject(fault)
        if plan.last:
            self._inject_last()
        self._heal_and_judge()
        return Outcome(
            faults=self._faults,
            rounds=len({assignment.round for _, assignment in world.starts}),
            ending=self._ending(),
            virtual_s=world.time,
        )

    def _inject(self, fault: InjectedFault) -> bool:
        did = inject(self._target, fault)
        if did:
            self._take_note(did)
        return bool(did)

    def _take_note(self, did: str) -> None:
        self._faults += 1
        self.said.append((self.world.time, did))

    def _inject_last(self) -> None:
        """See that the first round ends, if no fault has seen to that."""
        world = self.world
        until = world.time + _LAST_WITHIN_S
        while world.time < until and len({a.round for _, a in world.starts}) < 2:
            if self._end_a_round():
                return
            world.run(_LOOK_S)

    def _end_a_round(self) -> bool:
        """Hit a running node, for another round to follow; tell whether that was done."""
        world, target = self.world, self._target
        if not any(p.agent.progresses for p in world.every_process):
            return False
        kinds = [self.plan.last, "fail"]
        is_fatal = self.plan.keeps_enough and world.config.max_restarts == 0
        if is_fatal:
            kinds.pop()
        for kind in kinds:
            for who in range(len(world.processes)):
                fault = InjectedFault(after_s=0.0, kind=kind, who=who, how=0.5)
                is_meant = kind == "fail" or world.agent(target.pick(fault)).progresses
                if is_meant and self._inject(fault):
                    self._has_injected_last = True
                    return True
        if is_fatal and target.keeps_enough and not target.is_healed and len(world.processes) > 2:
            target.keeps_enough = False  # needed nodes are restarted once all is healed
            return self._end_a_round()
        return False

    def _starter(self, name: str, rate: float) -> Callable[[], None]:
        def start() -> None:
            self.world.expected -= 1
            self.world.start(name, clock_rate=rate)

        return start

    def _heal_and_judge(self) -> None:
        """Heal everything, and expect a job that runs, or an end that has a reason."""
        world = self.world
        self._target.is_healed = True
        world.heal()
        world.is_endpoint_down = False
        self._healed_at = world.time
        for process in world.every_process:
            process.agent.stop_s, process.agent.kill_s = STOP_S, KILL_S
        self._bring_back()
        self._leave_damage()
        self.said.append((world.time, "healed"))
        deadline = world.time + QUIET_S
        well_since: float | None = None
        while True:
            finish_what_is_done(world)
            world.run(_LOOK_S)
            self._health = self._look()
            problem = self._health.problem
            if problem is not None:
                well_since = None
            elif seems_over(world):
                break
            elif well_since is None:
                well_since = world.time
            well_until = None if well_since is None else well_since + self.plan.well_s
            is_well = well_until is not None and world.time >= well_until
            if is_well and world.time >= self._begins_by():
                if not self._is_short_of_rounds() or not self._end_a_round():
                    break
                well_since, deadline = None, world.time + QUIET_S
                continue
            if world.time >= deadline + self._elders_s():
                if problem is None:
                    break
                waited_s = QUIET_S + self._elders_s()
                raise Violation(f"{waited_s:g} s after everything was healed: {problem}")
        self.watch.judge_ends()
        self.watch.judge_budget()
        slowing = {"slow", "freeze", "suspend", "hang", "lose host", *AIMED} & self.plan.kinds
        if not slowing and not world.config.outlives_coordinator:
            self.watch.judge_evictions()

    def _elders_s(self) -> float:
        """Return how much longer a host that found a mark may wait for those who voted (R12)."""
        if not any(self.world.marks.found_by(p) for p in self.world.every_process if p.is_alive):
            return 0.0
        return 2 * announced_within_s(self.world.config) / SLOWEST_CLOCK

    def _is_short_of_rounds(self) -> bool:
        """Tell whether the last fault is still to come: no round has ended yet."""
        is_due = bool(self.plan.last) and not self._has_injected_last
        return is_due and len({a.round for _, a in self.world.starts}) < 2

    def _begins_by(self) -> float:
        """Return when a first round that waits for survivors (R12) is over and has been judged.

        One that waits for new nodes is not waited for: it would take the join timeout.
        """
        delayed = [
            at + event.wait_s / SLOWEST_CLOCK + _LOOK_S
            for at, _, event in self.world.events
            if isinstance(event, events.FirstRoundDelayed)
            and event.wait_s < self.world.config.join_timeout_s
        ]
        return max(delayed, default=0.0)

    def _bring_back(self) -> None:
        """Start as many dead nodes again as the job needs at least."""
        world = self.world
        living = sum(p.is_alive and p.agent.over is None for p in world.every_process)
        dead = [name for name, p in sorted(world.processes.items()) if not p.is_alive]
        if world.host is None or self._target.lost_leader:
            return
        ends = {p.agent.over.result for p in world.every_process if p.agent.over is not None}
        if world.config.outlives_coordinator and ends & {"succeeded", "failed"}:
            return
        if world.config.has_succession:
            # The agent at the endpoint tells newcomers; without it only members go on.
            if not world.host.is_alive and self.plan.seed % 2 and may_come(world):
                self._bring_host_back(world.host.name)
                return
            if not world.host.is_alive:
                return
        elif not world.config.is_granted and world.host.agent.over is not None:
            return
        for name in dead[: max(world.config.min_nodes - living, 0)]:
            if not may_come(world):
                return
            world.start(name)
            self.said.append((world.time, f"back {name}"))

    def _bring_host_back(self, name: str) -> None:
        """Start the endpoint's host again, as soon as its machine can be up."""
        world = self.world
        if not (can_boot(world, name) and may_come(world)):
            world.later(_LOOK_S, self._bring_host_back, name)
        elif not world.processes[name].is_alive:
            world.start(name)
            self.said.append((world.time, f"back {name}"))

    def _leave_damage(self) -> None:
        """Let one node stay out of reach, where enough others are left."""
        world, host = self.world, self.world.host
        alive = sorted(n for n, p in world.processes.items() if p.is_alive)
        names = [n for n in alive if host is not None and n != host.name]
        if host is not None and world.marks.is_at(host.name) and not host.agent.belongs:
            return  # a node that stays silent is taken for lost by a host that comes back (R12)
        if not self.plan.damage or host is None or len(names) < world.config.min_nodes:
            return
        name = names[self.plan.seed % len(names)]
        if world.endpoints is not None:
            hosts = [world.processes.get(each) for each in world.endpoints.names if each != name]
            in_job = [each for each in hosts if each and each.is_alive and each.agent.belongs]
            if 2 * len(in_job) <= len(world.endpoints.names):
                return  # and by hosts that know of no job, where those are most
        # Of all others, those too that are yet to come back.
        others = [*world.processes, ETCD] if world.config.outlives_coordinator else [host.name]
        for other in others:
            if other != name and self.plan.damage != "mute":
                world.cut(other, name)
            if other != name and self.plan.damage != "deaf":
                world.cut(name, other)
        self._left_out = name
        self.said.append((world.time, f"{name} stays {self.plan.damage}"))

    def _look(self) -> Health:
        if any(p.is_alive and p.is_frozen for p in self.world.every_process):
            self._healed_at = self.world.time  # a frozen node can be told nothing either
        return health_of(
            self.world,
            left_out=self._left_out,
            lost_leader=self._target.lost_leader,
            healed_at=self._healed_at,
        )

    def _ending(self) -> str:
        over = {p.agent.over.result for p in self.world.every_process if p.agent.over is not None}
        for result in ("failed", "succeeded", "lost"):
            if result in over:
                return result
        if any(p.agent.progresses for p in self.world.every_process):
            return "runs"
        exemption = self._health.exemption
        return f"waits ({exemption.name.lower()})" if exemption is not None else "waits"


def finish_what_is_done(world: World) -> None:
    """Let the groups of a round succeed once one of them has: they did the same steps.

    There may have been another job before, with rounds of higher numbers but of lower terms.
    """
    agents = [process.agent for process in world.every_process]
    done = [agent.succeeded for agent in agents if agent.succeeded is not None]
    if not done:
        return
    newest = max(done, key=lambda each: (each.term, each.round))
    for agent in agents:
        if agent.assignment is not None and agent.assignment.term == newest.term:
            agent.succeed_in(newest.round)


def run_plan(plan: Plan, agent_class: type[PlayedAgent] = PlayedAgent) -> Outcome:
    """Carry a plan out and judge it; raises `Violation`, or what a machine raised."""
    return PlanRun(plan, agent_class=agent_class).run()


def run_seed(seed: int, agent_class: type[PlayedAgent] = PlayedAgent) -> Outcome:
    """Draw the plan of a seed and run it; raises `Violation` when a promise was broken."""
    return run_plan(draw_plan(seed), agent_class)
