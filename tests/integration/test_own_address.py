"""The address under which a node is known to the others, on machines as they are."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from elastic_harness.future import wait_for
from elastic_harness.network.names import NameChange

from pytest_elastic.config import Endpoint
from pytest_elastic.errors import UsageError
from pytest_elastic.events.codec import read_records
from pytest_elastic.events.model import AgentMoved, AgentStarted
from pytest_elastic.workers.store.own_address import (
    OwnAddress,
    address_as_said,
    interface_addresses,
    own_address,
)
from tests.cluster_bench import LIMIT_S, Bench

ASK = """
import json, sys
from pytest_elastic.config import Endpoint
from pytest_elastic.workers.store.own_address import own_address
found = own_address([Endpoint(host=host, port=29400) for host in sys.argv[1:]])
print(json.dumps([found.address, found.doubt]))
"""
ASK_SAID = """
import json, sys
from pytest_elastic.config import Endpoint
from pytest_elastic.workers.store.own_address import address_as_said
endpoints = [Endpoint(host=sys.argv[2], port=29400)]
found = address_as_said(sys.argv[1], endpoints, said="--local-addr")
print(json.dumps([found.address, found.doubt, found.is_said]))
"""
DEBIANS_HOSTS = {"n1": NameChange(address="127.0.1.1")}


@pytest.fixture
def bench(cluster_bench: Bench, tmp_path: Path) -> Iterator[Bench]:
    """Lend the server, with two nodes, and look for what the test left."""
    for lent in cluster_bench.borrow(tmp_path):
        lent.start("n1", "n2")
        yield lent


def ask(bench: Bench, node: str, *endpoints: str) -> tuple[str, str]:
    """Return the address that a node takes for its own, and what is doubtful about it."""
    address, doubt = json.loads(bench.output(bench.python(node, ASK, *endpoints)))
    return address, doubt


def test_a_node_whose_name_is_127_0_1_1_is_known_by_an_address_that_others_reach(
    bench: Bench,
) -> None:
    """Debian writes that into /etc/hosts; what was guessed is said, with all there is."""
    changes = bench.names.set_names("n1", DEBIANS_HOSTS)
    wait_for(bench.loop, changes, within_s=LIMIT_S)
    address, doubt = ask(bench, "n1", "n1")
    assert address == "10.77.0.1"
    assert doubt == (
        "n1 is 127.0.1.1 on this machine, so that its way to the others had to be guessed: it is "
        "known to them as 10.77.0.1, of 10.77.0.1 (--local-addr gives another)"
    )


@pytest.mark.parametrize(
    ("endpoints", "expected"),
    [
        (("n1",), "10.77.0.1"),
        (("n2",), "10.77.0.1"),
        (("10.77.0.2",), "10.77.0.1"),
        (("n1", "n2"), "10.77.0.1"),
        (("127.0.0.1", "n2"), "10.77.0.1"),
        (("nobody.invalid",), "10.77.0.1"),
        ((), "10.77.0.1"),
        (("127.0.0.1",), "127.0.0.1"),
        (("localhost",), "127.0.0.1"),
        (("127.5.0.1", "LOCALHOST."), "127.0.0.1"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_it_is_the_one_towards_where_nodes_meet(
    bench: Bench, endpoints: tuple[str, ...], expected: str
) -> None:
    """A loopback address only by the user's own word; and nothing is doubtful then."""
    address, doubt = ask(bench, "n1", *endpoints)
    assert address == expected or (address, endpoints) == ("::1", ("localhost",))
    assert doubt == ""


