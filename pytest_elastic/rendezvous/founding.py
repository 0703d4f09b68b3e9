"""Who may begin a job that has several endpoints (R12): one host's attempt to found it.

Each endpoint's store is hosted by some node, and holds one record. Whoever hosts one may found the
job: it puts its *claim* into every store that it reaches, and once it holds a majority of them and
enough nodes are ready, makes the claims final. Every step is one swap of a store ("if it still
holds this text, let it hold that one"), so that each store gives itself to one founder at most, and
two majorities have a store in common.

    LOOKING    a majority was not reached, or somebody else claims with more right, or has founded
               the job already: looks on
    CLAIMING   claims what it reaches, and renews that; its coordinator gathers nodes, once it has
               a majority
    FOUNDING   nodes are ready: makes claims final
    FOUNDED    a majority of them is: the first round may be sealed, and the job announced
    OVER       this node is in the job

A store that was started again has forgotten what it held. So either all endpoints are held, or each
that counts has held the claim for so long that whoever runs the job would have announced it there.

Nothing here is a matter of clocks but who gives way: a claim may be taken from anybody at any time,
as long as it is not final.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from typing_extensions import assert_never

from pytest_elastic.events.model import EndpointsReached
from pytest_elastic.rendezvous.founding_vocabulary import (
    FOUNDING_ALLOWED,
    Answered,
    Begin,
    Claim,
    Founded,
    FoundingCommand,
    FoundingInput,
    Joined,
    Look,
    Record,
    Stage,
    Swap,
    Wanted,
    Yield,
)
from pytest_elastic.rendezvous.messages import Place
from pytest_elastic.rendezvous.model import Settings
from pytest_elastic.rendezvous.vocabulary import Emit, TimePassed

__all__ = ["FoundingMachine", "announced_within_s", "best_of", "majority_of"]

# How often an endpoint is asked while a job begins: hosts start within a moment of each other.
_ASK_S = 0.1
# For how long that is worth the effort; then once a beat.
_FAST_FOR_S = 10.0
# How much later the host of the next endpoint begins to claim: longer than it takes to do so.
_STAGGER_S = 0.03
_NOT_YET = "it has not answered yet"
# How long a node looks before it says which endpoints it cannot reach: hosts may be starting.
_SAY_AFTER_S = 2.0


def majority_of(endpoints: int) -> int:
    """Return how many endpoints are more than half of them."""
    return endpoints // 2 + 1


def announced_within_s(settings: Settings) -> float:
    """Return how long it takes at most until those who lost their coordinator are heard of.

    They notice with the end of a lease, elect one of them, and that one looks at the endpoints once
    a beat. It holds where they reach each other and the endpoint, and the first election succeeds.
    """
    election_s = settings.lease_s / 2 + settings.beat_interval_s
    return settings.lease_s + settings.drift_s + election_s + settings.beat_interval_s


def best_of(records: Sequence[Record]) -> Record:
    """Return the record to go by: of a job that runs, by the newest; or the most claims."""
    running = [record for record in records if record.claim is None]
    if running:
        return max(running, key=lambda record: record.place.term)
    count = Counter(record.place.incarnation for record in records)

    def right(record: Record) -> tuple[int, int]:
        return count[record.place.incarnation], -(record.claim.rank if record.claim else 0)

    return max(records, key=right)


@dataclass(slots=True, kw_only=True)
class _View:
    """What is known of one endpoint; times are this node's."""

    text: str = ""
    record: Record | None = None
    problem: str = _NOT_YET
    seen_at: float = float("-inf")  # when the newest question was sent that was answered
    changed_at: float = float("-inf")  # since when it has held this text
    held_since: float | None = None  # since when it has held a record of ours without a break
    asked_at: float | None = None  # a question is under way
    ask_at: float = float("-inf")


@dataclass(slots=True)
class _Rival:
    place: Place
    rank: int
    endpoints: set[int] = field(default_factory=set)


