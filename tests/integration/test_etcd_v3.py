"""Jobs where etcd says who decides, and the four calls that this takes, with a real etcd."""

from __future__ import annotations

import base64
import json
import re
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pytest_elastic.backends.granted_registry import where_in_etcd
from pytest_elastic.errors import StoreUnreachable, UsageError
from pytest_elastic.workers import etcd_client
from tests.conformance.launchers import OURS, Running, write
from tests.integration.etcd_server import EtcdServer, serve_etcd

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

# Nothing here makes an optimizer, or counts how soon workers start.
LEAN = ("--worker-start=exec",)
CONF = "--rdzv-conf=beat_interval=0.3,lease=2,drift=0.2,min_round=0.1,last_call_timeout=600"

STAY = """
import os, sys, time
names = ("PYTEST_ELASTIC_ROUND", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT", "PYTEST_ELASTIC_TERM")
words = ["started", *(os.environ[name] for name in names), str(os.getpid())]
sys.stdout.write(" ".join(words) + "\\n")  # at once, or a reader sees half of it
while not os.path.exists("done"): time.sleep(0.05)
"""


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    """Serve etcd."""
    folder = tmp_path / "etcd"
    folder.mkdir()
    yield from serve_etcd(folder)


def agent(folder: Path, etcd: EtcdServer, name: str, nnodes: str) -> Running:
    """Start one node of the job."""
    script = write(folder / "stay.py", STAY)
    return Running(
        folder,
        *(*OURS, *LEAN, f"--nnodes={nnodes}", "--max-restarts=0", "--rdzv-backend=etcd-v3"),
        *(f"--rdzv-endpoint={etcd.endpoint}", "--rdzv-id=job", CONF),
        *(f"--node-name={name}", script),
    )


def starts(running: Running) -> list[tuple[int, ...]]:
    """Return (round, world size, restarts, term, pid) of each start of a node's worker."""
    found = re.findall(r"^started (\d+) (\d+) (\d+) (\d+) (\d+)$", running.printed, re.MULTILINE)
    return [tuple(map(int, numbers)) for numbers in found]