def test_a_machine_without_a_network_says_that_nobody_can_reach_it(tmp_path: Path) -> None:
    """It takes part all the same: the others may be on this machine."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("no network can be left here")
    alone = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", ASK, "somebody.invalid"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
        cwd=tmp_path,
    )
    address, doubt = json.loads(alone.stdout)
    assert address == "127.0.0.1"
    assert doubt.startswith("this node is known to the others as 127.0.0.1, which no other machine")


def test_ipv6_alone_is_an_address_too(bench: Bench) -> None:
    """Of a machine that has no other; where nodes meet at IPv6, that is taken."""
    endpoint = [Endpoint(host="::1", port=29400)]
    assert own_address(endpoint) == OwnAddress(address="::1")


def test_the_interfaces_of_this_machine_are_found() -> None:
    """Those that the kernel would use, and none that only this machine reaches."""
    found = interface_addresses()
    assert all(not each.startswith(("127.", "fe80")) for each in found)
    towards = own_address([]).address
    assert towards in found or towards == "127.0.0.1"


def test_who_says_an_address_is_believed() -> None:
    """And told if it is none."""
    said = address_as_said("127.0.0.1", [Endpoint(host="n1", port=1)], said="x")
    assert said == OwnAddress(address="127.0.0.1", is_said=True)
    with pytest.raises(UsageError, match=r"--local-addr=nowhere\.invalid: no such address"):
        address_as_said("nowhere.invalid", [], said="--local-addr")


def test_a_name_that_is_127_0_1_1_on_its_own_machine_says_nothing_about_its_address(
    bench: Bench,
) -> None:
    """With `--local-addr`, too: the others know it by another address."""
    changes = bench.names.set_names("n1", DEBIANS_HOSTS)
    wait_for(bench.loop, changes, within_s=LIMIT_S)
    (address, doubt, is_said), others = (
        json.loads(bench.output(bench.python(node, ASK_SAID, node, meet)).splitlines()[-1])
        for node, meet in (("n1", "n2"), ("n2", "n1"))
    )
    assert (address, is_said) == ("10.77.0.1", False)
    assert doubt.startswith("n1 is 127.0.1.1 on this machine, so that its way to the others had")
    assert others == ["10.77.0.2", "", True]


LAUNCH = (
    *(sys.executable, "-m", "pytest_elastic", "run", "--nnodes=2", "--rdzv-backend=c10d"),
    *("--rdzv-endpoint=n1:29400", "--rdzv-conf=join_timeout=30,min_round=0.1"),
    *("--worker-start=exec", "--no-python", "true"),
)


def test_a_job_forms_at_a_host_that_takes_its_own_name_for_127_0_1_1(bench: Bench) -> None:
    """The host publishes an address that the other node can dial."""
    changes = bench.names.set_names("n1", DEBIANS_HOSTS)
    wait_for(bench.loop, changes, within_s=LIMIT_S)
    nodes = [bench.run(node, *LAUNCH) for node in ("n1", "n2")]
    assert [bench.finish(node) for node in nodes] == [0, 0], bench.printed()


# One interface, with a link-local address and the others that are given; the machine's own name is
# the link-local address, as a name service that knows all of its addresses has it.
ON_ONE_LINK = """
set -e
echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad
ip link set lo up
ip tuntap add link0 mode tap
ip link set link0 up
ip -6 address flush dev link0
ip address add fe80::7/64 dev link0 nodad
for each in $ADDRESSES; do ip address add $each/64 dev link0 nodad; done
ip -6 route add default dev link0
printf '127.0.0.1 localhost\\nfe80::7 %s\\n' "$(hostname)" > hosts
mount --bind hosts /etc/hosts
exec "$@"
"""
# All of its processes end with the first one.
ALONE = ("unshare", "--mount-proc", "--net", "--pid", "--fork", "--kill-child")
needs_namespaces = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs namespaces of its own"
)


def on_one_link(
    folder: Path, *command: str, addresses: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a command on a machine with one link."""
    return subprocess.run(
        [*ALONE, "sh", "-c", ON_ONE_LINK, "sh", *command],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        cwd=folder,
        env={**os.environ, "ADDRESSES": addresses},
    )


@needs_namespaces
@pytest.mark.parametrize(
    ("endpoints", "addresses", "expected"),
    [
        ((), "", "127.0.0.1"),
        (("somebody.invalid",), "", "127.0.0.1"),
        (("somebody.invalid",), "fd00::7", "fd00::7"),
        (("fe80::9",), "fd00::7", "fd00::7"),
        (("fe80::9%link0",), "fd00::7", "fe80::7%link0"),
    ],
)
def test_a_link_local_address_is_advertised_only_where_nodes_meet_at_one_with_its_interface(
    tmp_path: Path, endpoints: tuple[str, ...], addresses: str, expected: str
) -> None:
    """Without the interface nobody can dial it, and the interfaces of others have other names."""
    asked = on_one_link(tmp_path, sys.executable, "-c", ASK, *endpoints, addresses=addresses)
    assert asked.returncode == 0, asked.stderr
    address, doubt = json.loads(asked.stdout)
    assert address == expected
    if expected == "127.0.0.1" and endpoints:
        assert "which no other machine can reach" in doubt


