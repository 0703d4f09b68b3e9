"""A running job whose ports are open to everybody: strangers come, and the job goes on (R15)."""

from __future__ import annotations

import json
import os
import random
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from pytest_elastic.credentials import Credentials
from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous.consensus.records import End, Term, founding_record
from pytest_elastic.rendezvous.messages import encode
from pytest_elastic.rendezvous.model import Node
from tests.integration.called_launcher import LIMIT_S, Running, run

TOKEN = "a token of the job that is long enough"
RUN_ID = "hostile"
STAY = """\
import os, sys, time
print("world", os.environ["WORLD_SIZE"], flush=True)
while not os.path.exists(sys.argv[1]): time.sleep(0.05)
"""


class Job:
    """A job of one node that has a place for another one, and the ports of it."""

    def __init__(self, folder: Path, token: str | None = "ours", conf: str = "") -> None:
        self.folder = folder
        (folder / "stay.py").write_text(STAY)
        # An address that no other test uses, so that the default port is free there.
        self.address = f"127.82.{os.getpid() >> 8 & 255}.{os.getpid() & 255}"
        self.node = Running(*self.words(token, conf), cwd=folder, environ=self.environ)
        self.node.wait_for("world 1")

    @property
    def environ(self) -> dict[str, str]:
        return {"PYTEST_ELASTIC_EVENTS": f"file:{self.folder}/events.jsonl"}

    def words(self, token: str | None, conf: str = "") -> list[str]:
        """Return a command line for a node that was given this token."""
        given = []
        if token is not None:
            path = self.folder / f"{token}.token"
            path.touch(0o600)
            path.write_text(TOKEN if token == "ours" else f"{token}, and nobody else's")
            given = [f"--rdzv-token-file={path}"]
        times = "beat_interval=0.2,lease=2,last_call_timeout=0.1,min_round=0.1"
        return [
            *given,
            "--nnodes=1:2",
            f"--rdzv-id={RUN_ID}",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={self.address}:29400",
            f"--rdzv-conf={times}{conf}",
            "stay.py",
            "done",
        ]

    def door(self) -> tuple[str, int]:
        """Return where the agent listens."""
        records = (self.folder / "events.jsonl").read_text().splitlines()
        started = (json.loads(r) for r in records if "agent_started" in r)
        event = next(started)["event"]
        return event["address"], event["port"]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    """A job that runs."""
    job = Job(tmp_path)
    yield job
    job.node.end()


def frame(said: object) -> bytes:
    """Return one frame of our protocol: bytes as they are, everything else as JSON."""
    body = said if isinstance(said, bytes) else json.dumps(said, separators=(",", ":")).encode()
    return struct.pack(">I", len(body)) + body


def strange_things(draw: random.Random) -> list[bytes]:
    """Return what strangers say: noise, other protocols, our own without or with a wrong key."""
    question = encode(m.Question(run_id=RUN_ID))
    term = Term(99, "evil")
    entry = Node(name="evil", incarnation="evil", address="127.0.0.1", slots=1)
    end = End(result="succeeded", reason="forged")
    record = replace(founding_record([entry]), term=term, number=99, end=end)
    ending = encode(m.AppendRecord(term=term, record=record, base=record))
    decided = encode(m.RecordDecided(term=term, number=99))
    forged = json.dumps(ending)
    signed = Credentials.of_job(b"the token of somebody else", RUN_ID).sign(forged)
    return [
        *(draw.randbytes(draw.randrange(1, 3000)) for _ in range(30)),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + draw.randbytes(500),
        struct.pack(">I", 0xFFFFFFFF),
        struct.pack(">I", 200_000) + b'{"a":' * 40_000,
        frame([1, 2, 3]),
        frame(question),
        frame(question | {"format": 1}),
        frame(question | {"format": 99}),
        frame(question | {"run_id": "another"}),
        frame(ending) + frame(decided),
        frame(decided) + frame(ending),
        frame({"nonce": "0" * 32}) + frame(f"{signed}{forged}".encode()),
        frame({"unwelcome": "you are not welcome in your own house"}),
    ]


def say(door: tuple[str, int], words: bytes, *, host: str = "127.0.0.1") -> None:
    """Say something at a port, and stay until it has been read or we were hung up on."""
    with socket.create_connection(door, timeout=LIMIT_S, source_address=(host, 0)) as sock:
        try:
            sock.sendall(words)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(65536):
                pass
        except OSError:
            pass  # hung up on, which is an answer


