"""One message of each kind, for tests of what goes over a connection."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous.consensus.records import End, Term, founding_record
from pytest_elastic.rendezvous.model import Failure, Node
from pytest_elastic.wire import Message

__all__ = ["ANSWER", "FAILURE", "LEADER", "MESSAGES", "NODE", "RECORD", "REQUEST", "STORE", "VOTE"]

TERM = Term(3, "i1")
NODE = Node(name="n1", incarnation="i1", address="::1", port=7, slots=2, pinned=3)
ENTRY = Node(name="n1", incarnation="i1", address="10.0.0.1", slots=2, port=4000)
FAILURE = Failure(
    node="n1", rank=0, local_rank=0, pid=9, exit_code=-9, timestamp=1795000000, round=2
)
RECORD = replace(
    founding_record([ENTRY]),
    term=TERM,
    number=5,
    round=2,
    spares=("n9",),
    end=End(result="failed", reason="ü", first_failure=FAILURE),
)
STORE = m.RecordDecided(
    term=TERM, number=5, store_address="10.0.0.1", store_port=4001, unaware=("i2",)
)
LEADER = m.LeaderAddress(term=TERM, name="n1", incarnation="i1", address="10.0.0.1", port=4000)
ANSWER = m.Answer(incarnation="i1", leader=LEADER, base=RECORD, has_end=True, number=2)
VOTE = m.Answer(
    term=TERM,
    incarnation="i1",
    is_granted=True,
    reason="",
    record=RECORD,
    base=None,
    started=STORE,
    number=2,
    restarts_used=0,
    contact_age_s=None,
    patience_s=0.0,
    leader=None,
)
REQUEST = m.JoinRequest(
    run_id="r",
    node=NODE,
    settings={"max_nodes": 3, "lease_s": 1.5, "quorum": "x"},
    resumes_round=2,
    term=TERM,
    number=2,
    restarts_used=0,
    meant_for="i1",
)
MESSAGES: Sequence[Message] = (
    ANSWER,
    REQUEST,
    STORE,
    VOTE,
    m.AppendRecord(term=TERM, record=RECORD, base=replace(RECORD, end=None)),
    m.DialPeers(term=TERM, number=7, peers=(ENTRY,)),
    m.Dismissed(term=TERM, reason="silent", is_final=False),
    m.Heartbeat(count=3, echo=2, lease_s=1.5),
    m.JoinAccepted(
        term=TERM,
        name="n1-2",
        leader="n1",
        resumed=True,
        is_over=False,
        is_founding=False,
        number=4,
        lease_s=None,
    ),
    m.Dismissed(term=TERM, reason="no", is_final=True),
    m.LeaderResigned(term=TERM, reason="n1 left", left=True, successor="i2", higher=4),
    m.PeersDialled(term=TERM, number=7, unreached={"i2": "silent"}),
    m.RecordAccepted(term=TERM, number=5),
    m.Standby(term=TERM, number=5, round=2, reason="full", restarts_used=1, roster=(ENTRY,)),
    m.StopRound(term=TERM, round=2, grace_s=3, reason="n2 came"),
    m.Question(run_id="r"),
    m.Question(run_id="r", term=TERM, is_pre_vote=True),
    m.Question(run_id="r", leader=LEADER),
    ports.DrainRequested(reason="SIGTERM", grace_s=30.0),
    ports.GroupFailed(round=2, failures=(FAILURE, FAILURE)),
    ports.GroupSucceeded(round=2),
    ports.PeerDraining(node="n2", grace_s=1.0),
    ports.StoreFailed(round=2, reason="no port"),
    ports.StoreOpened(round=2, address="n1", port=5),
    ports.WorkersGone(round=2),
)
