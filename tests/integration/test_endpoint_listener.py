"""Where the endpoint's store listens: at one address, unless others may need more."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from tests.cluster_bench import LIMIT_S, ROOT

NAMES = """127.0.0.1 localhost
10.9.0.1 own
127.0.1.1 debian
10.96.0.1 service
10.9.0.1 both
fd00::7 both
10.9.0.1 several
10.9.0.2 several
"""
MACHINE = """
ip link set lo up
ip address add 10.9.0.1/32 dev lo
ip address add 10.8.0.1/32 dev lo
ip address add fd00::7/128 dev lo
printf '%s' "$NAMES" > /tmp/hosts && mount --bind /tmp/hosts /etc/hosts
exec "$@"
"""
HOST = """
import json, socket, sys
from pytest_elastic.workers.store import torch_store
reached = {}
for number, name in enumerate(sys.argv[1:]):
    bound = torch_store.where_to_bind(name, is_forced=name == "service")
    store, port = torch_store.host_store(bound, 20000 + number)
    reached[name] = []
    for address in ("10.9.0.1", "10.8.0.1", "127.0.0.1", "fd00::7"):
        try:
            socket.create_connection((address, port), timeout=5).close()
        except ConnectionRefusedError:
            continue
        reached[name].append(address)
print(json.dumps(reached))
"""
EVERYWHERE = ["10.9.0.1", "10.8.0.1", "127.0.0.1", "fd00::7"]


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs namespaces of its own"
)
def test_the_endpoints_store_listens_at_the_one_address_of_its_name_or_else_everywhere() -> None:
    """A loopback address, none of ours, or several of ours: others may need any other one."""
    expected = {
        "10.9.0.1": ["10.9.0.1"],
        "own": ["10.9.0.1"],
        "several": ["10.9.0.1"],
        "localhost": ["127.0.0.1"],
        "debian": EVERYWHERE,
        "service": EVERYWHERE,
        "both": EVERYWHERE,
    }
    wrapped = ["unshare", "--mount", "--net", "sh", "-ec", "mount -t tmpfs tmp /tmp" + MACHINE]
    done = subprocess.run(
        [*wrapped, "sh", sys.executable, "-c", HOST, *expected],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        cwd=ROOT,
        env={**os.environ, "NAMES": NAMES},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == expected
