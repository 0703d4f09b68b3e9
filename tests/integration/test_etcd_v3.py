"""Jobs where etcd names the leader, and the five calls that this takes, with a real etcd."""

from __future__ import annotations

import base64
import json
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pytest_elastic.backends.registry_place import where_in_etcd
from pytest_elastic.errors import StoreUnreachable, UsageError
from pytest_elastic.workers.store import etcd_client
from tests.conformance.launchers import Running
from tests.integration import granted_job
from tests.integration.etcd_server import EtcdServer, serve_etcd
from tests.integration.granted_job import (
    CONF,
    ending,
    host_and_other,
    is_running,
    leave_behind,
    starts,
    take_over,
)

pytestmark = pytest.mark.slow


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    """Serve etcd."""
    folder = tmp_path / "etcd"
    folder.mkdir()
    yield from serve_etcd(folder)


def agent(folder: Path, etcd: EtcdServer, name: str, nnodes: str) -> Running:
    """Start one node of the job."""
    where = ("--rdzv-backend=etcd-v3", f"--rdzv-endpoint={etcd.endpoint}", f"--rdzv-conf={CONF}")
    return granted_job.agent(folder, name, f"--nnodes={nnodes}", "--max-restarts=0", *where)


def test_another_takes_over_from_a_coordinator_that_freezes_and_from_one_that_leaves(
    tmp_path: Path, etcd: EtcdServer
) -> None:
    """With a higher term, the round's number and no restart; the frozen one's workers are dead."""
    agents = {name: agent(tmp_path, etcd, name, "1:2") for name in ("n1", "n2")}
    with ending(agents):
        first, second = host_and_other(agents)
        alone = take_over(first, second)
        # Handed over: nobody waits for a lease to run out.
        second.process.send_signal(signal.SIGTERM)
        assert second.wait() == 128 + signal.SIGTERM, second.printed
        first.wait_for("started ", times=3)
        assert starts(first)[-1].term > alone.term
        (tmp_path / "done").touch()
        assert first.wait() == 0, first.printed


def test_a_round_ends_with_its_etcd_and_goes_on_with_it(tmp_path: Path, etcd: EtcdServer) -> None:
    """Frozen beyond the lease, then gone with all its data: the same job, with higher terms."""
    only = agent(tmp_path, etcd, "n1", "1")
    with ending({"n1": only}):
        only.wait_for("started 1 1 0 ")
        (first,) = starts(only)
        etcd.signal(signal.SIGSTOP)
        # While etcd cannot name anybody else yet, this one has fenced already.
        only.wait_for("were killed")
        etcd.signal(signal.SIGCONT)
        only.wait_for("started ", times=2)
        assert not is_running(first.pid)
        second = starts(only)[-1]
        assert second.term >= first.term
        etcd.stop()
        etcd.forget()
        etcd.start()
        only.wait_for("started ", times=3)
        third = starts(only)[-1]
        assert 1 < second.round < third.round
        assert third.term > second.term
        (tmp_path / "done").touch()
        assert only.wait() == 0, only.printed


def test_a_node_that_was_away_finds_a_job_whose_etcd_was_restarted(
    tmp_path: Path, etcd: EtcdServer
) -> None:
    """With its data kept: nobody is named who was not, terms rise, and no round runs twice."""
    agents = {name: agent(tmp_path, etcd, name, "1:2") for name in ("n1", "n2")}
    with ending(agents):
        here, away = leave_behind(agents)
        (before,) = starts(away)
        assert not is_running(before.pid), "two rounds ran at once"
        etcd.stop()
        etcd.start()
        away.process.send_signal(signal.SIGCONT)
        # The restart may have lasted longer than the lease, or not: there may be a round between.
        for each in agents.values():
            while starts(each)[-1][1:3] != (2, 0) or starts(each)[-1].round == 1:
                each.wait_for("started ", times=len(starts(each)) + 1)
        last = starts(here)[-1]
        assert last[:4] == starts(away)[-1][:4]
        assert last.term >= before.term
        rounds = [start.round for start in starts(here)]
        assert rounds == sorted(set(rounds))
        (tmp_path / "done").touch()
        assert [here.wait(), away.wait()] == [0, 0], here.printed + away.printed


def test_a_node_that_was_away_until_after_the_end_is_told_it_by_etcd(
    tmp_path: Path, etcd: EtcdServer
) -> None:
    """It begins nothing; a new node of the same run id does, at once, and follows nobody."""
    agents = {name: agent(tmp_path, etcd, name, "1:2") for name in ("n1", "n2")}
    with ending(agents):
        here, away = leave_behind(agents)
        (tmp_path / "done").touch()
        assert here.wait() == 0, here.printed
        (tmp_path / "done").unlink()
        agents["n3"] = new = agent(tmp_path, etcd, "n3", "1")
        new.wait_for("started ")
        assert "names this node after" not in new.printed
        away.process.send_signal(signal.SIGCONT)
        assert away.wait() == 0, away.printed
        last = max(start.round for start in starts(here))
        assert all(start.round <= last for start in starts(away)), away.printed
        (tmp_path / "done").touch()
        assert new.wait() == 0, new.printed