def is_running(pid: int) -> bool:
    """Tell whether a process is there and is more than a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_another_takes_over_from_a_coordinator_that_freezes_and_from_one_that_leaves(
    tmp_path: Path, etcd: EtcdServer
) -> None:
    """With a higher term, the round's number and no restart; the frozen one's workers are dead."""
    agents = {name: agent(tmp_path, etcd, name, "1:2") for name in ("n1", "n2")}
    try:
        for each in agents.values():
            each.wait_for("started 1 2 0 ")
        first = next(each for each in agents.values() if "names this node" in each.printed)
        second = next(each for each in agents.values() if each is not first)
        first.process.send_signal(signal.SIGSTOP)
        second.wait_for("started ", times=2)
        ((_, _, _, old_term, old_pid),) = starts(first)
        assert not is_running(old_pid), "two rounds ran at once"
        *_, (round_, size, restarts, term, _) = starts(second)
        assert "names this node" in second.printed
        assert round_ > 1
        assert (size, restarts) == (1, 0)
        assert term > old_term
        # It finds that it decides no more, and comes back as a member.
        first.process.send_signal(signal.SIGCONT)
        second.wait_for("started ", times=3)
        first.wait_for("started ", times=2)
        assert starts(first)[-1][:4] == starts(second)[-1][:4]
        # Handed over: nobody waits for a lease to run out.
        second.process.send_signal(signal.SIGTERM)
        assert second.wait() == 128 + signal.SIGTERM, second.printed
        first.wait_for("started ", times=3)
        assert starts(first)[-1][3] > term
        (tmp_path / "done").touch()
        assert first.wait() == 0, first.printed
    finally:
        for each in agents.values():
            each.process.send_signal(signal.SIGCONT)
            each.end()


def test_a_round_ends_with_its_etcd_and_goes_on_with_it(tmp_path: Path, etcd: EtcdServer) -> None:
    """Frozen beyond the lease, then gone with all its data: the same job, with higher terms."""
    only = agent(tmp_path, etcd, "n1", "1")
    try:
        only.wait_for("started 1 1 0 ")
        ((_, _, _, first_term, first_pid),) = starts(only)
        etcd.signal(signal.SIGSTOP)
        # While etcd cannot name anybody else yet, this one has fenced already.
        only.wait_for("were killed")
        etcd.signal(signal.SIGCONT)
        only.wait_for("started ", times=2)
        assert not is_running(first_pid)
        second, second_term = starts(only)[-1][0], starts(only)[-1][3]
        assert second_term >= first_term
        etcd.stop()
        etcd.forget()
        etcd.start()
        only.wait_for("started ", times=3)
        third, third_term = starts(only)[-1][0], starts(only)[-1][3]
        assert 1 < second < third
        assert third_term > second_term
        (tmp_path / "done").touch()
        assert only.wait() == 0, only.printed
    finally:
        only.end()


def test_a_node_that_was_away_finds_a_job_whose_etcd_was_restarted(
    tmp_path: Path, etcd: EtcdServer
) -> None:
    """With its data kept: nobody is named who was not, terms rise, and no round runs twice."""
    agents = {name: agent(tmp_path, etcd, name, "1:2") for name in ("n1", "n2")}
    try:
        for each in agents.values():
            each.wait_for("started 1 2 0 ")
        here = next(each for each in agents.values() if "names this node" in each.printed)
        away = next(each for each in agents.values() if each is not here)
        away.process.send_signal(signal.SIGSTOP)
        here.wait_for("started ", times=2)
        ((_, _, _, first_term, away_pid),) = starts(away)
        assert not is_running(away_pid), "two rounds ran at once"
        etcd.stop()
        etcd.start()
        away.process.send_signal(signal.SIGCONT)
        # The restart may have lasted longer than the lease, or not: there may be a round between.
        for each in agents.values():
            while starts(each)[-1][1:3] != (2, 0) or starts(each)[-1][0] == 1:
                each.wait_for("started ", times=len(starts(each)) + 1)
        last = starts(here)[-1]
        assert last[:4] == starts(away)[-1][:4]
        assert last[3] >= first_term
        rounds = [start[0] for start in starts(here)]
        assert rounds == sorted(set(rounds))
        (tmp_path / "done").touch()
        assert [here.wait(), away.wait()] == [0, 0], here.printed + away.printed
    finally:
        for each in agents.values():
            each.process.send_signal(signal.SIGCONT)
            each.end()


# The calls


def place(etcd: EtcdServer, **more: object) -> dict[str, Any]:
    """Return how to get to it."""
    return {"endpoints": [etcd.endpoint], "protocol": "http", **more}


def candidate(name: str) -> dict[str, Any]:
    """Return what a node campaigns with."""
    value = json.dumps({"incarnation": name})
    return {"key": "/job/coordinator", "record_key": "/job/round", "value": value, "ttl_s": 60}


def asking(where: Mapping[str, Any], timeout_s: float = 10.0) -> etcd_client.Etcd:
    """Return a client for one call."""
    return etcd_client.Etcd(where, timeout_s=timeout_s)


def test_one_campaign_wins_and_what_it_writes_stands_while_its_key_does(etcd: EtcdServer) -> None:
    """Compaction changes nothing: nobody reads the past."""
    at = place(etcd)
    won = etcd_client.campaign(asking(at), candidate("a"))
    office = {**candidate("a"), **won}
    assert won["is_won"]
    assert won["ttl_s"] >= 60
    lost = etcd_client.campaign(asking(at), candidate("b"))
    assert (lost["is_won"], lost["value"]) == (False, won["value"])
    again = etcd_client.campaign(asking(at), candidate("a"))
    assert (again["is_won"], again["lease"]) == (True, won["lease"])
    assert etcd_client.record(asking(at), {**office, "record": "round 7"})
    revision = asking(at).ask("/v3/kv/range", {"key": "AA=="})["header"]["revision"]
    asking(at).ask("/v3/kv/compaction", {"revision": revision, "physical": True})
    assert etcd_client.renew(asking(at), office) >= 5
    etcd_client.resign(asking(at), {**office, "is_over": False})
    next_one = etcd_client.campaign(asking(at), candidate("b"))
    assert (next_one["is_won"], next_one["record"]) == (True, "round 7")
    assert next_one["create_revision"] > won["create_revision"]
    # The first one does not know yet.
    assert etcd_client.renew(asking(at), office) == 0
    assert not etcd_client.record(asking(at), {**office, "record": "round 8"})
    etcd_client.resign(asking(at), {**candidate("b"), **next_one, "is_over": True})
    assert etcd_client.campaign(asking(at), candidate("c"))["record"] == ""


class Together(etcd_client.Etcd):
    """Waits for the others between looking and taking: nobody has written when all have looked."""

    def __init__(self, where: Mapping[str, Any], barrier: threading.Barrier) -> None:
        super().__init__(where, timeout_s=60.0)
        self._barrier = barrier

    def ask(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        if path == "/v3/kv/txn":
            self._barrier.wait(60)
        return super().ask(path, body)


def test_of_those_who_campaign_at_once_one_wins(etcd: EtcdServer) -> None:
    """The others are told who, and leave no lease behind."""
    names = [f"n{number}" for number in range(6)]
    at, barrier = place(etcd), threading.Barrier(len(names))

    def campaign(name: str) -> Mapping[str, Any]:
        return etcd_client.campaign(Together(at, barrier), candidate(name))

    with ThreadPoolExecutor(len(names)) as pool:
        found = dict(zip(names, pool.map(campaign, names), strict=True))
    (winner,) = [name for name, each in found.items() if each["is_won"]]
    assert {json.loads(each["value"])["incarnation"] for each in found.values()} == {winner}
    assert len({each["create_revision"] for each in found.values()}) == 1
    leases = asking(at).ask("/v3/lease/leases", {})["leases"]
    assert [each["ID"] for each in leases] == [found[winner]["lease"]]


def test_words_that_somebody_else_put_in_the_key_are_replaced(etcd: EtcdServer) -> None:
    """As long as whoever decides still holds it: the next renewal says again who that is."""
    at = place(etcd)
    office = {**candidate("a"), **etcd_client.campaign(asking(at), candidate("a"))}
    key, forged = base64.b64encode(office["key"].encode()).decode(), "Zm9yZ2Vk"
    asking(at).ask("/v3/kv/put", {"key": key, "value": forged})
    assert etcd_client.campaign(asking(at), candidate("b"))["value"] == "forged"
    assert etcd_client.renew(asking(at), office) >= 5
    assert etcd_client.campaign(asking(at), candidate("b"))["value"] == office["value"]
    etcd_client.resign(asking(at), {**office, "is_over": False})
    assert etcd_client.campaign(asking(at), candidate("b"))["is_won"], "it is bound to the lease"


def test_an_etcd_that_does_not_answer_is_named_in_time(etcd: EtcdServer) -> None:
    """One that refuses, one that is frozen, and one that is something else; a good one is found."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        wrong = f"127.0.0.1:{other.getsockname()[1]}"
        both = place(etcd, endpoints=["127.0.0.1:1", etcd.endpoint])
        assert etcd_client.campaign(asking(both), candidate("a"))["is_won"]
        with pytest.raises(StoreUnreachable, match=r"127\.0\.0\.1:1: Connection refused"):
            etcd_client.campaign(asking(place(etcd, endpoints=["127.0.0.1:1"])), candidate("a"))
        with pytest.raises(StoreUnreachable, match=f"{wrong}: timed out"):
            etcd_client.renew(asking(place(etcd, endpoints=[wrong]), 0.2), candidate("a"))
        etcd.signal(signal.SIGSTOP)
        try:
            with pytest.raises(StoreUnreachable, match="timed out"):
                etcd_client.campaign(asking(place(etcd), 0.2), candidate("b"))
        finally:
            etcd.signal(signal.SIGCONT)


