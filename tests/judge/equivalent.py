"""Changes of the judges' source that make no difference, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["EQUIVALENT", "Equivalent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Equivalent:
    """A change that no test can notice: the lines before and after, with single spaces."""

    file: str
    old: str
    new: str
    why: str


EQUIVALENT: Final[tuple[Equivalent, ...]] = (
    Equivalent(
        file="history/checkers/safety",
        old="if world.formed_at is None and (missing := unexplained_ranks(history, world)):",
        new="if (missing := unexplained_ranks(history, world)):",
        why="the second condition is false of a round that formed",
    ),
    Equivalent(
        file="history/checkers/safety",
        old="first = min(newer, key=lambda world: world.progressed_at or 0.0)",
        new="first = min(newer, key=lambda world: world.progressed_at)",
        why="every round in the list has progressed: the other value is for the type checker",
    ),
    Equivalent(
        file="history/checkers/safety",
        old="first = min(newer, key=lambda world: world.progressed_at or 0.0)",
        new="first = min(newer, key=lambda world: world.progressed_at or -1.0)",
        why="every round in the list has progressed: the other value is for the type checker",
    ),
    Equivalent(
        file="history/checkers/safety",
        old="first = min(newer, key=lambda world: world.progressed_at or 0.0)",
        new="first = min(newer, key=lambda world: world.progressed_at or 1.0)",
        why="every round in the list has progressed: the other value is for the type checker",
    ),
    Equivalent(
        file="history/checkers/safety",
        old="limit = first.progressed_at or 0.0",
        new="limit = first.progressed_at",
        why="every round in the list has progressed: the other value is for the type checker",
    ),
    Equivalent(
        file="history/checkers/safety",
        old="limit = first.progressed_at or 0.0",
        new="limit = first.progressed_at or -1.0",
        why="every round in the list has progressed: the other value is for the type checker",
    ),
    Equivalent(
        file="history/checkers/safety",
        old="limit = first.progressed_at or 0.0",
        new="limit = first.progressed_at or 1.0",
        why="every round in the list has progressed: the other value is for the type checker",
    ),
    Equivalent(
        file="history/checkers/safety",
        old="break",
        new="continue",
        why="only the first late step of all is looked at",
    ),
    Equivalent(
        file="history/checkers/conduct",
        old=("over = {entry.node for entry in _launcher_exits(history) if entry.seq < ended.seq}"),
        new=("over = {entry.node for entry in _launcher_exits(history) if entry.seq <= ended.seq}"),
        why="no two records have one number",
    ),
    Equivalent(
        file="history/checkers/conduct",
        old="if entry.seq < end and isinstance(entry.event, NodeStarted | NodeStopped):",
        new="if entry.seq <= end and isinstance(entry.event, NodeStarted | NodeStopped):",
        why="no two records have one number",
    ),
    Equivalent(
        file="history/checkers/conduct",
        old="proof.insert(0, decided.seq)",
        new="proof.insert( -1, decided.seq)",
        why="of a list of one, both are the first place",
    ),
    Equivalent(
        file="history/checkers/conduct",
        old=("exits = [e for e in _launcher_exits(history) if ended is None or e.seq < ended.seq]"),
        new=(
            "exits = [e for e in _launcher_exits(history) if ended is None or e.seq <= ended.seq]"
        ),
        why="no two records have one number",
    ),
    Equivalent(
        file="history/checkers/consistent",
        old="if entry.at < worker.newest.at - _ROUNDING_S:",
        new="if entry.at <= worker.newest.at - _ROUNDING_S:",
        why="a rounding of floats has no side of its own",
    ),
    Equivalent(
        file="history/checkers/consistent",
        old="if not since - _ROUNDING_S <= step.began_at <= entry.at + _ROUNDING_S:",
        new="if not since - _ROUNDING_S <= step.began_at < entry.at + _ROUNDING_S:",
        why="a rounding of floats has no side of its own",
    ),
    Equivalent(
        file="history/checkers/consistent",
        old="if not since - _ROUNDING_S <= step.began_at <= entry.at + _ROUNDING_S:",
        new="if not since - _ROUNDING_S < step.began_at <= entry.at + _ROUNDING_S:",
        why="a rounding of floats has no side of its own",
    ),
    Equivalent(
        file="history/checkers/consistent",
        old="is_here = other.node == worker.node and other.hello_seq < worker.hello_seq",
        new="is_here = other.node == worker.node and other.hello_seq <= worker.hello_seq",
        why="no two records have one number",
    ),
    Equivalent(
        file="history/checkers/consistent",
        old="is_gone = other.gone_seq is not None and other.gone_seq < worker.hello_seq",
        new="is_gone = other.gone_seq is not None and other.gone_seq <= worker.hello_seq",
        why="no two records have one number",
    ),
    Equivalent(
        file="history/checkers/consistent",
        old='if event.role == "launcher" and (ended is None or entry.seq < ended.seq):',
        new='if event.role == "launcher" and (ended is None or entry.seq <= ended.seq):',
        why="no two records have one number",
    ),
    Equivalent(
        file="history/checkers/consistent",
        old="if started is not None and entry.at < started.at - _ROUNDING_S:",
        new="if started is not None and entry.at <= started.at - _ROUNDING_S:",
        why="a rounding of floats has no side of its own",
    ),
    Equivalent(
        file="history/checkers/consistent",
        old=(
            "if closed is not None and entry.at > closed.at + _ROUNDING_S and entry.seq < "
            "closed.seq:"
        ),
        new=(
            "if closed is not None and entry.at >= closed.at + _ROUNDING_S and entry.seq < "
            "closed.seq:"
        ),
        why="a rounding of floats has no side of its own",
    ),
    Equivalent(
        file="history/checkers/consistent",
        old=(
            "if closed is not None and entry.at > closed.at + _ROUNDING_S and entry.seq < "
            "closed.seq:"
        ),
        new=(
            "if closed is not None and entry.at > closed.at + _ROUNDING_S and entry.seq <= "
            "closed.seq:"
        ),
        why="no two records have one number",
    ),
    Equivalent(
        file="history/checkers/consistent",
        old="if after.at < before.at - _ROUNDING_S:",
        new="if after.at <= before.at - _ROUNDING_S:",
        why="a rounding of floats has no side of its own",
    ),
    Equivalent(
        file="history/checkers/liveness",
        old="if ended is None or entry.seq < ended.seq",
        new="if ended is None or entry.seq <= ended.seq",
        why="no two records have one number",
    ),
    Equivalent(
        file="history/judge",
        old=(
            "entry for entry in (*clauses, *history.of_kind(FaultPlanned)) if entry.seq < ended.seq"
        ),
        new=(
            "entry for entry in (*clauses, *history.of_kind(FaultPlanned)) if entry.seq <= "
            "ended.seq"
        ),
        why="no two records have one number",
    ),
    Equivalent(
        file="history/verdict",
        old="_BADNESS = {Outcome.VALID: 0, Outcome.UNKNOWN: 1, Outcome.INVALID: 2}",
        new="_BADNESS = {Outcome.VALID: -1, Outcome.UNKNOWN: 1, Outcome.INVALID: 2}",
        why="only the order counts",
    ),
    Equivalent(
        file="history/verdict",
        old="_BADNESS = {Outcome.VALID: 0, Outcome.UNKNOWN: 1, Outcome.INVALID: 2}",
        new="_BADNESS = {Outcome.VALID: 0, Outcome.UNKNOWN: 1, Outcome.INVALID: 3}",
        why="only the order counts",
    ),
    Equivalent(
        file="scenario/engine/clauses",
        old="if (deadline := self.deadline) is None or self.base is None:",
        new="if (deadline := self.deadline) is None:",
        why="what the type checker asks for has been seen to hold before",
    ),
    Equivalent(
        file="scenario/engine/clauses",
        old="if deadline is None or self.base is None or self.within_s is None:",
        new="if self.base is None or self.within_s is None:",
        why="what the type checker asks for has been seen to hold before",
    ),
    Equivalent(
        file="scenario/engine/clauses",
        old="if deadline is None or self.base is None or self.within_s is None:",
        new="if deadline is None or self.within_s is None:",
        why="what the type checker asks for has been seen to hold before",
    ),
    Equivalent(
        file="scenario/engine/clauses",
        old="if deadline is None or self.base is None or self.within_s is None:",
        new="if deadline is None or self.base is None:",
        why="what the type checker asks for has been seen to hold before",
    ),
    Equivalent(
        file="scenario/engine/clauses",
        old="if deadline is None or self.base is None or self.within_s is None:",
        new="if deadline is None or self.base is None and self.within_s is None:",
        why="what the type checker asks for has been seen to hold before",
    ),
    Equivalent(
        file="scenario/engine/clauses",
        old="if deadline is None or self.base is None or self.within_s is None:",
        new="if deadline is None and self.base is None or self.within_s is None:",
        why="what the type checker asks for has been seen to hold before",
    ),
    Equivalent(
        file="scenario/engine/clauses",
        old="if until is None or self.base is None or now < until or self.watcher is None:",
        new="if until is None or now < until or self.watcher is None:",
        why="what the type checker asks for has been seen to hold before",
    ),
    Equivalent(
        file="scenario/engine/clauses",
        old="if until is None or self.base is None or now < until or self.watcher is None:",
        new="if until is None or self.base is None or now < until:",
        why="what the type checker asks for has been seen to hold before",
    ),
    Equivalent(
        file="scenario/engine/clauses",
        old="elif self.base is None or self.watcher is None:",
        new="elif self.base is None:",
        why="what has begun has a watcher",
    ),
    Equivalent(
        file="history/checkers/consistent",
        old=(
            "if found is None or found[0].round is None or entry.event.world_size != "
            "found[0].world_size:"
        ),
        new="if found is None or entry.event.world_size != found[0].world_size:",
        why="a worker of a round without a number is moved to where its group is",
    ),
    Equivalent(
        file="history/checkers/samples",
        old="if known is None or start is None or known.step != start + known.count:",
        new="if known is None or known.step != start + known.count:",
        why="where rounds are compared, a worker with steps that does not resume is not judged",
    ),
    Equivalent(
        file="history/checkers/final_state",
        old="for rank, (state, other) in enumerate(zip(states, wanted, strict=True)):",
        new="for rank, (state, other) in enumerate(zip(states, wanted, strict=False)):",
        why="another number of ranks was looked for before",
    ),
    *(
        Equivalent(
            file=file,
            old=old,
            new="<=".join(old.rsplit("<", 1)),
            why="whether it is looked once more at the very moment of a deadline is no matter",
        )
        for file, old in (
            ("faults/proof", "while not is_last and context.now() < deadline:"),
            ("faults/workers/stall", "while context.now() < deadline:"),
            (
                "faults/workers/worker",
                (
                    "while (code := context.exit_code_of(process)) is None and "
                    "context.now() < deadline:"
                ),
            ),
            (
                "faults/links/foreign_bytes",
                (
                    "while context.visits(id).closed < context.visits(id).wanted and "
                    "context.now() < until:"
                ),
            ),
        )
    ),
    Equivalent(
        file="faults/workers/stall",
        old="if turns < _TURNS:",
        new="if turns <= _TURNS:",
        why="after the third turn the fault is proven, and what is said then is not told",
    ),
    Equivalent(
        file="faults/links/toxic",
        old="**checked_attributes(self.type, self._attributes(), all_of_them=True),",
        new="**checked_attributes(self.type, self._attributes(), all_of_them=False),",
        why="what goes together was checked when the file was read",
    ),
)
