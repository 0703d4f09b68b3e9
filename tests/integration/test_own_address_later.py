"""A node learns only after its start where nodes meet, and with it which address leads there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster_bench import ROOT
from tests.integration.called_launcher import LEAN, LIMIT_S
from tests.integration.etcd_server import etcd_binary

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs namespaces of its own"
)
# Two machines with a link between them, each with the addresses given and a resolver of its own.
TWO_MACHINES = """
set -e
mount -t tmpfs tmpfs /run
ip netns add a
ip netns add b
ip link add link0 netns a type veth peer name link0 netns b
for each in a b; do
    ip netns exec $each sh -c 'echo 0 > /proc/sys/net/ipv6/conf/link0/accept_dad'
    ip -n $each link set lo up
    ip -n $each link set link0 up
done
for each in $A; do ip -n a address add $each dev link0 nodad; done
for each in $B; do ip -n b address add $each dev link0 nodad; done
ip -n a route add default dev link0
if [ -n "$ETCD" ]; then
    ip netns exec a $ETCD &
    until ip netns exec a python -c "import socket; socket.create_connection(('$NAMED', 2379))"
    do sleep 0.1; done 2> /dev/null
fi
server="python -m tests.integration.name_server"
ip netns exec a $server late $NAMED "$@" $OPTIONS --node-name=a work.py &
first=$!
ip netns exec b $server late $NAMED "$@" --node-name=b work.py
wait $first
"""
ALONE = ("unshare", "--mount", "--mount-proc", "--net", "--pid", "--fork", "--kill-child")
# gloo takes the first address of its interface, so it needs machines of one family.
WORK = """
import os
import socket
address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if os.environ["BACKEND"]:
    import torch
    import torch.distributed as dist
    dist.init_process_group(os.environ["BACKEND"], init_method="env://")
    ones = torch.ones(1)
    dist.all_reduce(ones)
    assert int(ones) == 2
    dist.destroy_process_group()
else:
    socket.create_connection((address, port), timeout=30).close()
print(address + "\\n", end="", flush=True)
"""
LAUNCH = (
    *(sys.executable, "-m", "pytest_elastic", "run", "--nnodes=2", "--rdzv-backend=c10d"),
    "--rdzv-conf=join_timeout=30",
)


def run_job(
    folder: Path, *options: str, where: str = "store.test:29400", **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run a job of two nodes, whose endpoint gets an address after they have started.

    `A` and `B` are their addresses, `NAMED` that of the endpoint, which `a` hosts; `OPTIONS` are
    for `a`, and `BACKEND` is what workers meet with: without one, each reaches its store alone.
    `ETCD` runs on `a`.
    """
    (folder / "work.py").write_text(WORK)
    return subprocess.run(
        [*ALONE, "sh", "-c", TWO_MACHINES, "sh", *LAUNCH, f"--rdzv-endpoint={where}", *options],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        cwd=folder,
        env={
            **os.environ,
            **LEAN,
            "PYTHONPATH": f"{ROOT}:{ROOT / 'harness'}",
            "GLOO_SOCKET_IFNAME": "link0",
            "BACKEND": "",
            "OPTIONS": "",
            "ETCD": "",
            **environ,
        },
    )


@pytest.mark.parametrize(
    ("options", "backend"),
    [("", "gloo"), ("--rdzv-conf=join_timeout=30,is_host=true", "")],
    ids=["owner", "told"],
)
def test_a_job_of_machines_with_ipv6_alone_forms_at_a_name_that_is_known_later(
    tmp_path: Path, options: str, backend: str
) -> None:
    """And its workers meet. They have a route for IPv4, and no address that could go there."""
    machines = {"A": "fd00::1/64", "B": "fd00::2/64", "NAMED": "fd00::1"}
    job = run_job(tmp_path, **machines, OPTIONS=options, BACKEND=backend)
    assert job.returncode == 0, job.stderr
    assert job.stdout.split() == ["fd00::1", "fd00::1"], job.stdout


@pytest.mark.parametrize(
    ("a", "b", "named"),
    [
        ("10.9.0.1/24 fd00::1/64", "fd00::2/64", "fd00::1"),
        pytest.param("fd00::1/64", "10.9.0.2/24 fd00::2/64", "fd00::1", marks=pytest.mark.slow),
        ("10.9.0.1/24 10.8.0.1/24", "10.8.0.2/24", "10.8.0.1"),
    ],
    ids=["both-on-the-host", "both-on-the-other", "two-networks"],
)
def test_a_node_with_several_addresses_takes_the_one_that_leads_there(
    tmp_path: Path, a: str, b: str, named: str
) -> None:
    """Whatever it had guessed before the endpoint's name was known."""
    job = run_job(tmp_path, A=a, B=b, NAMED=named)
    assert job.returncode == 0, job.stderr
    assert job.stdout.split() == [named, named], job.stdout


def test_one_of_several_endpoints_may_be_known_later(tmp_path: Path) -> None:
    """Its owner hosts it then; without it there is no majority of endpoints here."""
    machines = {"A": "10.9.0.1/24 fd00::1/64", "B": "fd00::2/64", "NAMED": "fd00::1"}
    where = "store.test:29400,[fd00::2]:29400,[fd00::99]:29400"
    job = run_job(tmp_path, where=where, **machines)
    assert job.returncode == 0, job.stderr
    assert len(job.stdout.split()) == 2, job.stdout


@pytest.mark.slow
def test_a_handler_of_torchs_is_made_and_told_the_address_once_the_name_is_known(
    tmp_path: Path,
) -> None:
    """Both nodes guess an address of the network that nodes do not meet on, until then."""
    etcd = (
        f"{etcd_binary()} --enable-v2 --log-level=error --unsafe-no-fsync"
        f" --data-dir={tmp_path}/data --listen-client-urls=http://10.8.0.1:2379"
        " --advertise-client-urls=http://10.8.0.1:2379"
    )
    machines = {"A": "10.9.0.1/24 10.8.0.1/24", "B": "10.7.0.2/24 10.8.0.2/24"}
    job = run_job(
        tmp_path,
        "--rdzv-backend=etcd-v2",
        where="store.test",
        **machines,
        NAMED="10.8.0.1",
        ETCD=etcd,
    )
    assert job.returncode == 0, job.stderr
    first, second = job.stdout.split()
    assert first == second
    assert first in {"10.8.0.1", "10.8.0.2"}
