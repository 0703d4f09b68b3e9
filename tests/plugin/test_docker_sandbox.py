"""What works in an unprivileged container: Docker's default confinement, as root and as a user."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.plugin.place import LIMIT_S, Place, scenario

SANDBOX = Path(__file__).with_name("docker_sandbox.py")
pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None or platform.machine() != "x86_64",
    reason="the sandbox is made by root, with setpriv (util-linux) and numbers of x86-64",
)
MINIMAL = Path(__file__).parents[2] / "examples" / "minimal.py"
PREEMPTED = """
timeline:
  - at: {step: 10, rank: 0}
    id: freeze
    pause: {node: n1}
    for: 500ms
  - at: {step: 20, rank: 0}
    preempt: {node: n3, notice: 2s, by: crash}
expect:
  finally: [{job: succeeded}, {faults_effective: true}]
"""
SILENT = "timeline: [{at: {step: 20, rank: 0}, power_cut: {node: n3}}]"
TESTS = """
    import os
    import pytest

    @pytest.mark.ranks(4)
    def test_sums(rank):
        import torch, torch.distributed as dist
        tensor = torch.ones(1) * rank
        dist.all_reduce(tensor)
        assert tensor.item() == 6

    def world():
        return int(os.environ["WORLD_SIZE"])

    @pytest.mark.elastic(nodes=2, proxies={"rendezvous": "rendezvous"})
    def test_a_slow_link_to_the_rendezvous(elastic_job, elastic_chaos):
        job = elastic_job(world)
        elastic_chaos.at("0s").toxic(
            proxy="rendezvous", type="latency", latency="100ms", jitter="50ms"
        )
        assert set(job.wait().results.values()) == {2}
"""


@pytest.fixture(params=[0, 1000], ids=["root", "user"])
def user(request: pytest.FixtureRequest) -> int:
    """Who is in the sandbox."""
    assert isinstance(request.param, int)
    return request.param


@pytest.fixture
def place(user: int) -> Iterator[Place]:
    """A folder that belongs to the user: pytest closes its own to others."""
    with tempfile.TemporaryDirectory() as folder:
        os.chown(folder, user, user)
        # A job's script imports torch: once, and not in each worker.
        yield Place(Path(folder), preload="torch,torch._dynamo")


def in_sandbox(user: int, place: Place, *command: str) -> tuple[int, str]:
    """Run a command of this environment in the sandbox; return its exit code and what it said."""
    done = subprocess.run(
        [sys.executable, str(SANDBOX), str(user), *command],
        cwd=place.folder,
        env={**os.environ, "HOME": str(place.folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return done.returncode, done.stdout


def test_the_sandbox_is_as_docker_makes_it(user: int, place: Place) -> None:
    """Capabilities by Docker's mask, no namespace, no network device, control groups closed."""
    _, said = in_sandbox(
        user,
        place,
        *("sh", "-c"),
        "grep -E 'CapEff|Seccomp:' /proc/self/status; ls -d /dev/net;"
        "unshare -U true; unshare -n true; mkdir /sys/fs/cgroup/x; mount -t tmpfs x /mnt",
    )
    assert f"CapEff:\t{0xA80425FB if user == 0 else 0:016x}" in said
    assert "Seccomp:\t2" in said
    assert "cannot access '/dev/net'" in said
    assert said.count("unshare failed: Operation not permitted") == 2
    assert "Read-only file system" in said
    assert "permission denied" in said or "must be superuser" in said


def test_the_doctor_says_what_is_left(user: int, place: Place) -> None:
    """A cluster of processes, and for the rest a reason."""
    code, said = in_sandbox(user, place, sys.executable, "-m", "pytest_elastic", "doctor")
    assert code == 0, said
    assert said.startswith("process cluster: nodes are plain processes"), said
    assert "yes  pause: " in said
    assert "no   network: " in said
    assert "Traceback" not in said


@pytest.mark.parametrize("user", [0], ids=["root"], indirect=True)
def test_faults_of_processes_and_a_proxied_rendezvous_work(user: int, place: Place) -> None:
    """A freeze and a preemption take effect; what needs a network is skipped.

    What plain processes do for an ordinary user is in `test_capabilities.py`.
    """
    shutil.copy(MINIMAL, place.folder)
    place.add_ini()
    nodes = "{initial: 3, min: 2, max: 3}"
    for name, body in (("preempted", PREEMPTED), ("silent", SILENT)):
        text = scenario(name, body, script="minimal.py", nodes=nodes, max_restarts=3)
        place.add(f"{name}.elastic.yaml", text.replace("job: {", "job: {working_copy: true, "))
    place.add("test_some.py", TESTS)
    code, said = in_sandbox(
        user, place, sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider"
    )
    assert "3 passed, 1 skipped" in said, said
    assert code == 0
    assert "needs what this cluster lacks: network: no namespaces" in said
    assert "Traceback" not in said
