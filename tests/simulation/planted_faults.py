"""The faults that `planted` plants in the machines: each takes back one promise."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from elastic_simulation.process import PlayedAgent
from elastic_simulation.random_faults.plan import Options
from msgspec.structs import replace

from pytest_elastic.rendezvous.consensus.candidate import Candidate
from pytest_elastic.rendezvous.consensus.records import Configuration, Mark, Record
from pytest_elastic.rendezvous.consensus.replication import Replication
from pytest_elastic.rendezvous.consensus.voter import Voter
from pytest_elastic.rendezvous.follower import departure
from pytest_elastic.rendezvous.follower.connection import Connection
from pytest_elastic.rendezvous.follower.departure import Departure
from pytest_elastic.rendezvous.follower.follower import Follower
from pytest_elastic.rendezvous.follower.worker_group import WorkerGroup
from pytest_elastic.rendezvous.leader import members, rounds
from pytest_elastic.rendezvous.leader.ending import JobEnd, Leavers
from pytest_elastic.rendezvous.leader.gathering import FirstRound, Gathering
from pytest_elastic.rendezvous.leader.leader import Leader
from pytest_elastic.rendezvous.leader.members import Members
from pytest_elastic.rendezvous.leader.rounds import Rounds
from pytest_elastic.rendezvous.leader.state import Budget, Peer, Round, Verdict, judge
from pytest_elastic.rendezvous.leases import HeldLease
from pytest_elastic.rendezvous.vocabulary import HandOver, LeaderCommand, LeaderInput
from tests.simulation.planting import Planted, after, before, drawn, nothing, refuse

__all__ = ["PLANTED"]

_TWO_WORLDS = "two worlds run at once"
_NOT_THE_SAME = "is not the same for all"
_STUCK = r"of \[.*\] go on"
_UNAWARE = "have not noticed that the job is over"
_NOTHING_CHANGED = "nothing had changed"
# What takes the leader away, or makes two sides; no node comes back or anew.
_SUCCESSION = Options(
    quorum="majority", kinds=("fail", "freeze", "isolate", "lose host", "split", "suspend", "turn")
)
_AIMED = Options(quorum="majority", is_swarm=True, is_brisk=True, is_aimed=True)


def _forget_the_gate(each: Rounds, now: float) -> None:
    each._gate = now


def _leave_suspects_out(each: Leavers, now: float) -> bool:
    voters = each._replication.base.configuration.voters
    suspects = each._members.suspects
    others = tuple(one for one in voters if one in each._members.peers and one not in suspects)
    if others and len(others) < len(voters):
        configuration = each._replication.configuration_of(others)
        each._replication.propose(now, configuration=configuration)
        each._rounds.send_record()
    return False


def _reuse_number(each: Rounds, next_: Round, reason: str) -> None:
    del next_, reason
    each._replication.round -= 1


def _charge_everything(
    what: Budget, ended: Round | None, roster: tuple[str, ...]
) -> tuple[Verdict, str]:
    verdict, why = judge(what, ended, roster)
    is_wrong = verdict is Verdict.FREE and ended is not None and what.used < what.max_restarts
    return (Verdict.CHARGED if is_wrong else verdict), why


def _hold_from_now(lease: HeldLease, now: float) -> None:
    if lease.held_until is not None:
        lease.hold_from(now)


def _do_not_wait_for_all(each: Rounds, now: float) -> None:
    if each.next is not None and each._replication.has_quorums:
        each.next.missing.clear()
    del now


def _too_few(gathering: Gathering, last: Round | None, now: float) -> None:
    wanted = gathering._settings
    if wanted.min_nodes > 1:
        gathering._settings = replace(wanted, min_nodes=wanted.min_nodes - 1)
    del last, now


def _needs_old_only(replication: Replication) -> Sequence[Configuration]:
    return (replication.base.configuration,)


def _starts_what_is_accepted(group: WorkerGroup, round_: int) -> bool:
    del round_
    return group.phase.value == "accepted"


def _pending_is_ignored(candidate: Candidate) -> Record | None:
    del candidate
    return None


def _evict_as_lost(each: Members, peer: Peer, reason: str, now: float) -> None:
    each._drop(peer, "evicted", reason, each._lease_end(peer), now)


def _vote_without_promise(voter: Voter, term: object, now: float) -> None:
    del voter, term, now


def _accept_anything(voter: Voter, record: Record, base: Record) -> bool:
    voter.record, voter.base = record, base
    voter.hear_of(record.number)
    return True


def _join_again(group: WorkerGroup, record: Record) -> None:
    group._newest_round = min(group._newest_round, record.round - 1)


def _take_for_written(each: Rounds, now: float) -> None:
    pending = each._replication.pending
    if pending is not None:
        each._replication.take_written(pending.number)
    del now


_take_mark = FirstRound._take_mark


def _forget_accepted_restarts(
    first: FirstRound, mark: Mark, began_at: float, announce_s: float
) -> None:
    _take_mark(first, mark, began_at, announce_s)
    first._restarts_used = mark.job.restarts_used


_has_quorum = Configuration.has_quorum
_agreed_since = Configuration.agreed_since
_step = Leader.step


def _ignore_hand_over(leader: Leader, given: LeaderInput, now: float) -> Sequence[LeaderCommand]:
    return () if isinstance(given, HandOver) else _step(leader, given, now)


def _is_of_hosts(each: Configuration) -> bool:
    return any(voter.startswith("host of ") for voter in each.voters)


def _any_host(each: Configuration, agreeing: Collection[str]) -> bool:
    if _is_of_hosts(each):
        return any(voter in agreeing for voter in each.voters)
    return _has_quorum(each, agreeing)


def _since_any_host(each: Configuration, heard_at: Mapping[str, float]) -> float:
    if _is_of_hosts(each):
        return max(heard_at.get(voter, float("-inf")) for voter in each.voters)
    return _agreed_since(each, heard_at)


_ANY_HOST_FOUNDS = (
    (Candidate, "_may_found", lambda _: True),
    (Configuration, "has_quorum", _any_host),
    (Configuration, "agreed_since", _since_any_host),
)

PLANTED: dict[str, Planted] = {
    "no-fencing": Planted(
        what="neither follower nor keeper looks at the lease",
        breaks=_TWO_WORLDS,
        patches=((Follower, "_watch_lease", nothing), (PlayedAgent, "_look_at_lease", nothing)),
    ),
    "no-start-gate": Planted(
        what="a round is started while workers of a lost member may run",
        breaks=_TWO_WORLDS,
        patches=((Rounds, "may_start", before(Rounds.may_start, _forget_the_gate)),),
        options=Options(kinds=("fail", "freeze", "suspend")),
    ),
    "number-reused": Planted(
        what="the number of a round that was given up comes again",
        breaks="for two rounds",
        patches=((Rounds, "_abandon", after(Rounds._abandon, _reuse_number)),),
    ),
    "everything-charged": Planted(
        what="a change of members costs a restart",
        breaks=r"restarts for|its members changed",
        patches=((rounds, "judge", _charge_everything),),
    ),
    "nothing-charged": Planted(
        what="every round is free",
        breaks=_NOTHING_CHANGED,
        patches=((rounds, "judge", lambda *_: (Verdict.FREE, "free")),),
    ),
    "failure-free-by-slowness": Planted(
        what="a round in which a worker failed is free where a member took too long to stop",
        breaks=_NOTHING_CHANGED,
        patches=((Members, "evict", _evict_as_lost),),
        options=drawn("fail", "slow", nodes=3),
    ),
    "too-few": Planted(
        what="a round is proposed with fewer than min_nodes",
        breaks=r"round \d+ has \d+ nodes",
        patches=((Gathering, "look", before(Gathering.look, _too_few)),),
    ),
    "started-before-all": Planted(
        what="a round is started when quorums have accepted it, and not all of its roster",
        breaks=f"{_TWO_WORLDS}|{_NOT_THE_SAME}|{_STUCK}|started again",
        patches=((Rounds, "may_start", before(Rounds.may_start, _do_not_wait_for_all)),),
        options=drawn("fail", "freeze", "isolate", "reject", "break", nodes=4),
    ),
    "starts-any-round": Planted(
        what="a node starts what it has accepted when another record is decided",
        breaks="restart count went back|is not the same for all|two worlds",
        patches=((WorkerGroup, "waits_for", _starts_what_is_accepted),),
        options=_AIMED,
    ),
    "joins-a-round-again": Planted(
        what="a node that has given a round up may be started in it again",
        breaks="was started again with the number",
        patches=((WorkerGroup, "take_record", before(WorkerGroup.take_record, _join_again)),),
        options=_SUCCESSION,
    ),
    "old-majority-only": Planted(
        what="a record is decided by a majority of the old configuration alone",
        breaks=f"{_TWO_WORLDS}|{_NOT_THE_SAME}|{_STUCK}|{_UNAWARE}|started again|went back",
        patches=(
            (Replication, "_needed", property(_needs_old_only)),
            (Rounds, "may_start", before(Rounds.may_start, _do_not_wait_for_all)),
        ),
        options=_AIMED,
    ),
    "pending-ignored": Planted(
        what="a new leader goes on with the decided record, whatever has been accepted since",
        breaks=f"{_NOT_THE_SAME}|was started again|went back",
        patches=((Candidate, "_pending", property(_pending_is_ignored)),),
        options=drawn("fail", "on start", nodes=3),
    ),
    "quorum-forgotten": Planted(
        what="any vote elects, any acceptance decides, any answer makes a lease",
        breaks=_TWO_WORLDS,
        patches=(
            (Configuration, "has_quorum", lambda *_: True),
            (
                Configuration,
                "agreed_since",
                lambda _, heard_at: max(heard_at.values(), default=0.0),
            ),
        ),
        options=_SUCCESSION,
    ),
    "vote-without-promise": Planted(
        what="a voter forgets what it has promised",
        breaks=f"{_TWO_WORLDS}|{_STUCK}|{_NOT_THE_SAME}|started again",
        patches=((Voter, "vote", _vote_without_promise),),
        options=drawn("lose host", "on election", "freeze", nodes=4),
    ),
    "accepts-anything": Planted(
        what="a voter accepts records of terms below what it has promised",
        breaks=f"{_TWO_WORLDS}|{_NOT_THE_SAME}|{_STUCK}|started again",
        patches=((Voter, "accept", _accept_anything), (Voter, "may_follow", lambda *_: True)),
        options=_AIMED,
    ),
    "vote-in-contact": Planted(
        what="a node votes for another one while its leader is well, and says nothing of it",
        breaks=_TWO_WORLDS,
        patches=((Voter, "_refusal", lambda *_: ""), (Voter, "contact_but_with", nothing)),
        options=Options(
            quorum="majority",
            nodes=3,
            is_swarm=False,
            kinds=("cut", "isolate", "lose host", "turn"),
        ),
    ),
    "lease-from-now": Planted(
        what="a lease runs from the newest beat that was sent, whether it came back or not",
        breaks=_TWO_WORLDS,
        patches=(
            (HeldLease, "next_beat", after(HeldLease.next_beat, _hold_from_now)),
            (PlayedAgent, "_look_at_lease", nothing),
        ),
        options=Options(is_swarm=False, kinds=("cut", "isolate", "turn")),
    ),
    "endless-lease": Planted(
        what="a leader that no quorum answers goes on leading",
        breaks=_TWO_WORLDS,
        patches=((Replication, "leads_until", lambda *_: float("inf")),),
        options=drawn("freeze", "isolate", "suspend", nodes=3, is_brisk=False),
    ),
    "written-late": Planted(
        what="a round is started before it is written down outside, where that decides it",
        breaks=f"{_TWO_WORLDS}|{_NOT_THE_SAME}|went back|started again",
        patches=((Rounds, "may_start", before(Rounds.may_start, _take_for_written)),),
        options=Options(quorum="granted", is_swarm=True, is_brisk=True, is_aimed=True),
    ),
    "granted-for-ever": Planted(
        what="a leader goes on when what was granted to it is over",
        breaks=_TWO_WORLDS,
        patches=((Replication, "leads_until", lambda *_: float("inf")),),
        options=Options(quorum="granted", kinds=("fail", "freeze", "isolate", "split", "suspend")),
    ),
    "unsettled-hosts-found": Planted(
        what="hosts that may have voted before, and have forgotten it, count at once",
        breaks=f"{_TWO_WORLDS}|{_NOT_THE_SAME}|started again",
        patches=((Candidate, "_may_found", lambda _: True),),
        options=Options(
            quorum="majority",
            nodes=5,
            endpoints=3,
            is_swarm=False,
            is_brisk=True,
            kinds=("fail", "hosts forget"),
        ),
    ),
    "any-host-founds": Planted(
        what="one of several hosts may found a job",
        breaks=f"{_TWO_WORLDS}|{_NOT_THE_SAME}",
        patches=_ANY_HOST_FOUNDS,
        options=Options(
            quorum="majority", nodes=5, endpoints=3, is_swarm=False, kinds=("split", "isolate")
        ),
    ),
    "coordinator-asks-no-host": Planted(
        what="a host that is the only voter of its job later founds it without the other hosts",
        breaks=f"{_TWO_WORLDS}|{_NOT_THE_SAME}",
        patches=_ANY_HOST_FOUNDS,
        options=Options(
            quorum="coordinator", nodes=5, endpoints=3, is_swarm=False, kinds=("split", "isolate")
        ),
    ),
    "asked-twice-refused": Planted(
        what="a voter refuses the candidate that it has voted for when it is asked again",
        breaks=_STUCK,
        patches=((Voter, "has_voted_under", refuse),),
        options=Options(
            quorum="majority",
            nodes=8,
            endpoints=5,
            is_swarm=False,
            is_brisk=True,
            kinds=("lose host", "power"),
        ),
    ),
    "lost-leader-is-waited-for": Planted(
        what="followers of a lost leader without succession never give it up",
        breaks="have not noticed that the leader is gone",
        patches=((departure, "_GIVE_UP_S", 1e9),),
        options=Options(endpoints=3, is_swarm=False, kinds=("fail", "lose host")),
    ),
    "elders-are-new": Planted(
        what="a node that knows of a job counts as new where a host that is back begins one",
        breaks=f"{_TWO_WORLDS}|{_NOT_THE_SAME}",
        patches=(
            (FirstRound, "meet", nothing),
            (FirstRound, "must_wait_for", lambda *_: False),
        ),
        options=drawn("hosts forget", "join", "lull", nodes=6),
    ),
    "accepted-restarts-forgotten": Planted(
        what="a host that is back counts the restarts of its mark, without the record it accepted",
        breaks="the restart count went back",
        patches=((FirstRound, "_take_mark", _forget_accepted_restarts),),
        options=drawn("fail", "kill", "power", "back", nodes=2),
    ),
    "higher-term-untold": Planted(
        what="a voter that may not follow a leader does not tell it so",
        breaks=_STUCK,
        patches=(
            (Connection, "may_dial", lambda each, leader, _: each._voter.may_follow(leader.term)),
        ),
        options=drawn("reject", "fail", nodes=3),
    ),
    "voters-not-told-what-is-pending": Planted(
        what="a voter that comes back is not sent the record that is pending",
        breaks=_STUCK,
        patches=((Replication, "has_voter", lambda *_: False),),
        options=_SUCCESSION,
    ),
    "end-untold": Planted(
        what="who looks for a leader after the end is not told of it",
        breaks=_UNAWARE,
        patches=((Departure, "hear_end", nothing),),
        options=drawn("isolate", "succeed", "lose host", nodes=3, is_brisk=False),
    ),
    "late-comers-untold": Planted(
        what="a node that joins after the end is told nothing",
        breaks=f"{_UNAWARE}|{_STUCK}",
        patches=((JobEnd, "meet", lambda each, *_: each.end is not None),),
        options=drawn("isolate", "join", "succeed", nodes=3),
    ),
    "not-told-again": Planted(
        what="a member that comes back is not told what it has missed",
        breaks="given up, though every node did as told",
        patches=((Leader, "_on_here", nothing),),
        options=Options(kinds=("break", "cut", "fail", "isolate")),
    ),
    "resumes-anything": Planted(
        what="a node may come back into a round that it does not stand by",
        breaks=f"was started again with the number|{_STUCK}|given up, though",
        patches=((members, "_resumes", lambda *_: True),),
    ),
    "suspects-left-out": Planted(
        what="voters are left out of the record while their workers may still run",
        breaks=_TWO_WORLDS,
        patches=((Leavers, "_are_many_lost", _leave_suspects_out),),
        options=_AIMED,
    ),
    "leader-stays": Planted(
        what="a leader that has left leads on without a follower",
        breaks="have left, and still decide",
        patches=(
            (Connection, "leads", property(lambda _: False)),
            (Leader, "step", _ignore_hand_over),
        ),
        options=drawn("drain", "break", "fail", nodes=3, is_brisk=False),
    ),
}
