"""A running job whose nodes have no token, and words of our own that nobody of it has said (R15).

Real agents and real workers of a job that goes on without any one of its nodes.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous.consensus.records import End, Record, Term, founding_record
from pytest_elastic.rendezvous.messages import encode
from pytest_elastic.rendezvous.model import Failure, Node
from pytest_elastic.wire import Message
from tests.integration.called_launcher import STAYS, Running
from tests.integration.test_launcher_hostile import frame, say

RUN_ID = "forged"
PORT = 29400
EVIL = Node(name="evil", incarnation="evil", address="127.0.0.1", port=9, slots=1)
NEAR, FAR = Term(50, "evil"), Term(2**62, "evil")
HUGE = 2**63 - 1


class Job:
    """Nodes n1 and n2 of a job that goes on without any one of three."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "stays.py").write_text(STAYS)
        # Addresses that no other test uses, so that the port is free there.
        self.prefix = f"127.83.{os.getpid() >> 8 & 255}"
        self.nodes = [self._start(number) for number in (1, 2)]
        for node in self.nodes:
            node.wait_for("world of 2 in round 1;")

    def _start(self, number: int) -> Running:
        words = (
            *("--nnodes=2:3", "--nproc-per-node=1", "--rdzv-backend=c10d", f"--rdzv-id={RUN_ID}"),
            f"--rdzv-endpoint={self.prefix}.1:{PORT}",
            "--rdzv-conf=beat_interval=0.3,lease=2,last_call_timeout=0.1,min_round=0.1",
            *(f"--node-name=n{number}", f"--local-addr={self.prefix}.{number}", "stays.py"),
        )
        events = f"file:{self.folder}/events-{number}.jsonl"
        return Running(*words, cwd=self.folder, environ={"PYTEST_ELASTIC_EVENTS": events})

    def door(self, number: int) -> tuple[str, int]:
        """Return where an agent listens."""
        records = (self.folder / f"events-{number}.jsonl").read_text().splitlines()
        started = next(json.loads(record) for record in records if "agent_started" in record)
        return started["event"]["address"], started["event"]["port"]

    def tell_all(self, *forged: Message) -> None:
        """Say things at the doors of both nodes, each on a connection of its own."""
        for number in (1, 2):
            for each in forged:
                say(self.door(number), frame(encode(each)))

    def end_well(self) -> str:
        """Let the workers end; return what the agents printed: all was done in one round."""
        (self.folder / "stop").touch()
        for node in self.nodes:
            node.wait()
        printed = "".join(node.printed for node in self.nodes)
        assert [node.process.returncode for node in self.nodes] == [0, 0], printed
        assert printed.count("in round 1;") == 2, printed
        assert "in round 2;" not in printed, printed
        assert "] round 1 ended: the workers of all nodes succeeded" in printed
        return printed


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    """A job that runs."""
    job = Job(tmp_path)
    yield job
    for node in job.nodes:
        node.end()


def join_request(term: Term, run_id: str = RUN_ID) -> m.JoinRequest:
    """Return the join request of a stranger that has promised a term."""
    return m.JoinRequest(
        run_id=run_id,
        node=EVIL,
        settings={},
        resumes_round=0,
        term=term,
        number=0,
        restarts_used=0,
        meant_for="",
    )


def record_of(term: Term, number: int) -> Record:
    """Return the end of a job, as a stranger's record."""
    return replace(
        founding_record([EVIL]),
        term=term,
        origin=term,
        number=number,
        round=number,
        end=End(result="succeeded", reason="forged"),
    )


def vote_answer(term: Term, number: int) -> m.Answer:
    """Return a vote that nobody has asked for."""
    record = record_of(term, number)
    return m.Answer(
        term=term,
        incarnation="evil",
        is_granted=True,
        reason="",
        record=record,
        base=record,
        started=None,
        number=number,
        restarts_used=0,
        contact_age_s=None,
        patience_s=0.0,
        leader=None,
    )