# The calls


def place(etcd: EtcdServer, **more: object) -> dict[str, Any]:
    """Return how to get to it."""
    return {"endpoints": [etcd.endpoint], "protocol": "http", **more}


def candidate(name: str) -> dict[str, Any]:
    """Return what a node campaigns with."""
    value = json.dumps({"incarnation": name})
    keys = {"key": "/job/coordinator", "record_key": "/job/round", "end_key": "/job/end"}
    return {**keys, "value": value, "ttl_s": 60, "end_ttl_s": 60}


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
    assert etcd_client.record(asking(at), {**office, "record": "round 7"})
    revision = asking(at).ask("/v3/kv/range", {"key": "AA=="})["header"]["revision"]
    asking(at).ask("/v3/kv/compaction", {"revision": revision, "physical": True})
    assert etcd_client.renew(asking(at), office) >= 5
    etcd_client.resign(asking(at), office)
    next_one = etcd_client.campaign(asking(at), candidate("b"))
    assert (next_one["is_won"], next_one["record"]) == (True, "round 7")
    assert next_one["create_revision"] > won["create_revision"]
    # The first one does not know yet.
    assert etcd_client.renew(asking(at), office) == 0
    assert not etcd_client.record(asking(at), {**office, "record": "round 8"})
    assert not etcd_client.conclude(asking(at), {**office, "ending": "well"})
    office = {**candidate("b"), **next_one}
    assert etcd_client.conclude(asking(at), {**office, "ending": "well"})
    assert etcd_client.campaign(asking(at), candidate("c"))["ending"] == "well"
    etcd_client.resign(asking(at), office)
    last_one = etcd_client.campaign(asking(at), candidate("c"))
    assert (last_one["is_won"], last_one["record"], last_one["ending"]) == (True, "", "well")
    # The end has a lease of its own, which the one that was given back does not take with it.
    leases = asking(at).ask("/v3/lease/leases", {})["leases"]
    assert len(leases) == 2
    assert office["lease"] not in {each["ID"] for each in leases}
    (of_end,) = {each["ID"] for each in leases} - {last_one["lease"]}
    asking(at).ask("/v3/lease/revoke", {"ID": of_end})
    assert etcd_client.campaign(asking(at), candidate("c"))["ending"] == ""


def test_a_resignation_that_comes_late_ends_no_later_lease(etcd: EtcdServer) -> None:
    """Each call has a thread: who resigns and campaigns again may win before it has resigned."""
    at = place(etcd)
    first = {**candidate("a"), **etcd_client.campaign(asking(at), candidate("a"))}
    again = {**candidate("a"), **etcd_client.campaign(asking(at), candidate("a"))}
    assert again["is_won"]
    assert again["create_revision"] > first["create_revision"]
    with pytest.raises(StoreUnreachable, match="lease not found"):
        etcd_client.resign(asking(at), first)
    assert etcd_client.renew(asking(at), again) >= 5
    assert not etcd_client.campaign(asking(at), candidate("b"))["is_won"]
    assert etcd_client.renew(asking(at), first) == 0


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
    """As long as the leader still holds it: the next renewal names the leader again."""
    at = place(etcd)
    office = {**candidate("a"), **etcd_client.campaign(asking(at), candidate("a"))}
    key, forged = base64.b64encode(office["key"].encode()).decode(), "Zm9yZ2Vk"
    asking(at).ask("/v3/kv/put", {"key": key, "value": forged})
    assert etcd_client.campaign(asking(at), candidate("b"))["value"] == "forged"
    assert etcd_client.renew(asking(at), office) >= 5
    assert etcd_client.campaign(asking(at), candidate("b"))["value"] == office["value"]
    etcd_client.resign(asking(at), office)
    assert etcd_client.campaign(asking(at), candidate("b"))["is_won"], "it is bound to the lease"


def test_an_endpoint_that_is_silent_leaves_time_for_the_others(etcd: EtcdServer) -> None:
    """A machine of the etcd that lost its power, listed first: the others have a quorum.

    It costs its share of the time once; then the one that answered is asked first.
    """
    with socket.create_server(("127.0.0.1", 0)) as silent:
        dead = f"127.0.0.1:{silent.getsockname()[1]}"
        at = place(etcd, endpoints=[dead, etcd.endpoint])
        assert etcd_client.campaign(asking(at, 4.0), candidate("a"))["is_won"]
        began = time.monotonic()
        assert not etcd_client.campaign(asking(at, 4.0), candidate("b"))["is_won"]
        assert time.monotonic() - began < 2.0, "less than the share of the silent one"


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