def test_a_token_that_is_another_or_that_one_side_has_is_named_while_it_looks(
    tmp_path: Path,
) -> None:
    """The record may be forged, so that the node goes on looking; it says what it found."""
    here = Job(tmp_path, token=None)
    # Long enough for an answer of the store, on any machine: it takes milliseconds on a quiet one.
    words = here.words("theirs", ",join_timeout=8")
    with here.node, Running(*words, cwd=here.folder) as newcomer:
        found = f"{here.address}:29400 is not signed, and this node was given a token (--rdzv-tok"
        newcomer.wait()
        on_the_way, _, last_word = newcomer.printed.partition("the job cannot go on: ")
        assert "looking for the job at" in on_the_way, newcomer.printed
        for said in (on_the_way, last_word):
            assert found in said, newcomer.printed
            assert "Give all nodes of the job the same token, or none" in said
        assert newcomer.process.returncode == 3


def test_strangers_neither_join_nor_disturb(job: Job) -> None:
    """Noise, forged messages and a node with another token; then a node with ours is let in."""
    draw = random.Random(7)
    silent = [socket.create_connection(job.door()) for _ in range(20)]
    silent[0].sendall(b"\0")
    for words in strange_things(draw):
        say(job.door(), words)
        say((job.address, 29400), words)  # torch's store at the endpoint
    unsigned = run(*job.words(None), cwd=job.folder)
    assert unsigned.code == 2, unsigned.err
    assert "world" not in unsigned.out
    assert "this node was given no token (--rdzv-token-file)" in unsigned.err
    assert "Traceback" not in unsigned.err
    # What is found at the endpoint is not signed for this one: whom could it trust?
    with Running(*job.words("theirs"), cwd=job.folder) as other:
        other.wait_for(f"{job.address}:29400 is signed with another token than the one that this")
        other.wait_for("(--rdzv-token-file), or is forged. Give all nodes of the job the")
        assert other.process.poll() is None
    assert "world" not in other.printed
    assert "Traceback" not in other.printed
    assert job.node.process.poll() is None
    newcomer = Running(*job.words("ours"), cwd=job.folder)
    try:
        newcomer.wait_for("world 2")
        job.node.wait_for("world 2")
        (job.folder / "done").touch()
        assert newcomer.process.wait(LIMIT_S) == job.node.process.wait(LIMIT_S) == 0
    finally:
        newcomer.end()
        for sock in silent:
            sock.close()
    job.node.wait()
    assert "turned away a connection from 127.0.0.1" in job.node.printed
    assert job.node.printed.count("turned away") < 5
    assert "Traceback" not in job.node.printed


# What strangers can say that is no text, or that a terminal obeys. Each host is told of once.
EVIL = {
    "127.0.0.71": "\ud800",
    "127.0.0.72": "\x1b[2J\x1b]0;owned\x07",
    "127.0.0.73": "x\n[pytest-elastic n1] round 99: forged",
    "127.0.0.74": "x\r\x9b2Jforged",
}


@pytest.mark.parametrize("conf", ["", ",quorum=majority"])
def test_whoever_is_announced_by_a_stranger_is_not_followed(tmp_path: Path, conf: str) -> None:
    """Nothing is signed: a leader of a later term is named, at whose port nobody leads."""
    job = Job(tmp_path, None, conf)
    try:
        evil = "e" * 16
        leader = m.LeaderAddress(
            term=Term(2, evil), name="x", incarnation=evil, address=job.address, port=9
        )
        say(job.door(), frame(encode(m.Question(run_id=RUN_ID, leader=leader))))
        (tmp_path / "done").touch()
        assert job.node.process.wait(LIMIT_S) == 0
        events = (tmp_path / "events.jsonl").read_text()
        assert "coordinator_stepped_down" not in events
        assert "workers_held" not in events
    finally:
        job.node.end()


@pytest.mark.parametrize("token", ["ours", None])
def test_what_strangers_say_ends_no_agent_and_moves_no_cursor(
    tmp_path: Path, token: str | None
) -> None:
    """Half of a surrogate pair, escapes of a terminal, a line that looks like one of ours."""
    job = Job(tmp_path, token)
    try:
        for host, words in EVIL.items():
            raw = json.dumps({"unwelcome": words}, ensure_ascii=False)
            body = raw.encode(errors="surrogatepass")
            say(job.door(), struct.pack(">I", len(body)) + body, host=host)
            say(job.door(), frame({"unwelcome": words}), host=host)
            say(job.door(), frame(encode(m.Question(run_id=words))))
        job.node.wait_for("turned away a connection from 127.0.0.74")
        assert job.node.process.poll() is None
        (job.folder / "done").touch()
        assert job.node.process.wait(LIMIT_S) == 0
    finally:
        job.node.end()
    job.node.wait()
    printed = job.node.printed
    assert "Traceback" not in printed
    assert printed.replace("\n", "").isprintable(), repr(printed)
    assert "\n[pytest-elastic n1] round 99" not in printed
    assert "turned away a connection from 127.0.0.72: " in printed
