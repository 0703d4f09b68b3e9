"""The faults that are planted: each is one promise taken back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from elastic_simulation.granted import Etcd
from elastic_simulation.inquiries import Inquiries
from elastic_simulation.marks import Marks
from elastic_simulation.process import PlayedAgent, Process
from elastic_simulation.random_faults.plan import Options

from pytest_elastic.backends import granted_registry
from pytest_elastic.rendezvous import budget, candidate, founding, mandate, membership, sealing
from pytest_elastic.rendezvous import messages as m
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
from pytest_elastic.rendezvous.mark import Survivors
from pytest_elastic.rendezvous.member import MemberMachine, Part
from pytest_elastic.rendezvous.membership import Membership
from pytest_elastic.rendezvous.part import RoundPart
from pytest_elastic.rendezvous.parting import Parting
from pytest_elastic.rendezvous.peer import Peer
from pytest_elastic.rendezvous.round import CommittedRound, SealedRound
from pytest_elastic.rendezvous.sealing import Sealing
from pytest_elastic.rendezvous.succession import Succession
from pytest_elastic.rendezvous.telling import Telling
from tests.simulation.planted_aimed import PLANTED_AIMED
from tests.simulation.planting import Planted, after, before, drawn, nobody, nothing

__all__ = ["PLANTED"]


def _charge_everything(
    what: Budget, ended: EndedRound | None, roster: tuple[str, ...]
) -> tuple[Verdict, str]:
    verdict, why = budget.judge(what, ended, roster)
    is_wrong = verdict is Verdict.FREE and ended is not None and what.used < what.max_restarts
    return (Verdict.CHARGED if is_wrong else verdict), why


def _free_for_any_change(ended: EndedRound, following: set[str]) -> bool:
    return set(ended.roster) != following


def _evict_as_lost(members: Membership, peer: Peer, reason: str, now: float) -> None:
    members._drop(peer, "evicted", reason, members._lease_end(peer), now)


def _reuse_number(sealing: Sealing, seal: SealedRound, reason: str) -> None:
    del seal, reason
    sealing.newest -= 1


def _forget_the_gate(sealing: Sealing, now: float) -> None:
    sealing._gate = now


def _forget_reports(machine: MemberMachine, *_: object) -> None:
    machine._part._reports.clear()


_on_connection_lost = MemberMachine._on_connection_lost


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


def _hold_from_now(lease: HeldLease, now: float) -> None:
    if lease.held_until is not None:
        lease.hold_from(now)


def _too_few(gathering: Gathering, last: CommittedRound | None, now: float) -> None:
    wanted = gathering._settings
    if wanted.min_nodes > 1:
        gathering._settings = dataclasses.replace(wanted, min_nodes=wanted.min_nodes - 1)
    del last, now


def _too_few_from_the_start(machine: CoordinatorMachine, *, now: float, **_: object) -> None:
    machine._gathering._too_few_since = now


_campaign = Etcd.campaign


def _named_again(etcd: Etcd, value: str, ttl_s: float) -> Mapping[str, object]:
    key = etcd.key
    answer = dict(_campaign(etcd, value, ttl_s))
    if key is not None and etcd.key is not None and answer["is_won"]:
        etcd.key = dataclasses.replace(key, until=etcd.key.until)
        answer |= {"create_revision": key.created, "lease": key.lease}
    return answer


def _tell_nobody(parting: Parting, ending: m.JobEnding, *, unaware: Sequence[str] | None) -> None:
    del ending, unaware
    parting._may_be_asked = False


def _forget_the_end(farewell: Farewell, _: float) -> None:
    farewell._members.ended = None


def _greet_unless_finished(machine: CoordinatorMachine, *given: object) -> None:
    if not machine._farewell._is_finished:
        _on_hello(machine, *given)  # type: ignore[arg-type]  # what it is given


def _forget_elder(inquiries: Inquiries, process: Process, *_: object) -> None:
    inquiries._elders.pop(process.node.incarnation, None)


def _endorsed_by_nobody(gathering: Gathering, roster: Sequence[Peer]) -> Sequence[Peer] | None:
    return None if _find_endorsers(gathering, roster) else ()


_find_endorsers = Gathering._find_endorsers
_on_hello = CoordinatorMachine._on_hello
# Few kinds of faults each, with succession.
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

# Of two under one term the one that was published first stays, and hears nothing of the other.
_ONE_IS_PUBLISHED = (
    (Inquiries, "gives_way", lambda _, published, place: published.term < place.term),
)

# The endpoint's host comes back, and new nodes with it.
_HOST_IS_BACK = drawn("back", "join", "kill", "isolate", nodes=3)

# What a judge says of a broken promise.
_TWO_WORLDS = "two worlds run at once"
_NOT_THE_SAME = "is not the same for all"
_STUCK = r"of \[.*\] go on"
_UNAWARE = "have not noticed that the job is over"
_GIVEN_UP = "given up, though every node did as told"

_NOTHING_CHANGED = "nothing had changed"

PLANTED: dict[str, Planted] = {
    "no-fencing": Planted(
        what="neither member nor keeper looks at the lease",
        breaks=_TWO_WORLDS,
        patches=(
            (MemberMachine, "_watch_lease", nothing),
            (PlayedAgent, "_look_at_lease", nothing),
        ),
    ),
    "no-start-gate": Planted(
        what="a round is committed while workers of a lost member may run",
        breaks=_TWO_WORLDS,
        patches=((Sealing, "look", before(Sealing.look, _forget_the_gate)),),
        options=Options(kinds=("fail", "freeze", "suspend")),
    ),
    "number-reused": Planted(
        what="the number of a round that was given up comes again",
        breaks=_NOT_THE_SAME,
        patches=((Sealing, "_abandon", after(Sealing._abandon, _reuse_number)),),
    ),
    "everything-charged": Planted(
        what="a change of members costs a restart",
        breaks=r"restarts for|its members changed",
        patches=((sealing, "judge", _charge_everything),),
    ),
    "nothing-charged": Planted(
        what="every round is free",
        breaks="nothing had changed",
        patches=((sealing, "judge", lambda *_: (Verdict.FREE, "free")),),
    ),
    "stopping-not-held": Planted(
        what="workers that are being stopped are not held when contact is lost",
        breaks=_TWO_WORLDS,
        patches=((MemberMachine, "_on_connection_lost", _do_not_hold_what_stops),),
        options=Options(kinds=("fail", "reject", "slow")),
    ),
    "refused-waits": Planted(
        what="a member refused with nothing to kill waits for the join timeout after the end",
        breaks="not noticed that the coordinator is gone",
        patches=((MemberMachine, "_leave_round", _leave_round_impatiently),),
        options=Options(kinds=("break", "isolate", "lose host", "reject", "split")),
    ),
    "reports-not-repeated": Planted(
        what="news that was lost with a connection is not said again",
        breaks=_GIVEN_UP,
        patches=(
            (
                MemberMachine,
                "_on_welcome",
                before(MemberMachine._on_welcome, _forget_reports),
            ),
        ),
    ),
    "resumes-anything": Planted(
        what="a node may come back into a round that it does not stand by",
        breaks="was started again with the number",
        patches=((membership, "resumes", lambda *_: True),),
    ),
    "not-told-again": Planted(
        what="a member that comes back is not told what it has missed",
        breaks=_GIVEN_UP,
        patches=((CoordinatorMachine, "_on_back", nothing),),
        options=Options(kinds=("break", "cut", "fail", "isolate")),
    ),
    "too-few": Planted(
        what="a round is sealed with fewer than min_nodes",
        breaks=r"round \d+ has \d+ nodes",
        patches=((Gathering, "look", before(Gathering.look, _too_few)),),
    ),
    "connection-not-noticed": Planted(
        what="the end of a member's connection suspects nobody and stops nothing",
        breaks=_TWO_WORLDS,
        patches=((MemberMachine, "_on_connection_lost", nothing),),
    ),
    "quorum-forgotten": Planted(
        what="a successor needs nobody's vote, a round nobody's voice, a mandate any one answer",
        breaks=_TWO_WORLDS,
        patches=(
            (candidate, "has_quorum", lambda *_: True),
            (mandate, "has_quorum", lambda *_: True),
            (mandate, "agreed_since", lambda _, heard_at, __: max(heard_at.values(), default=0.0)),
        ),
        options=_SUCCESSION,
    ),
    "granted-for-ever": Planted(
        what="a coordinator goes on deciding when what was granted to it is over",
        breaks=_TWO_WORLDS,
        patches=((GrantedMandate, "until", lambda *_: float("inf")),),
        options=Options(quorum="granted", kinds=("fail", "freeze", "isolate", "split", "suspend")),
    ),
    "late-resignation": Planted(
        what="who resigns and asks again is given the same term, which the resignation then ends",
        breaks="is named, and",
        patches=((Etcd, "campaign", _named_again),),
        options=drawn("endpoint", "isolate", "split", "fail", nodes=3, quorum="granted"),
    ),
    "end-begins-again": Planted(
        what="who looks for a coordinator after the end is not told of it, by etcd or by others",
        breaks=_UNAWARE,
        patches=((granted_registry, "read_end", nothing),),
        guards=((CoordinatorMachine, "_hear_of_end", nothing),),
        options=drawn("isolate", "split", "succeed", nodes=4, quorum="granted"),
    ),
    "one-peer-not-judged": Planted(
        what="a lost member is waited for without end where it is the only one that is known",
        breaks=_STUCK,
        patches=((Membership, "next_judgement", _judge_two_or_more),),
        options=drawn("crash", "isolate", "lose host", "power", nodes=2, quorum="granted"),
    ),
    "spares-begin": Planted(
        what="whoever was told of a round counts as new where a host that is back begins a job",
        breaks=_TWO_WORLDS,
        patches=((FirstRound, "meet", nothing),),
        # One of the two hears at the endpoint of the other, if both are of the first term.
        guards=_ONE_IS_PUBLISHED,
        options=drawn("crash", "back", "join", "power", nodes=5),
    ),
    "mark-unread": Planted(
        what="a host that comes back begins without the mark that was left on its machine",
        breaks=_NOT_THE_SAME,
        patches=((Marks, "open", nothing),),
        options=_HOST_IS_BACK,
    ),
    "numbers-anew": Planted(
        what="a host that comes back counts from one again, though somebody may know of its job",
        breaks=_NOT_THE_SAME,
        patches=((Survivors, "numbers", lambda *_, **__: (0, 0)),),
        options=_HOST_IS_BACK,
    ),
    "endpoints-minority": Planted(
        what="a job begins where one of several endpoints is reached",
        breaks=_TWO_WORLDS,
        patches=((founding, "majority_of", lambda _: 1),),
        options=Options(
            quorum="majority", nodes=5, endpoints=3, is_swarm=False, kinds=("split", "isolate")
        ),
    ),
    "failure-free-by-newcomer": Planted(
        what="a round in which a worker failed is free where somebody came afterwards",
        breaks=_NOTHING_CHANGED,
        patches=((budget, "_has_changed", _free_for_any_change),),
        options=drawn("fail", "join", nodes=3),
    ),
    "failure-free-by-slowness": Planted(
        what="a round in which a worker failed is free where a member took too long to stop",
        breaks=_NOTHING_CHANGED,
        patches=((Membership, "evict", _evict_as_lost),),
        options=drawn("fail", "slow", nodes=3),
    ),
    "uncommitted-counts": Planted(
        what="a restart is used when its round is sealed, whether that is committed or not",
        breaks=_NOTHING_CHANGED,
        patches=((Sealing, "begin", after(Sealing.begin, _count_what_is_sealed)),),
    ),
    "elder-told-once": Planted(
        what="who was published before a successor is told once, and never looks there itself",
        breaks=_STUCK,
        patches=(
            (Inquiries, "_announce", before(Inquiries._announce, _forget_elder)),
            (Inquiries, "hear_of", nothing),
        ),
        options=drawn("reject", nodes=3, is_brisk=False),
    ),
    "nobody-endorses": Planted(
        what="a round that needs the voice of nodes for which it has no room is never sealed",
        breaks=_STUCK,
        patches=((Gathering, "_find_endorsers", _endorsed_by_nobody),),
        options=drawn("fail", "isolate", "join", "lose host", "succeed", nodes=4, is_brisk=False),
    ),
    "strangers-forgotten": Planted(
        what="a successor does not expect those to ask for the end whom it never knew",
        breaks=_UNAWARE,
        patches=((Farewell, "expect_strangers", nothing),),
        options=drawn("fail", "suspend", nodes=3, is_brisk=False),
    ),
    "nobody-tells-the-end": Planted(
        what="who has heard the end goes at once, and leaves it to the coordinator to tell others",
        breaks=_UNAWARE,
        patches=((Parting, "hold", after(Parting.hold, _tell_nobody)),),
        options=drawn("isolate", "lose host", "succeed", nodes=3, is_brisk=False),
    ),
    "end-told-to-who-asks": Planted(
        what="who knows how the job has ended tells those who ask, and nobody else",
        breaks=_UNAWARE,
        patches=((Telling, "begin", nothing),),
        options=drawn("isolate", "succeed", "lose host", nodes=3, is_brisk=False),
    ),
    "begins-after-the-end": Planted(
        what="a spare that was told of the end begins another job with a host that is back",
        breaks=_UNAWARE,
        patches=((Ballot, "hear_of_end", nothing),),
        options=drawn("succeed", "freeze", "isolate", "back", nodes=3, is_brisk=False),
    ),
    "decider-goes-alone": Planted(
        what="a node that leaves while it has lost the contact to its own coordinator just goes",
        breaks="have left, and still decide",
        patches=((CoordinatorLink, "must_hand_over", property(lambda _: False)),),
        # It tells its coordinator when it has gone.
        guards=((CoordinatorMachine, "_on_own_left", nothing),),
        options=drawn("drain", "break", "fail", nodes=3, is_brisk=False),
    ),
    "terms-race": Planted(
        what="whoever follows a coordinator that was refused is refused in turn, for ever",
        breaks=_STUCK,
        patches=(
            (Candidate, "hear_of_term", nothing),
            (candidate, "_MOST_UNREST", 0),
            (Succession, "refuse_second", nothing),
        ),
        # A coordinator steps down for one that is published only if that one still decides.
        guards=((Inquiries, "decides_at", lambda *_: True),),
        options=drawn("reject", "fail", nodes=3),
    ),
    "success-stays": Planted(
        what="a node that leaves waits for its coordinator although its workers have succeeded",
        breaks=_UNAWARE,
        patches=((RoundPart, "is_idle", property(lambda part: part.is_free)),),
        options=drawn("drain", "succeed", "turn", nodes=4),
    ),
    "lease-from-now": Planted(
        what="a lease runs from the newest beat that was sent, whether it came back or not",
        breaks=_TWO_WORLDS,
        patches=((HeldLease, "next_beat", after(HeldLease.next_beat, _hold_from_now)),),
        # The keeper goes by the last lease that was told it.
        guards=((PlayedAgent, "_look_at_lease", nothing),),
        options=Options(is_swarm=False, kinds=("cut", "isolate", "turn")),
    ),
    "vote-in-contact": Planted(
        what="a node votes for another one while its coordinator is well",
        breaks=_TWO_WORLDS,
        patches=((Ballot, "_refusal", lambda *_: ""),),
        # A vote says how lately the voter had contact, and no round starts before that lease ends.
        guards=((Ballot, "contact_but_with", nothing),),
        options=Options(
            quorum="majority",
            nodes=3,
            is_swarm=False,
            kinds=("cut", "isolate", "lose host", "turn"),
        ),
    ),
    "votes-twice": Planted(
        what="a node forgets for whom it has voted, and in which term",
        breaks=_STUCK,
        patches=((Ballot, "vote", nothing),),
        # Two that were elected under one term are told of each other by way of the endpoint.
        guards=_ONE_IS_PUBLISHED,
        options=drawn("freeze", "isolate", "lose host", "suspend", nodes=5),
    ),
    "refusal-says-nothing": Planted(
        what="nodes whose first round was never committed elect somebody, although another decides",
        breaks=_STUCK,
        patches=((Succession, "hear_of_term", nothing),),
        # Who finds that one in the store under a term that it may not obey says so, or dials it.
        guards=tuple((CoordinatorLink, name, nobody) for name in ("_must_tell", "_may_be_well")),
        options=drawn("no store", "isolate", "lose host", nodes=3),
    ),
    "heir-impatient": Planted(
        what="a successor counts the join timeout from when it began to decide",
        breaks="of a join timeout of",
        patches=(
            (
                CoordinatorMachine,
                "__init__",
                after(CoordinatorMachine.__init__, _too_few_from_the_start),
            ),
        ),
        options=drawn("age", "beset", "crash", nodes=4, is_brisk=False),
    ),
    "late-comers-untold": Planted(
        what="whoever comes after the end is welcomed, and told nothing",
        breaks=_UNAWARE,
        patches=((Farewell, "look", after(Farewell.look, _forget_the_end)),),
        options=drawn("isolate", "join", "succeed", nodes=3),
    ),
    "finished-is-silent": Planted(
        what="a coordinator that waits for nobody any more tells nobody, its own member included",
        breaks=_STUCK,
        patches=((CoordinatorMachine, "_on_hello", _greet_unless_finished),),
        options=drawn("freeze", "succeed", nodes=2, quorum="granted", is_brisk=False),
    ),
    "endless-mandate": Planted(
        what="a coordinator that no quorum answers goes on deciding",
        breaks=_TWO_WORLDS,
        patches=((MembersMandate, "until", lambda *_: float("inf")),),
        options=drawn("freeze", "isolate", "suspend", nodes=3, is_brisk=False),
    ),
    **PLANTED_AIMED,
}
