"""One node's part in a rendezvous that torch's interface describes, decided here.

torch's `RendezvousHandler` forms rounds, and says that a node waits or that all is over; nothing
else. What our agents need beyond that (the nodes of a round, its number, restarts, a worker store,
the reason why it ended) the members tell each other through the store that comes with each round.
A lost node cannot be noticed: as under torchrun, that shows when workers of the others fail.

    OPENING ──► JOINING ──► SEALED ──► RUNNING ──► STOPPING ──► JOINING
                                          └──► LEAVING ──► OVER

Every member of a round sees the same entries, and the number of the round, its restart count and
whether the budget allows it are computed from them alone: so all come to the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import msgspec
from msgspec.structs import replace
from typing_extensions import assert_never

from pytest_elastic.backends.bridge_vocabulary import (
    Ask,
    BridgeCommand,
    BridgeInput,
    Emit,
    Formed,
    HandlerFailed,
    HandlerReady,
    HostLost,
    News,
    Notify,
    StoreKnown,
)
from pytest_elastic.events import model as events
from pytest_elastic.exit_codes import exit_text
from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous.model import Assignment, Failure, Node, no_restart_left

__all__ = ["ALLOWED", "BridgeMachine", "Phase"]

# Rounds in a row that may fall apart while they form: members that die between two steps of it.
_MAX_ATTEMPTS = 5


class Phase(Enum):
    """What this node is doing."""

    OPENING = "opening"
    JOINING = "joining"
    SEALED = "sealed"
    RUNNING = "running"
    STOPPING = "stopping"
    LEAVING = "leaving"
    OVER = "over"


ALLOWED: dict[Phase, frozenset[Phase]] = {
    Phase.OPENING: frozenset({Phase.JOINING, Phase.OVER}),
    Phase.JOINING: frozenset({Phase.JOINING, Phase.SEALED, Phase.OVER}),
    Phase.SEALED: frozenset({Phase.RUNNING, Phase.JOINING, Phase.OVER}),
    Phase.RUNNING: frozenset({Phase.STOPPING, Phase.LEAVING, Phase.OVER}),
    Phase.STOPPING: frozenset({Phase.JOINING, Phase.LEAVING, Phase.OVER}),
    Phase.LEAVING: frozenset({Phase.OVER}),
    Phase.OVER: frozenset(),
}


class BridgeMachine:
    """Decides for one node; `step` is the only way to change it."""

    def __init__(
        self, *, node: Node, max_restarts: int, shutdown_timeout_s: float, failure_grace_s: float
    ) -> None:
        self.phase = Phase.OPENING
        self._node = node
        self._max_restarts = max_restarts
        self._shutdown_timeout_s = shutdown_timeout_s
        self._failure_grace_s = failure_grace_s
        self._assignment: Assignment | None = None
        self._used = 0
        self._failure: Failure | None = None  # of our workers, in the last round
        self._why_ended = ""
        self._attempts = 0
        self._out: list[BridgeCommand] = []

    def step(self, given: BridgeInput) -> tuple[BridgeCommand, ...]:
        """Take one input; return what to do, in order."""
        if self.phase is not Phase.OVER:
            self._handle(given)
        out, self._out = tuple(self._out), []
        return out

    def _handle(self, given: BridgeInput) -> None:
        match given:
            case HandlerReady():
                self._join()
            case HandlerFailed():
                self._on_failed(given)
            case Formed():
                self._on_formed(given)
            case StoreKnown():
                self._on_store_known(given)
            case News():
                self._on_news(given)
            case HostLost(reason=reason):
                self._end("lost", reason)
            case ports.StoreOpened():
                if self.phase is Phase.SEALED and given.round == self._round:
                    self._ask("publish_store", address=given.address, port=given.port)
            case ports.StoreFailed():
                if self.phase is Phase.SEALED and given.round == self._round:
                    self._ask("break_round", reason=given.reason)
                    self._join()
            case ports.GroupSucceeded(round=round_):
                if self.phase is Phase.RUNNING and round_ == self._round:
                    self._ask("mark_done")
            case ports.GroupFailed():
                self._on_group_failed(given)
            case ports.WorkersGone(round=round_):
                self._on_workers_gone(round_)
            case ports.DrainRequested(reason=reason):
                self._on_drain(reason)
            case _:
                assert_never(given)

    @property
    def _round(self) -> int:
        """The newest round that this node was a member of."""
        return self._assignment.round if self._assignment is not None else 0

    @property
    def _size(self) -> int:
        return len(self._assignment.roster) if self._assignment is not None else 0

    def _become(self, phase: Phase) -> None:
        assert phase in ALLOWED[self.phase], f"a node cannot go from {self.phase} to {phase}"
        self.phase = phase

    # --- a round forms -------------------------------------------------------------------------

    def _join(self) -> None:
        self._become(Phase.JOINING)
        node = self._node
        entry = {
            "name": node.name,
            "incarnation": node.incarnation,
            "slots": node.slots,
            "role": node.role,
            "round": self._round,
            "size": self._size,
            "used": self._used,
            "why": self._why_ended,
            "failure": None if self._failure is None else msgspec.to_builtins(self._failure),
        }
        self._ask("join", entry=entry)

    def _on_failed(self, failed: HandlerFailed) -> None:
        if self.phase is Phase.OPENING:
            self._end("lost" if failed.kind == "lost" else "refused", failed.reason)
        elif failed.kind == "peers" and self._attempts < _MAX_ATTEMPTS:
            self._attempts += 1
            self._join()
        elif failed.is_all_done:
            self._end("succeeded", "the workers of all nodes succeeded")
        elif failed.over is not None:
            self._end_as_told(failed.over)
        elif failed.kind == "spare":
            self._end("succeeded", "the job is over, and this node was never needed")
        else:
            self._end("lost", failed.reason)

    def _on_formed(self, formed: Formed) -> None:
        self._become(Phase.SEALED)
        try:
            roster = _roster(formed.entries)
            last = max(int(entry["round"]) for entry in formed.entries)
            used = max(int(entry["used"]) for entry in formed.entries)
            failures = [Failure(**entry["failure"]) for entry in formed.entries if entry["failure"]]
            is_same = all(
                entry["round"] == last and entry["size"] == len(roster) for entry in formed.entries
            )
            why = next((str(entry["why"]) for entry in formed.entries if entry["why"]), "it ended")
        except (KeyError, TypeError, ValueError) as error:
            reason = f"a member of the round is no node of pytest-elastic: {error!r}"
            self._end("refused", f"{reason}; all nodes of a job run the same launcher")
            return
        # A node that left or came is free; one that is there again has restarted.
        is_charged = bool(failures) and is_same and last > 0
        if is_charged and used >= self._max_restarts:
            self._failure = failures[0]
            self._end("failed", self._all_used_up(failures[0]))
            return
        if formed.group_rank == 0 and last > 0:
            self._emit(
                events.RoundEnded(
                    round=last, reason=why, charged=is_charged, restarts_used=used + is_charged
                )
            )
        self._used = used + is_charged
        self._failure, self._why_ended, self._attempts = None, "", 0
        # Without an address yet: that comes with the store.
        self._assignment = Assignment(
            round=last + 1,
            term=1,
            roster=roster,
            group_rank=formed.group_rank,
            restart_count=self._used,
            max_restarts=self._max_restarts,
            store_address="",
            store_port=0,
        )
        if formed.group_rank != 0:
            self._ask("await_store", round=self._round)
            return
        self._emit(
            events.RoundSealed(
                round=self._round,
                term=1,
                roster=tuple(entry.name for entry in roster),
                spares=(),
                restart_count=self._used,
                reason="torch's handler formed it",
            )
        )
        self._ask("watch", round=self._round)
        self._notify(
            ports.OpenStore(round=self._round, world_size=sum(entry.slots for entry in roster))
        )

    def _on_store_known(self, store: StoreKnown) -> None:
        if self.phase is not Phase.SEALED or self._assignment is None:
            return
        self._assignment = replace(
            self._assignment, store_address=store.address, store_port=store.port
        )
        self._become(Phase.RUNNING)
        self._notify(ports.StartWorkers(assignment=self._assignment))

    # --- it runs, and ends ---------------------------------------------------------------------

    def _on_news(self, news: News) -> None:
        if self.phase not in (Phase.RUNNING, Phase.SEALED) or news.round != self._round:
            return
        if news.is_all_done:
            self._ask("finish")
            self._end("succeeded", "the workers of all nodes succeeded")
        elif news.over is not None:
            self._end_as_told(news.over)
        elif news.is_closed:
            self._end("lost", "another node closed the rendezvous, and did not say why")
        elif self.phase is Phase.SEALED:
            return  # it starts, and is stopped the orderly way
        elif news.broken is not None:
            self._stop(news.broken, self._failure_grace_s)
        elif news.waiting and not news.is_some_done:
            noun = "node waits" if news.waiting == 1 else "nodes wait"
            self._stop(f"{news.waiting} {noun} to join", self._shutdown_timeout_s)

    def _on_group_failed(self, failed: ports.GroupFailed) -> None:
        if self.phase is not Phase.RUNNING or failed.round != self._round:
            return
        assert self._assignment is not None, "workers run in a round"
        own = self._assignment.roster[self._assignment.group_rank]
        self._failure = first = replace(failed.failures[0], node=own.name)
        if self._used >= self._max_restarts:
            reason = self._all_used_up(first)
            over = {"result": "failed", "reason": reason, "failure": msgspec.to_builtins(first)}
            self._ask("end", over=over)
            self._end("failed", reason)
            return
        how = exit_text(first.exit_code)
        reason = f"rank {first.rank} on {first.node} failed ({how})"
        self._ask("break_round", reason=reason)
        self._stop(reason, self._failure_grace_s)

    def _stop(self, reason: str, grace_s: float) -> None:
        self._become(Phase.STOPPING)
        self._why_ended = reason
        self._notify(ports.StopWorkers(round=self._round, grace_s=grace_s, reason=reason))

    def _on_workers_gone(self, round_: int) -> None:
        if round_ != self._round:
            return
        if self.phase is Phase.STOPPING:
            self._join()
        elif self.phase is Phase.LEAVING:
            self._ask("break_round", reason=f"{self._node.name} left")
            self._end("drained", "left when its workers were gone")

    def _on_drain(self, reason: str) -> None:
        if self.phase in (Phase.RUNNING, Phase.STOPPING):
            self._become(Phase.LEAVING)
            return
        if self.phase is Phase.SEALED:
            self._ask("break_round", reason=f"{self._node.name} left")
        self._end("drained", reason)

    def _all_used_up(self, first: Failure) -> str:
        how, left = exit_text(first.exit_code), no_restart_left(self._max_restarts)
        return f"rank {first.rank} on {first.node} failed ({how}), and {left}"

    def _end_as_told(self, over: Mapping[str, Any]) -> None:
        try:
            self._failure = Failure(**over["failure"]) if over["failure"] else None
            self._ask("part")
            self._end(str(over["result"]), str(over["reason"]))
        except (KeyError, TypeError) as error:
            self._end("lost", f"a member said how the job ended, and cannot be read: {error!r}")

    def _end(self, result: str, reason: str) -> None:
        self._become(Phase.OVER)
        self._notify(
            ports.JobOver(
                result=result,
                reason=reason,
                first_failure=self._failure if result == "failed" else None,
            )
        )

    def _ask(self, call: str, **arguments: object) -> None:
        self._out.append(Ask(call=call, arguments=arguments))

    def _notify(self, notice: ports.Notice) -> None:
        self._out.append(Notify(notice=notice))

    def _emit(self, event: events.Event) -> None:
        self._out.append(Emit(event=event))


def _roster(entries: Sequence[Mapping[str, Any]]) -> tuple[Node, ...]:
    """Return the roster, with names that no two have: several agents may share a host's."""
    taken: dict[str, int] = {}
    roster = []
    for entry in entries:
        name = str(entry["name"])
        taken[name] = taken.get(name, 0) + 1
        roster.append(
            Node(
                name=name if taken[name] == 1 else f"{name}-{taken[name]}",
                incarnation=str(entry["incarnation"]),
                address=str(entry["address"]),
                slots=int(entry["slots"]),
                role=str(entry["role"]),
            )
        )
    return tuple(roster)