class FoundingMachine:
    """Decides for one node that hosts an endpoint: number `rank` of `names`, which are shown.

    `place` is where its coordinator would be, under term 1.
    """

    def __init__(
        self, *, settings: Settings, place: Place, rank: int, names: Sequence[str], now: float
    ) -> None:
        self.stage = Stage.LOOKING
        self._settings = settings
        self._place = place
        self._rank = rank
        self._names = names
        self._began_at = now
        self._views = [_View() for _ in names]
        self._quorum = majority_of(len(names))
        self._has_begun = False
        self._wanted_at = float("-inf")  # when there were nodes enough for a job
        self._job_seen_at = float("-inf")  # when an endpoint has told of one
        self._count = 0
        self._vouching: set[int] = set()
        self._told: tuple[str, ...] | None = None
        self._out: list[FoundingCommand] = []
        self._wake: float | None = None

    def step(self, input: FoundingInput, now: float) -> tuple[FoundingCommand, ...]:
        """Take one input in; return what is to be done, in order."""
        match input:
            case Answered():
                self._take(input, now)
            case Wanted():
                self._wanted_at = now
            case Joined():
                if self.stage not in {Stage.FOUNDED, Stage.OVER}:
                    self._give_way("this node belongs to a job")
                    self._become(Stage.OVER)
            case TimePassed():
                pass
            case _:
                assert_never(input)
        self._wake = None
        self._judge(now)
        if self.stage not in {Stage.FOUNDED, Stage.OVER}:
            for endpoint, view in enumerate(self._views):
                self._ask(endpoint, view, now)
            self._say_what_is_reached(now)
        commands, self._out = tuple(self._out), []
        return commands

    def wake_at(self) -> float | None:
        """Return when `TimePassed` is wanted, or None."""
        return self._wake

    @property
    def standing(self) -> str:
        """Say what the job waits for, as long as it is not founded."""
        held = [self._names[i] for i, view in enumerate(self._views) if self._is_ours(view)]
        wait_s = announced_within_s(self._settings)
        return (
            f"{len(held)} of {len(self._names)} endpoints are ours ({', '.join(held) or 'none'}); "
            f"all of them, or {self._quorum} for {wait_s:g} s, are needed to begin a job"
        )

    # --- what is known -----------------------------------------------------------------------

    def _take(self, answered: Answered, now: float) -> None:
        view = self._views[answered.endpoint]
        asked_at, view.asked_at = view.asked_at, None
        view.ask_at = now + self._interval_s(now)
        view.problem = answered.error
        if answered.error or asked_at is None:
            return
        view.seen_at = asked_at
        if answered.text != view.text:
            view.changed_at = now
        view.text, view.record = answered.text, answered.record
        if not self._is_ours(view):
            view.held_since = None
        elif view.held_since is None:
            view.held_since = now

    def _interval_s(self, now: float) -> float:
        is_held = all(self._is_ours(view) for view in self._views)
        is_young = now < self._began_at + _FAST_FOR_S
        return _ASK_S if is_young and not is_held else self._settings.beat_interval_s

    def _is_ours(self, view: _View) -> bool:
        return view.record is not None and view.record.place == self._place

    def _is_reached(self, view: _View, now: float) -> bool:
        return now <= view.seen_at + self._settings.lease_s

    def _is_final(self, view: _View) -> bool:
        """Tell whether what stands there is more than a claim that may be taken."""
        record = view.record
        return record is not None and (record.claim is None or record.claim.is_final)

    def _rivals(self, now: float) -> list[_Rival]:
        """Return whose claims are renewed, but ours; the first has most right."""
        found: dict[str, _Rival] = {}
        for endpoint, view in enumerate(self._views):
            record = view.record
            if record is None or record.claim is None or self._is_ours(view):
                continue
            is_stale = view.seen_at >= view.changed_at + self._settings.lease_s
            if self._is_reached(view, now) and not is_stale:
                place = record.place
                rival = _Rival(place=place, rank=record.claim.rank)
                found.setdefault(place.incarnation, rival).endpoints.add(endpoint)
        return sorted(found.values(), key=lambda each: (self._is_weak(each), each.rank))

    def _is_weak(self, rival: _Rival) -> bool:
        return len(rival.endpoints) < self._quorum

    def _is_held(self, view: _View, now: float) -> bool:
        """Tell whether an endpoint is ours, as far as can be known."""
        return self._is_ours(view) and self._is_reached(view, now)

    def _holds_majority(self, now: float) -> bool:
        return sum(self._is_held(view, now) for view in self._views) >= self._quorum

    def _is_wanted(self, now: float) -> bool:
        """Tell whether there are nodes enough: that is said again once a beat."""
        return now <= self._wanted_at + 2 * self._settings.beat_interval_s

    def _who_vouches(self, now: float) -> set[int]:
        """Return the endpoints that count, each of which would know of a job that runs.

        None does, whoever holds them all, as long as survivors of a job that was seen may not have
        been heard of.
        """
        held = {i: view for i, view in enumerate(self._views) if self._is_held(view, now)}
        wait_s = announced_within_s(self._settings)
        if not self._is_due(self._job_seen_at + wait_s, now):
            return set()
        if len(held) == len(self._views):
            return set(held)
        return {
            i
            for i, view in held.items()
            if view.held_since is not None and self._is_due(view.held_since + wait_s, now)
        }

    def _is_due(self, deadline: float, now: float) -> bool:
        if now >= deadline:
            return True
        if self._wake is None or deadline < self._wake:
            self._wake = deadline
        return False

    # --- what follows ------------------------------------------------------------------------

    def _become(self, stage: Stage) -> None:
        allowed = FOUNDING_ALLOWED[self.stage]
        assert stage in allowed, f"a founder cannot go from {self.stage} to {stage}"
        self.stage = stage

    def _judge(self, now: float) -> None:
        if self.stage in {Stage.FOUNDED, Stage.OVER}:
            return
        place = self._who_decides(now)
        if place is not None:
            decides = f"{place.name} decides, under term {place.term}"
            self._look_on(f"the job is there already: {decides}")
            return
        if self.stage is Stage.FOUNDING:
            self._watch_founding(now)
            return
        rivals = self._rivals(now)
        if rivals and not self._holds_majority(now):
            first = rivals[0]
            if not self._is_weak(first) or first.rank < self._rank:
                self._look_on(f"{first.place.name} begins the job")
                return
        reached = sum(self._is_reached(view, now) for view in self._views)
        if reached < self._quorum:
            self._look_on(f"only {reached} of {len(self._views)} endpoints can be reached")
            return
        if self.stage is Stage.LOOKING:
            if any(view.problem == _NOT_YET for view in self._views):
                return  # somebody may have claimed it already
            self._become(Stage.CLAIMING)
            for view in self._views:
                view.ask_at = now + self._rank * _STAGGER_S
        if not self._has_begun and self._holds_majority(now):
            self._has_begun = True
            self._out.append(Begin(reason=f"{self._names[self._rank]} is an address of this node"))
        self._vouching = self._who_vouches(now) if self._is_wanted(now) else set()
        if len(self._vouching) >= self._quorum:
            self._become(Stage.FOUNDING)
            for view in self._views:
                view.ask_at = now

    def _watch_founding(self, now: float) -> None:
        views = [self._views[i] for i in self._vouching]
        marked = sum(self._is_ours(view) and self._is_final(view) for view in views)
        if marked >= self._quorum:
            self._become(Stage.FOUNDED)
            self._out.append(Founded())
            return
        if sum(self._is_held(view, now) for view in views) < self._quorum:
            self._become(Stage.CLAIMING)  # what is final is a claim again

    def _who_decides(self, now: float) -> Place | None:
        """Return who runs the job, as an endpoint says that is reached.

        As long as this node is in no job, it looks on: an endpoint that is started again when its
        host has ended, and all who were in the job with it, knows of nothing any more.
        """
        for view in self._views:
            record = view.record
            if record is None or record.claim is not None or self._is_ours(view):
                continue
            if self._is_reached(view, now):
                self._job_seen_at = max(self._job_seen_at, view.seen_at)
                return record.place
        return None

    def _look_on(self, reason: str) -> None:
        if self.stage is not Stage.LOOKING:
            self._give_way(reason)
            self._become(Stage.LOOKING)

    def _give_way(self, reason: str) -> None:
        if self._has_begun:
            self._out.append(Yield(reason=reason))
        self._has_begun = False
        self._wanted_at = float("-inf")

    # --- asking ------------------------------------------------------------------------------

    def _ask(self, endpoint: int, view: _View, now: float) -> None:
        if view.asked_at is not None or not self._is_due(view.ask_at, now):
            return
        view.asked_at = now
        if self.stage is Stage.LOOKING and self._is_ours(view):
            self._out.append(Swap(endpoint=endpoint, expected=view.text, record=None))
        elif self.stage is Stage.FOUNDING and endpoint in self._vouching and self._is_ours(view):
            self._put_claim(endpoint, view, is_final=True)
        elif self.stage is Stage.CLAIMING and self._may_take(view, now):
            self._put_claim(endpoint, view, is_final=False)
        else:
            self._out.append(Look(endpoint=endpoint))

    def _put_claim(self, endpoint: int, view: _View, *, is_final: bool) -> None:
        self._count += 1
        claim = Claim(count=self._count, rank=self._rank, is_final=is_final)
        record = Record(place=self._place, claim=claim)
        self._out.append(Swap(endpoint=endpoint, expected=view.text, record=record))

    def _may_take(self, view: _View, now: float) -> bool:
        """Tell whether an endpoint is free, or held by somebody with less right to it."""
        if view.record is None or self._is_ours(view):
            return self._is_reached(view, now)
        if self._is_final(view):
            return False
        for rival in self._rivals(now):
            if rival.place.incarnation == view.record.place.incarnation:
                return self._is_weak(rival) and rival.rank >= self._rank
        return self._is_reached(view, now)  # nobody renews it

    def _say_what_is_reached(self, now: float) -> None:
        """Say which endpoints are reached, once that is worth it, and whenever it changes."""
        problems = tuple(
            "" if self._is_reached(view, now) else view.problem or "it answers no more"
            for view in self._views
        )
        is_reached = tuple(not problem for problem in problems)
        told = tuple(n for n, is_one in zip(self._names, is_reached, strict=True) if is_one)
        if told == self._told:
            return
        if not all(is_reached) and not self._is_due(self._began_at + _SAY_AFTER_S, now):
            return
        self._told = told
        missing = {n: p for n, p in zip(self._names, problems, strict=True) if p}
        self._out.append(Emit(event=EndpointsReached(reached=told, missing=missing)))
