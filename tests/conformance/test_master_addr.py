"""MASTER_ADDR is what torchrun gives, where that leads to the store: an address, or a name."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_elastic.workers.store.name_lookup import name_or_address
from tests.cluster_bench import ROOT
from tests.integration.called_launcher import LIMIT_S

needs_namespaces = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs namespaces of its own"
)
# A machine with two addresses, and names that are known on it alone.
MACHINE = """
set -e
ip link set lo up
ip address add 10.9.0.1/32 dev lo
ip -6 address add fd00::7/128 dev lo
printf '%s\\n' '127.0.0.1 localhost' '10.9.0.1 node4' \
    "fd00::7 node6 $(hostname)" > hosts
mount --bind hosts /etc/hosts
exec "$@"
"""
ALONE = ("unshare", "--mount", "--mount-proc", "--net", "--pid", "--fork", "--kill-child")
OURS = (sys.executable, "-m", "pytest_elastic", "run", "--worker-start=exec")
THEIRS = (sys.executable, "-m", "torch.distributed.run")
C10D = ("--rdzv-backend=c10d", "--rdzv-endpoint=[fd00::7]:29400")
STATIC = ("--master-port=29500", "--node-rank=0")
SAY = ("--no-python", "sh", "-c", "echo $MASTER_ADDR")


def on_a_machine(folder: Path, *command: str) -> str:
    """Run a command on a machine of its own; return what it printed."""
    done = subprocess.run(
        [*ALONE, "sh", "-c", MACHINE, "sh", *command],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'harness'}"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_namespaces
@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((*C10D, "--local-addr=node6"), "node6"),
        ((*STATIC, "--master-addr=[fd00::7]"), "fd00::7"),
        ((*STATIC, "--master-addr=node4"), "node4"),
        (("--rdzv-backend=static", "--rdzv-endpoint=[fd00::7]:29500", "--node-rank=0"), "fd00::7"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_it_is_the_same_under_torchrun(
    tmp_path: Path, options: tuple[str, ...], expected: str
) -> None:
    """IPv6 addresses without brackets, and names as the user gave them."""
    for launcher in (THEIRS, OURS):
        assert on_a_machine(tmp_path, *launcher, *options, *SAY).split() == [expected], launcher


@needs_namespaces
@pytest.mark.slow
def test_without_a_name_said_it_is_an_address(tmp_path: Path) -> None:
    """Torchrun gives the full name of rank 0's machine, which others may not know."""
    assert on_a_machine(tmp_path, *OURS, *C10D, *SAY).split() == ["fd00::7"]


@needs_namespaces
def test_a_node_that_does_not_know_the_name_gets_the_address(tmp_path: Path) -> None:
    """Each node's workers get what leads to the store there."""
    nodes = """
    "$@" --node-name=a --local-addr=node4 --no-python sh -c 'echo a $MASTER_ADDR' &
    first=$!
    echo '127.0.0.1 localhost' > others
    unshare --mount sh -c 'mount --bind others /etc/hosts; exec "$@"' sh \\
        "$@" --node-name=b --no-python sh -c 'echo b $MASTER_ADDR'
    wait $first
    """
    where = ("--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=10.9.0.1:29400")
    said = on_a_machine(tmp_path, "sh", "-c", nodes, "sh", *OURS, *where)
    assert sorted(said.splitlines()) == ["a node4", "b 10.9.0.1"]


@pytest.mark.parametrize(
    "name", ["", "10.0.0.2", "nobody.invalid", "two words", "a\0b", "[::1]", "a" * 300]
)
def test_what_does_not_lead_there_is_no_name_for_it(name: str) -> None:
    """Whatever another node may have said."""
    assert name_or_address(name, "10.0.0.1", 5.0) == "10.0.0.1"