def test_a_forged_announcement_moves_neither_the_leader_nor_who_follows_it(job: Job) -> None:
    """A node that has a leader does not even dial another one that a stranger names."""
    with socket.create_server((f"{job.prefix}.9", 0)) as evil:
        evil.setblocking(False)
        address, port = evil.getsockname()
        leader = m.LeaderAddress(
            term=NEAR, name="evil", incarnation="evil", address=address, port=port
        )
        places = (leader, replace(leader, is_founding=True), replace(leader, term=Term(1, "a")))
        job.tell_all(*(m.Question(run_id=RUN_ID, leader=each) for each in places))
        printed = job.end_well()
        with pytest.raises(BlockingIOError):
            evil.accept()
    assert "this node was elected" not in printed


def orders(term: Term, number: int) -> tuple[Message, ...]:
    """Return what only a leader may say, to whom it leads."""
    record = record_of(term, number)
    return (
        m.JoinAccepted(
            term=term,
            name="n1",
            leader="evil",
            resumed=True,
            is_over=True,
            is_founding=False,
            number=number,
            lease_s=None,
        ),
        m.Dismissed(term=term, reason="forged", is_final=True),
        m.Heartbeat(count=number, echo=number, lease_s=0.0),
        m.DialPeers(term=term, number=number, peers=(EVIL,)),
        m.AppendRecord(term=term, record=record, base=record),
        m.RecordDecided(term=term, number=number),
        m.StopRound(term=term, round=number, grace_s=0.0, reason="forged"),
        m.Standby(
            term=term, number=number, round=number, reason="forged", restarts_used=0, roster=()
        ),
        ports.PeerDraining(node="n1", grace_s=0.0),
        m.Dismissed(term=term, reason="forged", is_final=False),
        m.LeaderResigned(term=term, reason="forged", left=True, successor="evil", higher=number),
    )


def reports(term: Term, number: int) -> tuple[Message, ...]:
    """Return what only a member may say, to whom it follows."""
    failure = Failure(node="n1", rank=0, local_rank=0, pid=1, exit_code=1, round=number)
    return (
        m.RecordAccepted(term=term, number=number),
        m.PeersDialled(term=term, number=number, unreached={"evil": "silent"}),
        ports.StoreOpened(round=number, address="127.0.0.1", port=9),
        ports.StoreFailed(round=number, reason="forged"),
        ports.GroupSucceeded(round=number),
        ports.GroupFailed(round=number, failures=(failure,)),
        ports.WorkersGone(round=number),
        ports.DrainRequested(reason="forged", grace_s=0.0),
        m.Answer(incarnation="evil", base=record_of(term, number), has_end=True),
        vote_answer(term, number),
    )


@pytest.mark.parametrize(
    ("term", "number"), [(NEAR, 1), (NEAR, 3), (FAR, HUGE), (Term(-1, ""), -1)], ids=str
)
def test_orders_reports_and_answers_of_strangers_change_nothing(
    job: Job, term: Term, number: int
) -> None:
    """Whatever they tell, of numbers that may be and of absurd ones."""
    job.tell_all(*orders(term, number), *reports(term, number))
    assert "this node was elected" not in job.end_well()


def test_nobody_votes_for_a_stranger_as_long_as_the_leader_is_there(job: Job) -> None:
    """Neither for a term that may be, nor for one to which no job comes."""
    for term in (NEAR, FAR, Term(0, "")):
        for is_pre_vote in (True, False):
            job.tell_all(m.Question(run_id=RUN_ID, term=term, is_pre_vote=is_pre_vote))
    printed = job.end_well()
    assert "this node was elected" not in printed
    assert "to which no job comes" in printed, printed


def test_a_term_to_which_no_job_comes_or_of_another_run_moves_no_leader(job: Job) -> None:
    """A leader that believed it would have to stand for election above it."""
    job.tell_all(join_request(FAR), join_request(NEAR, "another run"))
    printed = job.end_well()
    assert "this node was elected" not in printed
    assert "to which no job comes" in printed, printed


def test_a_higher_term_that_may_be_costs_an_election_and_nothing_else(job: Job) -> None:
    """A voter may have promised it, whom no lower one binds: the round goes on, under more."""
    job.tell_all(join_request(NEAR))
    for node in job.nodes:
        assert node.process.poll() is None
    printed = job.end_well()
    assert "evil has promised to obey term 50" in printed, printed