def test_a_user_and_a_password_open_an_etcd_that_asks_for_them(
    etcd: EtcdServer, tmp_path: Path
) -> None:
    """Without them, what etcd said."""
    ask = asking(place(etcd)).ask
    ask("/v3/auth/role/add", {"name": "root"})
    ask("/v3/auth/user/add", {"name": "root", "password": "secret"})
    ask("/v3/auth/user/grant", {"user": "root", "role": "root"})
    ask("/v3/auth/enable", {})
    with pytest.raises(StoreUnreachable, match="user name is empty"):
        etcd_client.campaign(asking(place(etcd)), candidate("a"))
    with pytest.raises(StoreUnreachable, match="authentication failed"):
        etcd_client.campaign(asking(place(etcd, user="root", password="no")), candidate("a"))
    secret = tmp_path / "secret"
    secret.write_text("secret\n")
    conf = {"user": "root", "password_file": str(secret)}
    at = where_in_etcd(etcd.endpoint, conf, "job").arguments["etcd"]
    assert etcd_client.campaign(asking(at), candidate("a"))["is_won"]


def test_an_etcd_behind_tls_has_to_show_a_certificate_that_is_trusted(tmp_path: Path) -> None:
    """And one that speaks TLS only is not found without it."""
    for secured in serve_etcd(tmp_path, "--auto-tls"):
        with pytest.raises(StoreUnreachable, match="certificate verify failed"):
            etcd_client.campaign(asking(place(secured, protocol="https")), candidate("a"))
        with pytest.raises(StoreUnreachable):
            etcd_client.campaign(asking(place(secured)), candidate("a"))
        at = place(secured, protocol="https", ca_cert=str(secured.certificate))
        assert etcd_client.campaign(asking(at), candidate("a"))["is_won"]


def test_an_etcd_that_asks_for_a_certificate_is_shown_ours(tmp_path: Path) -> None:
    """Without it, and with a file that holds none, it is said."""
    # One for all: etcd's own gateway shows the server's certificate as a client.
    cert, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-addext", "extendedKeyUsage=serverAuth,clientAuth"),
            *("-keyout", key, "-out", cert),
        ],
        check=True,
        capture_output=True,
    )
    words = (f"--cert-file={cert}", f"--key-file={key}", f"--trusted-ca-file={cert}")
    for strict in serve_etcd(tmp_path, *words, "--client-cert-auth"):
        trust = {"protocol": "https", "ca_cert": cert}
        ours = {"ssl_cert": cert, "ssl_cert_key": key}
        at = where_in_etcd(strict.endpoint, {**trust, **ours}, "job").arguments["etcd"]
        assert etcd_client.campaign(asking(at), candidate("a"))["is_won"]
        with pytest.raises(StoreUnreachable):
            etcd_client.campaign(asking(place(strict, **trust)), candidate("b"))
    for wrong, said in (
        ({"ssl_cert": f"{tmp_path}/none.pem"}, r"cannot read .*/none\.pem: No such file"),
        ({"ca_cert": key}, r"--rdzv-conf ca_cert=.*key\.pem holds no certificate"),
        ({"ssl_cert": cert}, "with ssl_cert_key=itself are no certificate and its key"),
    ):
        with pytest.raises(UsageError, match=said):
            where_in_etcd("localhost", {"protocol": "https", **wrong}, "job")
