"""Who decides, in a file: one at a time, while it counts; and nothing else is overwritten."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import resource
import signal
from collections.abc import Mapping
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pytest

from pytest_elastic.errors import StoreUnreachable, UsageError
from pytest_elastic.workers.store.registry_file import (
    campaign,
    conclude,
    prepare,
    record,
    renew,
    resign,
)

TTL_S = 6


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return where the file is to be."""
    return tmp_path / "job.rdzv"


def candidate(path: Path, name: str, run_id: str = "job", term: int = 1) -> dict[str, Any]:
    """Return what a node campaigns with."""
    value = json.dumps({"incarnation": name, "term": term})
    where = {"path": str(path), "run_id": run_id}
    return {**where, "value": value, "ttl_s": TTL_S, "timeout_s": 5.0}


def office(path: Path, name: str, won: Mapping[str, Any], run_id: str = "job") -> dict[str, Any]:
    """Return what a coordinator asks with."""
    return {**candidate(path, name, run_id), **won}


def test_one_wins_and_what_it_writes_stands_while_it_decides(path: Path) -> None:
    """Another has to wait until it resigns; its term is higher, and the last round is there."""
    won = campaign(candidate(path, "a"))
    assert (won["is_won"], won["create_revision"], won["record"]) == (True, 1, "")
    lost = campaign(candidate(path, "b"))
    assert (lost["is_won"], lost["value"]) == (False, won["value"])
    assert record({**office(path, "a", won), "record": "round 7"})
    assert renew(office(path, "a", won)) == TTL_S
    resign(office(path, "a", won))
    second = campaign(candidate(path, "b"))
    assert (second["is_won"], second["create_revision"]) == (True, 2)
    assert second["record"] == "round 7"
    # The first one does not know yet.
    assert renew(office(path, "a", won)) == 0
    assert not record({**office(path, "a", won), "record": "round 8"})
    assert not conclude({**office(path, "a", won), "ending": "well"})
    resign(office(path, "a", won))
    third = campaign(candidate(path, "c"))
    assert (third["value"], third["ending"]) == (second["value"], "")


def test_a_resignation_that_comes_late_ends_no_later_term(path: Path) -> None:
    """Each call has a thread: who resigns and campaigns again may win before it has resigned."""
    first = campaign(candidate(path, "a"))
    first_count = json.loads(path.read_text())["runs"]["job"]["count"]
    again = campaign(candidate(path, "a"))
    assert (again["is_won"], again["create_revision"]) == (True, 2)
    resign(office(path, "a", first))
    assert renew(office(path, "a", again)) == TTL_S
    assert not campaign(candidate(path, "b"))["is_won"]
    assert renew(office(path, "a", first)) == 0
    counts = [first_count, json.loads(path.read_text())["runs"]["job"]["count"]]
    assert counts[0] < counts[1], "who has seen it before takes it for one that stands still"
    resign(office(path, "a", again))
    assert campaign(candidate(path, "b"))["create_revision"] == 3