@needs_namespaces
def test_a_job_forms_at_a_link_local_address_with_its_interface(tmp_path: Path) -> None:
    """Its workers, too, find their store there."""
    nodes = '"$@" --node-name=a sh -c \'echo $MASTER_ADDR\' & "$@" --node-name=b true && wait $!'
    options = ("--rdzv-endpoint=[fe80::7%link0]:29400", "--rdzv-backend=c10d", "--no-python")
    launch = (sys.executable, "-m", "pytest_elastic", "run", "--nnodes=2", "--worker-start=exec")
    job = on_one_link(tmp_path, "sh", "-c", nodes, "sh", *launch, *options, addresses="fd00::7")
    assert job.returncode == 0, job.stderr
    assert "fe80::7%link0" in job.stdout


@needs_namespaces
def test_a_link_local_address_that_was_said_needs_its_interface(tmp_path: Path) -> None:
    """With --local-addr; a name that has another address as well stands for that one."""
    said = "import sys\nfrom pytest_elastic.workers.store.own_address import address_as_said\n"
    said += "print(address_as_said(sys.argv[1], [], said='--local-addr').address)"
    hosts = 'echo fd00::7 $(hostname) >> /etc/hosts; exec "$@"'
    found = [
        on_one_link(tmp_path, *wrapped, sys.executable, "-c", said, address, addresses="fd00::7")
        for wrapped, address in (
            ((), "fe80::7"),
            ((), "fe80::7%link0"),
            (("sh", "-c", hosts, "sh"), os.uname().nodename),
        )
    ]
    assert "--local-addr=fe80::7: a link-local address needs its interface" in found[0].stderr
    assert [each.stdout.strip() for each in found[1:]] == ["fe80::7%link0", "fd00::7"]


@needs_namespaces
def test_an_agent_tells_where_it_listens_once_it_knows_the_way_to_where_nodes_meet(
    tmp_path: Path,
) -> None:
    """What it told when it started was a guess: it had not looked the endpoint up yet."""
    prepare = "ip -6 route replace default dev link0 src fd00::7; echo fd01::7 meets >> /etc/hosts"
    options = ("--nnodes=1:2", "--rdzv-backend=c10d", "--rdzv-endpoint=meets:29400")
    launch = (sys.executable, "-m", "pytest_elastic", "run", *options, "--worker-start=exec")
    conf = ("--rdzv-conf=last_call_timeout=0.1", "--no-python", "true")
    job = on_one_link(
        tmp_path,
        *("sh", "-c", f'{prepare}; exec "$@"', "sh"),
        *("env", f"PYTEST_ELASTIC_EVENTS=file:{tmp_path / 'events'}", *launch, *conf),
        addresses="fd00::7 fd01::7",
    )
    assert job.returncode == 0, job.stderr
    events = [each.event for each in read_records((tmp_path / "events").read_bytes().splitlines())]
    told = [each for each in events if isinstance(each, AgentStarted | AgentMoved)]
    assert [type(each) for each in told] == [AgentStarted, AgentMoved]
    assert [each.address for each in told] == ["fd00::7", "fd01::7"]


ASK_LATE = """
import subprocess
from pytest_elastic.workers.store.own_address import own_address
from pytest_elastic.workers.store.torch_store import NameUnknown, where_to_bind
try:
    print(where_to_bind("fd02::7", is_forced=False))
except NameUnknown as error:
    print("later:", error)
print(own_address([]).address)
for verb in ("del", "add"):
    words = ["ip", "address", verb, "fd02::7/64", "dev", "link0", *(["nodad"] * (verb == "add"))]
    subprocess.run(words, check=True)
print(where_to_bind("fd02::7", is_forced=False), own_address([]).address)
"""


@needs_namespaces
def test_an_address_about_which_the_kernel_still_asks_is_taken_later(tmp_path: Path) -> None:
    """Until then nobody can listen there: neither the endpoint's store nor an agent."""
    asks = "echo 1 > /proc/sys/net/ipv6/conf/link0/accept_dad; ip address add fd02::7/64 dev link0"
    wrapped = ("sh", "-c", f'{asks}; exec "$@"', "sh", sys.executable, "-c", ASK_LATE)
    asked = on_one_link(tmp_path, *wrapped)
    assert asked.returncode == 0, asked.stderr
    later, guess, then = asked.stdout.splitlines()
    assert later.startswith("later: fd02::7 is an address of this machine that cannot be used yet")
    assert (guess, then) == ("127.0.0.1", "fd02::7 fd02::7")
