"""Dials of a played world: towards the leader, and to see whether an agent lives (R5, R13)."""

from __future__ import annotations

from elastic_simulation.process import Direction, Pipe, Process, Surroundings
from pytest_elastic.rendezvous import vocabulary as v

__all__ = ["Connections"]

# How often an agent that does not answer is dialled within the time that a dial has.
_TRIES = 4


class Connections:
    """The dials in one world; a keeper that buries its agent takes `keeper_s` to answer."""

    def __init__(self, world: Surroundings, keeper_s: float) -> None:
        self._world = world
        self._keeper_s = keeper_s
        self._newest: dict[str, int] = {}  # by the incarnation that dials

    # --- towards the leader -------------------------------------------------------------

    def dial(self, process: Process, dial: v.Dial) -> None:
        """Connect a follower, instead of whatever it had or was about to have."""
        self.hang_up(process)
        world = self._world
        number = self._newest[process.node.incarnation] = world.next_id()
        own = process.node
        is_own = (dial.address, dial.port) == (own.address, own.port)
        host = process if is_own and process.leader is not None else None
        world.later(2 * world.draw_latency_s(), self._dialled, process, dial, number, host)

    def hang_up(self, process: Process) -> None:
        """End a follower's connection, or a dial that is under way."""
        pipe, process.pipe = process.pipe, None
        self._newest.pop(process.node.incarnation, None)
        if pipe is not None:
            self._world.close(pipe.up, pipe.down, "closed by the follower")

    def _dialled(self, process: Process, dial: v.Dial, number: int, host: Process | None) -> None:
        world = self._world
        if self._newest.get(process.node.incarnation) != number:
            return  # given up since
        host = host or world.at_port_of(dial)
        outcome = world.outcome(process, host)
        if outcome is v.Outcome.ALIVE:
            pipe = Pipe(world.next_id(), Direction(process, host), Direction(host, process))
            world.pipes[pipe.id] = pipe
            process.pipe = pipe
            process.feed("follower", v.Connected())
            return
        failed = v.DialFailed(reason=f"{host.name}: {outcome.value}", outcome=outcome)
        delay_s = world.config.lease_s if outcome is v.Outcome.SILENT else 0.0
        world.later(delay_s, self._fail, process, failed, number)

    def _fail(self, process: Process, failed: v.DialFailed, number: int) -> None:
        if self._newest.get(process.node.incarnation) == number:
            process.feed("follower", failed)

    # --- whether an agent lives --------------------------------------------------------------

    def probe(self, process: Process, probe: v.Ask, which: str) -> None:
        """Dial an agent, again and again while it is silent, and tell the machine `which`."""
        world = self._world
        delay_s = 2 * world.draw_latency_s()
        until = world.time + delay_s + world.config.lease_s
        world.later(delay_s, self._probed, process, probe, which, until, self._keeper_s)

    def _probed(
        self, process: Process, probe: v.Ask, which: str, until: float, patience_s: float
    ) -> None:
        world = self._world
        suspect = world.by_incarnation[probe.node.incarnation]
        outcome = world.outcome(process, suspect)
        if outcome is v.Outcome.REFUSED and suspect.agent.keeper_alive and patience_s:
            # The keeper holds the port and answers once it is done.
            world.later(patience_s, self._probed, process, probe, which, until, 0.0)
            return
        if outcome is v.Outcome.SILENT and world.time < until - 1e-9:
            redial_s = min(world.config.lease_s / _TRIES, until - world.time)
            world.later(redial_s, self._probed, process, probe, which, until, patience_s)
            return
        said = suspect.follower.voter.status(None) if outcome is v.Outcome.ALIVE else None
        asked = probe.node.incarnation
        process.feed(which, v.Answered(incarnation=asked, outcome=outcome, answer=said))
