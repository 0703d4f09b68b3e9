"""Faults planted in the machines, to see that the simulator would find them.

Each is one promise taken back: a line of a machine that somebody might get wrong. The suite runs
one seed that is known to find each (`seeds.txt`); the whole search is a command:

    python -m tests.simulation.planted                      every planted fault, up to 10 000 seeds
    python -m tests.simulation.planted no-fencing --seeds 500..2000
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar
from unittest import mock

from elastic_harness.simulation.campaign import Finding, complaint_of
from elastic_harness.simulation.doors import Doors
from elastic_harness.simulation.plan import Options, Plan, draw_plan
from elastic_harness.simulation.played_agent import PlayedAgent
from elastic_harness.simulation.process import Process
from elastic_harness.simulation.storm import run_storm

from pytest_elastic.rendezvous import budget, candidate, founding, mandate, membership, sealing
from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous import round as round_
from pytest_elastic.rendezvous.ballot import Ballot
from pytest_elastic.rendezvous.budget import Budget, EndedRound, Verdict
from pytest_elastic.rendezvous.candidate import Candidate
from pytest_elastic.rendezvous.coordinator import CoordinatorMachine
from pytest_elastic.rendezvous.farewell import Farewell
from pytest_elastic.rendezvous.first_round import FirstRound
from pytest_elastic.rendezvous.gathering import Gathering
from pytest_elastic.rendezvous.link import CoordinatorLink
from pytest_elastic.rendezvous.liveness import HeldLease
from pytest_elastic.rendezvous.mandate import GrantedMandate, MembersMandate
from pytest_elastic.rendezvous.member import MemberMachine, Part
from pytest_elastic.rendezvous.membership import Membership
from pytest_elastic.rendezvous.model import Electorate
from pytest_elastic.rendezvous.part import RoundPart
from pytest_elastic.rendezvous.parting import Parting
from pytest_elastic.rendezvous.round import CommittedRound, SealedRound
from pytest_elastic.rendezvous.sealing import Sealing
from pytest_elastic.rendezvous.succession import Succession

__all__ = ["PLANTED", "SELDOM", "Planted", "find", "finds"]

Patch = tuple[object, str, object]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """One fault: what is wrong, what is replaced by what, and which storms may find it."""

    what: str
    patches: Sequence[Patch]
    options: Options | None = None

    @contextlib.contextmanager
    def planted(self) -> Iterator[None]:
        """Have the fault for a while."""
        with contextlib.ExitStack() as stack:
            for owner, name, value in self.patches:
                stack.enter_context(mock.patch.object(owner, name, value))
            yield


def _nothing(*_arguments: object, **_named: object) -> None:
    """Do nothing."""


def _charge_everything(
    what: Budget, ended: EndedRound | None, roster: tuple[str, ...]
) -> tuple[Verdict, str]:
    verdict, why = budget.judge(what, ended, roster)
    is_wrong = verdict is Verdict.FREE and ended is not None and what.used < what.max_restarts
    return (Verdict.CHARGED if is_wrong else verdict), why


def _before(method: Callable[..., _T], act: Callable[..., object]) -> Callable[..., _T]:
    """Return a method that does something wrong first."""

    def planted(self: object, *arguments: object) -> _T:
        act(self, *arguments)
        return method(self, *arguments)

    return planted


def _after(method: Callable[..., _T], act: Callable[..., object]) -> Callable[..., _T]:
    """Return a method that does something wrong afterwards."""

    def planted(self: object, *arguments: object, **named: object) -> _T:
        result = method(self, *arguments, **named)
        act(self, *arguments, **named)
        return result

    return planted


def _reuse_number(sealing: Sealing, seal: SealedRound, reason: str) -> None:
    del seal, reason
    sealing.newest -= 1


def _forget_the_gate(sealing: Sealing, now: float) -> None:
    sealing._gate = now


def _forget_reports(machine: MemberMachine, *_: object) -> None:
    machine._part._reports.clear()


_on_connection_lost = MemberMachine._on_connection_lost
_take_echo = HeldLease.take_echo


def _do_not_hold_what_stops(machine: MemberMachine, reason: str, now: float) -> None:
    part = machine._part
    was = part.is_held
    part.is_held = was or machine.part is Part.STOPPING
    _on_connection_lost(machine, reason, now)
    if not was and machine.part is Part.STOPPING:
        part.is_held = False


def _leave_round_impatiently(
    machine: MemberMachine, reason: str, now: float, *, as_told: bool = False
) -> None:
    _leave_round(machine, reason, now, as_told=as_told)
    if as_told:
        machine._patient_until = now + machine.settings.join_timeout_s


_leave_round = MemberMachine._leave_round


def _hold_from_the_echo(lease: HeldLease, echo: int, grant_s: float | None = None) -> bool:
    """Count the lease from the newest beat that was sent, whatever came back."""
    if not _take_echo(lease, echo, grant_s):
        return False
    if lease._unanswered:
        lease._held_from = lease._unanswered[-1][1]
    return True


def _too_few(gathering: Gathering, last: CommittedRound | None, now: float) -> None:
    wanted = gathering._settings
    if wanted.min_nodes > 1:
        gathering._settings = dataclasses.replace(wanted, min_nodes=wanted.min_nodes - 1)
    del last, now


def _keep_resting(mandate_: MembersMandate, electorates: Sequence[Electorate]) -> None:
    if electorates:
        _rest_on(mandate_, electorates)


def _tell_nobody(parting: Parting, ending: m.JobEnding, *, is_known_to_all: bool) -> None:
    del ending, is_known_to_all
    parting._may_be_asked = False


def _forget_elder(doors: Doors, process: Process, *_: object) -> None:
    doors._elders.pop(process.node.incarnation, None)


_by_claim = round_.by_claim
_rest_on = MembersMandate.rest_on
# Few kinds of faults each, with succession.
_SWARM = Options(quorum="majority", is_swarm=True)
_BRISK = Options(quorum="majority", is_swarm=True, is_brisk=True)


def _judge_two_or_more(members: Membership) -> float | None:
    return max(members._next_expiry, members._judges_from) if len(members.peers) > 1 else None


def _count_what_is_sealed(sealing: Sealing, *_: object) -> None:
    if sealing.seal is not None:
        used = sealing.seal.message.restart_count
        sealing.budget = dataclasses.replace(sealing.budget, used=used)


# What takes the coordinator away, or makes two sides; nobody comes back or anew.
_SUCCESSION = Options(
    quorum="majority", kinds=("fail", "freeze", "isolate", "lose host", "split", "suspend", "turn")
)

PLANTED: dict[str, Planted] = {
    "no-fencing": Planted(
        what="neither member nor keeper looks at the lease",
        patches=(
            (MemberMachine, "_watch_lease", _nothing),
            (PlayedAgent, "_look_at_lease", _nothing),
        ),
    ),
    "no-start-gate": Planted(
        what="a round is committed while workers of a lost member may run",
        patches=((Sealing, "look", _before(Sealing.look, _forget_the_gate)),),
        options=Options(kinds=("fail", "freeze", "suspend")),
    ),
    "number-reused": Planted(
        what="the number of a round that was given up comes again",
        patches=((Sealing, "_abandon", _after(Sealing._abandon, _reuse_number)),),
    ),
    "everything-charged": Planted(
        what="a change of members costs a restart",
        patches=((sealing, "judge", _charge_everything),),
    ),
    "nothing-charged": Planted(
        what="every round is free",
        patches=((sealing, "judge", lambda *_: (Verdict.FREE, "free")),),
    ),
    "stopping-not-held": Planted(
        what="workers that are being stopped are not held when contact is lost",
        patches=((MemberMachine, "_on_connection_lost", _do_not_hold_what_stops),),
        options=Options(kinds=("fail", "reject", "slow")),
    ),
    "refused-waits": Planted(
        what="a member refused with nothing to kill waits for the join timeout after the end",
        patches=((MemberMachine, "_leave_round", _leave_round_impatiently),),
        options=Options(kinds=("break", "isolate", "lose host", "reject", "split")),
    ),
    "reports-not-repeated": Planted(
        what="news that was lost with a connection is not said again",
        patches=(
            (
                MemberMachine,
                "_on_welcome",
                _before(MemberMachine._on_welcome, _forget_reports),
            ),
        ),
    ),
    "resumes-anything": Planted(
        what="a node may come back into a round that it does not stand by",
        patches=((membership, "resumes", lambda *_: True),),
    ),
    "not-told-again": Planted(
        what="a member that comes back is not told what it has missed",
        patches=((CoordinatorMachine, "_on_back", _nothing),),
        options=Options(kinds=("break", "cut", "fail", "isolate")),
    ),
    "too-few": Planted(
        what="a round is sealed with fewer than min_nodes",
        patches=((Gathering, "look", _before(Gathering.look, _too_few)),),
    ),
    "connection-not-noticed": Planted(
        what="the end of a member's connection suspects nobody and stops nothing",
        patches=((MemberMachine, "_on_connection_lost", _nothing),),
    ),
    "quorum-forgotten": Planted(
        what="a successor needs nobody's vote, and a round nobody's voice",
        patches=(
            (candidate, "has_quorum", lambda *_: True),
            (mandate, "has_quorum", lambda *_: True),
        ),
        options=_SUCCESSION,
    ),
    "granted-for-ever": Planted(
        what="a coordinator goes on deciding when what was granted to it is over",
        patches=((GrantedMandate, "until", lambda *_: float("inf")),),
        options=Options(quorum="granted", kinds=("fail", "freeze", "isolate", "split", "suspend")),
    ),
    "one-peer-not-judged": Planted(
        what="a lost member is waited for without end where it is the only one that is known",
        patches=((Membership, "next_judgement", _judge_two_or_more),),
        options=Options(quorum="granted", is_brisk=True),
    ),
    "spares-begin": Planted(
        what="whoever was told of a round counts as new where a host that is back begins a job",
        patches=((FirstRound, "meet", _nothing),),
        options=Options(quorum="majority", is_brisk=True),
    ),
    "endpoints-minority": Planted(
        what="a job begins where one of several endpoints is reached",
        patches=((founding, "majority_of", lambda _: 1),),
        options=Options(quorum="majority", endpoints=3),
    ),
    "uncommitted-counts": Planted(
        what="a restart is used when its round is sealed, whether that is committed or not",
        patches=((Sealing, "begin", _after(Sealing.begin, _count_what_is_sealed)),),
    ),
    "elder-told-once": Planted(
        what="who was published before a successor is told once, and never looks there itself",
        patches=(
            (Doors, "_announce", _before(Doors._announce, _forget_elder)),
            (Doors, "hear_of", _nothing),
        ),
        options=_SWARM,
    ),
    "claims-without-voices": Planted(
        what="of those who wait, who came first is taken, whoever has a needed voice",
        patches=((round_, "by_claim", lambda peers, last, _: _by_claim(peers, last, ())),),
        options=Options(quorum="majority", is_swarm=False, is_brisk=True),
    ),
    "strangers-forgotten": Planted(
        what="a successor does not expect those to ask for the end whom it never knew",
        patches=((Farewell, "expect_strangers", _nothing),),
        options=_SWARM,
    ),
    "nobody-tells-the-end": Planted(
        what="who has heard the end goes at once, and leaves it to the coordinator to tell others",
        patches=((Parting, "hold", _after(Parting.hold, _tell_nobody)),),
        options=_SWARM,
    ),
    "decider-goes-alone": Planted(
        what="a node that leaves while it has lost the contact to its own coordinator just goes",
        patches=((CoordinatorLink, "must_hand_over", property(lambda _: False)),),
        options=_BRISK,
    ),
    "terms-race": Planted(
        what="whoever follows a coordinator that was refused is refused in turn, for ever",
        patches=(
            (Candidate, "hear_of_term", _nothing),
            (candidate, "_MOST_UNREST", 0),
            (Succession, "refuse_second", _nothing),
        ),
        options=_BRISK,
    ),
    "success-stays": Planted(
        what="a node that leaves waits for its coordinator although its workers have succeeded",
        patches=((RoundPart, "is_idle", property(lambda part: part.is_free)),),
        options=_SWARM,
    ),
}

# Since members check each other before a seal (R13), and whoever follows asks for more than was
# promised (R11.4), some thousand storms have found none of these: either another rule comes before
# what they break, or the moment for it has become too short.
SELDOM: dict[str, Planted] = {
    "endless-mandate": Planted(
        what="a coordinator that no quorum answers goes on deciding",
        patches=((MembersMandate, "until", lambda *_: float("inf")),),
        options=Options(quorum="majority", kinds=("freeze", "isolate", "suspend")),
    ),
    "votes-twice": Planted(
        what="a node forgets for whom it has voted, and in which term",
        patches=((Ballot, "vote", _nothing),),
        options=_SUCCESSION,
    ),
    "refusal-says-nothing": Planted(
        what="nodes whose first round was never committed elect somebody, although another decides",
        patches=((Succession, "hear_of_term", _nothing),),
        options=_SWARM,
    ),
    "lease-from-now": Planted(
        what="a lease runs from the newest beat sent, not from the one that came back",
        patches=((HeldLease, "take_echo", _hold_from_the_echo),),
        options=Options(kinds=("crash", "join", "turn")),
    ),
    "vote-in-contact": Planted(
        what="a node votes for another one while its coordinator is well",
        patches=((Ballot, "_refusal", lambda *_: ""),),
        options=_SUCCESSION,
    ),
    "end-needs-mandate": Planted(
        what="whoever comes after the end gets no lease, as nobody answers any more",
        patches=((MembersMandate, "rest_on", _keep_resting),),
        options=_SWARM,
    ),
}
_ALL = {**PLANTED, **SELDOM}


def _plan(name: str, seed: int) -> Plan:
    return draw_plan(seed, _ALL[name].options)


def finds(name: str, seed: int) -> str:
    """Return what the storm of a seed complains of when a fault is planted, "" for nothing."""
    fault = _ALL[name]
    with fault.planted():
        try:
            run_storm(_plan(name, seed))
        except Exception as error:  # noqa: BLE001 (a machine that crashes is found too)
            return f"{type(error).__name__}: {error}"
    return ""


def find(name: str, seeds: range) -> tuple[int, str] | None:
    """Return the first seed that finds a planted fault, and nothing without it, and what."""
    for seed in seeds:
        complaint = finds(name, seed)
        if complaint and not isinstance(complaint_of(_plan(name, seed)), Finding):
            return seed, complaint
    return None


def main(arguments: Sequence[str]) -> int:
    """Search; the exit code is 1 if a planted fault was not found."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.planted")
    parser.add_argument("names", nargs="*", help=", ".join(PLANTED))
    parser.add_argument("--seeds", default="0..10000", metavar="A..B")
    options = parser.parse_args(arguments)
    first, _, end = options.seeds.partition("..")
    seeds = range(int(first), int(end))
    missed = 0
    for name in options.names or PLANTED:
        began = time.process_time()
        found = find(name, seeds)
        took_s = time.process_time() - began
        missed += found is None
        seed, complaint = found or ("none", "not found")
        line = f"{name:24} seed {seed!s:>6}  {took_s:6.1f} s  {complaint[:100]}"
        sys.stdout.write(line + "\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