def test_whoever_counts_no_more_is_followed_after_its_lease(path: Path) -> None:
    """By the clock of who looks, from when it first saw the count; a term is never used twice."""
    won = campaign(candidate(path, "a", term=41))
    assert won["create_revision"] == 41, "what the others know of before counts too"

    def look(at: float, before: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        seen = None if before is None else before["seen"]
        return campaign({**candidate(path, "b"), "seen": seen}, now=at)

    first = look(100.0)
    assert renew(office(path, "a", won)) == TTL_S
    second = look(100.0 + TTL_S + 1, first)
    assert not second["is_won"], "it has counted on"
    third = look(100.0 + 2 * TTL_S, second)
    assert not third["is_won"]
    assert not look(100.0 + 9 * TTL_S)["is_won"], "a node that has seen nothing yet begins to look"
    last = look(100.0 + 2 * TTL_S + 2, third)
    assert (last["is_won"], last["create_revision"]) == (True, 42)
    assert renew(office(path, "a", won)) == 0


def test_an_end_stands_in_the_place_of_the_last_round(path: Path) -> None:
    """A later candidate is told, and may win: the next job begins with a higher term."""
    won = campaign(candidate(path, "a"))
    assert record({**office(path, "a", won), "record": "round 7"})
    assert conclude({**office(path, "a", won), "ending": "well"})
    lost = campaign(candidate(path, "b"))
    assert (lost["is_won"], lost["ending"]) == (False, "well")
    resign(office(path, "a", won))
    second = campaign(candidate(path, "b"))
    assert (second["is_won"], second["create_revision"]) == (True, 2)
    assert (second["record"], second["ending"]) == ("", "well")


def test_ends_of_long_ago_make_room_for_others(path: Path) -> None:
    """Not by a clock, which no two machines share: by how many jobs have ended since."""
    running = campaign(candidate(path, "r", "running"))
    for number in range(100):
        run_id = f"job {number}"
        won = office(path, "a", campaign(candidate(path, "a", run_id)), run_id)
        assert conclude({**won, "ending": "well"})
        resign(won)
    runs = json.loads(path.read_text())["runs"]
    assert list(runs) == ["running", *(f"job {number}" for number in range(36, 100))]
    assert renew(office(path, "r", running, "running")) == TTL_S


def test_jobs_share_a_file_and_disturb_nobody(path: Path) -> None:
    """It is not removed when they are over: others may have it open."""
    first = campaign(candidate(path, "a", "one"))
    second = campaign(candidate(path, "b", "two"))
    assert (first["is_won"], second["is_won"]) == (True, True)
    resign(office(path, "a", first, "one"))
    assert renew(office(path, "b", second, "two")) == TTL_S
    resign(office(path, "b", second, "two"))
    assert renew(office(path, "b", second, "two")) == 0


ROUNDS, NODES = 100, 4


def campaign_at_once(path: Path, name: str, gate: Event, results: Any) -> None:  # noqa: ANN401
    """Campaign for one job after the other, from when the gate is opened."""
    gate.wait(60)
    results.put([campaign(candidate(path, name, f"job {number}")) for number in range(ROUNDS)])


def test_of_those_who_come_at_once_one_wins(path: Path) -> None:
    """From as many processes; all the others are told who, and no job loses its entry."""
    context = multiprocessing.get_context("fork")
    gate, results = context.Event(), context.Queue()
    processes = [
        context.Process(target=campaign_at_once, args=(path, f"n{n}", gate, results))
        for n in range(NODES)
    ]
    for process in processes:
        process.start()
    gate.set()
    answers = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join(60)
        process.close()
    results.close()
    for found in zip(*answers, strict=True):
        assert [each["is_won"] for each in found].count(True) == 1
        assert len({each["value"] for each in found}) == 1


def test_a_file_that_holds_something_else_is_left_as_it_is(path: Path) -> None:
    """A file of torch's, a text, half a line of ours: nobody wins, and what is there is said."""
    for data in (
        b"\x05\0\0\0\0\0\0\0init/",
        b"notes\n",
        b'{"format": "pytest-elastic regi',
        b"{}\n",
        b'{"format": "pytest-elastic registry 1", "runs": {"r": {"holder": "h", "term": 1e999}}}\n',
    ):
        path.write_bytes(data)
        with pytest.raises(StoreUnreachable, match=r"which no pytest-elastic wrote"):
            campaign(candidate(path, "a"))
        with pytest.raises(UsageError, match=r"^--rdzv-endpoint=\S+ holds b'.*no pytest-elastic"):
            prepare(str(path), said="--rdzv-endpoint")
        assert path.read_bytes() == data


def test_a_file_that_finds_no_room_stays_as_it_was(path: Path) -> None:
    """A leader that could not write does not lead for longer than its lease."""
    won = campaign(candidate(path, "a"))
    before = path.read_bytes()
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.getsignal(signal.SIGXFSZ)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 10, limits[1]))
    try:
        with pytest.raises(StoreUnreachable, match=r"job\.rdzv: (File too large|No space left)"):
            record({**office(path, "a", won), "record": "x" * 5000})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert path.read_bytes() == before
    assert renew(office(path, "a", won)) == TTL_S


def test_what_stands_is_whole_until_what_follows_it_is(path: Path) -> None:
    """Whatever is being written when a machine loses its power: nothing is written over.

    But for the count, whose place and length do not change; else each coordinator would wait for
    the disk four times in a lease.
    """
    first = campaign(candidate(path, "a", "one"))
    second = campaign(candidate(path, "b", "two"))
    for act in (
        lambda: record({**office(path, "a", first, "one"), "record": "x" * 5000}),
        lambda: campaign(candidate(path, "c", "three")),
        lambda: conclude({**office(path, "a", first, "one"), "ending": "well"}),
        lambda: resign(office(path, "b", second, "two")),
    ):
        with path.open() as old:
            before = path.read_text()
            act()
            assert path.read_text() != before
            assert old.read() == before
    won = office(path, "c", campaign(candidate(path, "c", "three")), "three")
    with path.open() as old:
        before = path.read_text()
        assert renew(won)
        after = old.read()
    changed = [(a, b) for a, b in zip(before, after, strict=True) if a != b]
    assert changed
    assert all(a.isdigit() and b.isdigit() for a, b in changed)
    assert path.read_text() == after
    assert os.listdir(path.parent) == [path.name]


def test_a_lock_that_nobody_gives_back_is_told_in_time(path: Path) -> None:
    """Instead of a call that hangs with the holder; a node that begins does not wait."""
    path.touch()
    with path.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(StoreUnreachable, match=r"was locked by another process for 0\.05 s"):
            campaign({**candidate(path, "a"), "timeout_s": 0.05})
        prepare(str(path), said="--rdzv-endpoint")
    assert campaign(candidate(path, "a"))["is_won"]


def test_a_path_that_no_file_can_have_is_refused_before_the_node_joins(tmp_path: Path) -> None:
    """What was said, what is wrong with it, and what is expected."""
    os.mkfifo(tmp_path / "pipe")
    for name, why in {
        "": "Is a directory",
        "no/folder": f"there is no folder {tmp_path}/no",
        "pipe": "it is no plain file",
        "pipe/x": "Not a directory",
        "n" * 300: "File name too long",
        "/../../../../../../../../../../proc/x": "No such file or directory",
    }.items():
        with pytest.raises(UsageError) as caught:
            prepare(f"{tmp_path}/{name}", said="--rdzv-endpoint")
        assert str(caught.value).startswith(f"--rdzv-endpoint={tmp_path}/{name}: {why}\n")
        assert "names a file that all nodes can write" in str(caught.value)
    prepare(str(tmp_path / "fresh"), said="--rdzv-endpoint")
    assert (tmp_path / "fresh").read_bytes() == b""
