"""Tests of a user, run on machines that are reached by ssh: sshd in namespaces of this machine."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from elastic_harness.cluster import process_table

from tests.machines import NEEDS_MACHINES, NETWORK, Network
from tests.plugin.place import KILLED_ONCE, LIMIT_S, Called, Place, scenario, wait_for_ring

pytestmark = [
    NEEDS_MACHINES,
    pytest.mark.skipif(shutil.which("sshd", path="/usr/sbin") is None, reason="there is no sshd"),
]

SSHD = """
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
StrictModes no
PermitRootLogin yes
UsePAM no
PidFile none
"""
CONFIG = """
Host *
  User root
  IdentityFile {folder}/user
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known
  StrictHostKeyChecking yes
"""


# Runs until its world has shrunk to one.
UNTIL_ALONE = """
import os, time
if os.environ["WORLD_SIZE"] != "1":
    time.sleep(600)
"""
# The same, and says when both are there, and when one of them is alone.
RINGS = """
    import os, time
    is_alone = os.environ["WORLD_SIZE"] == "1"
    if is_alone or os.environ["RANK"] == "1":
        with open(os.environ["ALONE" if is_alone else "BELL"], "w") as bell:
            bell.write("here")
    if not is_alone:
        time.sleep(600)
"""
AT_HELLO = "timeline: [{when: {event: worker_hello, rank: 1}, FAULT}]"
NODES_ARE_UP = "timeline: [{when: {event: node_started, count: 2}, FAULT}]"
ENDS_WELL = "finally: [{job: succeeded}]"
# Each with its script, and what is expected: the last one is expected in vain.
LINK_FAULTS = {
    "dark": (AT_HELLO.replace("FAULT", "power_cut: n2"), "until_alone.py", ENDS_WELL),
    "deaf": (
        AT_HELLO.replace("FAULT", "partition: {from: n2, to: others}, until: end"),
        "until_alone.py",
        "finally: [{exit_codes: {n1: 0, n2: 3}}]",
    ),
    "lossy": (
        NODES_ARE_UP.replace("FAULT", "degrade: {latency: 5ms, loss: 1%}, until: end"),
        "hello.py",
        ENDS_WELL,
    ),
    "forever": (
        "limit: 4s\n" + AT_HELLO.replace("FAULT", "degrade: {latency: 5ms}, until: end"),
        "forever.py",
        ENDS_WELL,
    ),
}

# n2 finds the job through a proxy, whose first connections break.
PROXIED = """
proxies: {rdzv: rendezvous}
timeline:
  - {at: 0s, id: broken, toxic: {proxy: rdzv, type: reset_peer, stream: upstream}}
  - {when: {event: fault_effective, id: broken}, heal: broken}
expect:
  eventually: [{round: 1, after: broken.healed, within: 30s}]
  finally: [{job: succeeded}]
"""
# The same, slowly: what comes from the gateway is on its way for longer.
SLOWED = PROXIED.replace(
    "timeline:",
    "timeline:\n  - {when: {event: node_started, count: 2}, id: late, "
    "degrade: {from: gateway, to: n2, latency: 20ms}, until: end}\n"
    "  - {when: {event: node_started, count: 2}, capture: gateway, until: end}",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """Machines with sshd on them, and the command that reaches them."""

    network: Network
    ssh: str

    def enter(self, *command: str) -> list[str]:
        """Return a command as it is run where the machines can be reached."""
        return ["nsenter", f"--target={self.network.hub.pid}", "-n", "--", *command]

    def command(self, *arguments: str) -> list[str]:
        """Return the command that calls pytest there, with all machines."""
        options = ("--elastic-cluster=ssh", "--elastic-hosts=hosts", f"--elastic-ssh={self.ssh}")
        return self.enter(sys.executable, "-m", "pytest", *options, *arguments)

    def start_job(self, place: Place, *arguments: str) -> subprocess.Popen[str]:
        """Start pytest there; return it once a job that rings, as `forever.py` does, has begun."""
        for name in ("BELL", "ALONE"):
            place.environ[name] = str(place.folder / name)
            os.mkfifo(place.environ[name])
        place.add_scripts()
        place.add("hosts", hosts(1, 2))
        process = place.start_command(self.command(*arguments))
        wait_for_ring(place.folder / "BELL", process)
        return process

    def end(self, process: subprocess.Popen[str], number: signal.Signals) -> None:
        """Send pytest a signal, and wait until nothing runs on the machines beside sshd."""
        process.send_signal(number)
        process.communicate()
        self.network.wait_until_clean(but="sshd", within_s=30.0)

    def left(self) -> list[str]:
        """Return what runs on the machines, beside sshd."""
        rows = self.network.rows(but="sshd")
        return [" ".join(process_table.command_of(row.pid)) for row in rows]


def hosts(*numbers: int) -> str:
    """Return the file that names machines."""
    return "# by address\n" + "".join(f"{NETWORK}.{number}\n" for number in numbers)


def make_keys(folder: Path) -> None:
    """Write the keys of the machines and of the user, and what sshd and ssh are to know."""
    for name in ("host", "user"):
        wanted = ("-q", "-t", "ed25519", "-N", "", "-f", str(folder / name))
        subprocess.run(["ssh-keygen", *wanted], check=True)
    (folder / "sshd_config").write_text(SSHD.format(folder=folder))
    (folder / "config").write_text(CONFIG.format(folder=folder))
    key = (folder / "host.pub").read_text()
    (folder / "known").write_text("".join(f"{NETWORK}.{number} {key}" for number in (1, 2, 4, 5)))


def missing(path: str) -> str:
    """Return how a folder is emptied, on one machine only."""
    return f"mount -t tmpfs none {path}"


@pytest.fixture(scope="module")
def reached(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reached]:
    """Five machines: two good ones, an unknown one, one without Python, one without torch."""
    folder = tmp_path_factory.mktemp("ssh")
    make_keys(folder)
    (torch,) = Path(sys.prefix).glob("lib/python*/site-packages/torch-*.dist-info")
    without = {"m4": missing(sys.prefix), "m5": missing(str(torch))}
    cases = " ".join(f"{name}) {command};;" for name, command in without.items())
    sshd = f"mkdir -p /run/sshd; /usr/sbin/sshd -f {folder}/sshd_config"
    network = Network(5, prepare=f"{sshd}; case $(hostname) in {cases} esac")
    yield Reached(network=network, ssh=f"ssh -F {folder}/config")
    network.end()


def test_a_scenario_runs_on_machines_that_ssh_reaches(reached: Reached, place: Place) -> None:
    """A worker is killed there and judged here; logs are here, and nothing is left there.

    What is not there yet on machines is skipped with the reason.
    """
    place.add_scripts()
    place.add("hosts", hosts(1, 2))
    text = scenario("killed", KILLED_ONCE, script="second_try.py", nodes="3", max_restarts=1)
    cut = scenario("cut", "requires: [network]")
    place.add("some.elastic.yaml", f"{text}---\n{cut}")
    options = ("-rA", "--elastic-keep=all", "--elastic-overlay=off")
    called = place.call(reached.command(*options))
    assert called.outcomes == {"killed": "PASSED"}, called.out
    assert "network: --elastic-overlay=off: nodes are plain processes" in called.out
    assert f"ssh cluster (plain processes on {NETWORK}.1, {NETWORK}.2, because " in called.out
    (run,) = place.runs
    logs = place.folder / ".elastic" / run / "logs"
    assert {path.name for path in logs.iterdir()} == {"n1", "n2", "n3"}
    assert reached.left() == []


def test_faults_of_links_end_as_they_do_here(reached: Reached, place: Place) -> None:
    """Two machines, joined by a trunk: the verdicts are those of the namespace cluster here."""
    place.add("until_alone.py", UNTIL_ALONE)
    place.add_scripts()
    place.add("hosts", hosts(1, 2))
    for id, (fault, script, clause) in LINK_FAULTS.items():
        body = f"{fault}\nexpect: {{{clause}}}\n"
        # One node could begin and end alone, while the first packet of the other is lost.
        nodes = "{initial: 2, min: 1, max: 2}" if script == "until_alone.py" else "2"
        text = scenario(id, body, script=script, nodes=nodes)
        place.add(f"{id}.elastic.yaml", text)
    there = place.call(reached.command("-rA", "--elastic-keep=all"))
    spreads = [
        record
        for history in (place.folder / ".elastic").glob("*/history.jsonl")
        for record in map(json.loads, history.read_text().splitlines())
        if record["kind"] == "policies_spread"
    ]
    here = place.call([sys.executable, "-m", "pytest", "-rA", "--elastic-cluster=namespace"])
    expected = dict.fromkeys(LINK_FAULTS, "PASSED") | {"forever": "FAILED"}
    assert (there.outcomes, here.outcomes) == (expected, expected), there.out + here.out
    assert spreads
    assert reached.left() == []


def test_proxies_are_reached_from_machines(reached: Reached, place: Place) -> None:
    """By plain processes, and from the network of nodes, which pytest joins; as they are here.

    The second scenario finds the gateway gone with the first, and the switches joined; its links
    are slow.
    """
    place.add_scripts()
    place.add("hosts", hosts(1, 2))
    place.add("one.elastic.yaml", scenario("proxied", PROXIED))
    place.add("slow.elastic.yaml", "requires: [network]\n" + scenario("slow", SLOWED))
    apart = place.call(reached.command("-rA"))
    plain = place.call(reached.command("-rA", "--elastic-overlay=off"))
    here = place.call([sys.executable, "-m", "pytest", "-rA", "--elastic-cluster=process"])
    assert apart.outcomes == {"proxied": "PASSED", "slow": "PASSED"}, apart.out
    for called in (plain, here):
        assert called.outcomes == {"proxied": "PASSED"}, called.out
    assert reached.left() == []


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ((1, 5), f"{NETWORK}.5: torch is not installed there, and "),
        ((), "there are no machines in "),
        ((1, 1), f"names {NETWORK}.1 twice"),
    ],
)
def test_a_machine_that_cannot_be_used_is_named_before_anything_starts(
    reached: Reached, place: Place, numbers: tuple[int, ...], message: str
) -> None:
    """One error with the reason, exit code 4, and nothing is left on the good machine either."""
    place.add("test_it.py", "def test_it(elastic_job): print('it ran')")
    place.add("hosts", hosts(*numbers))
    called = place.call(reached.command("-o", "elastic_preload=torch"))
    assert called.code == pytest.ExitCode.USAGE_ERROR, called.out
    assert message in called.out
    assert "Traceback" not in called.out
    assert "it ran" not in called.out
    assert reached.left() == []


def test_what_a_machine_cannot_import_is_named(reached: Reached, place: Place) -> None:
    """With the machine, in the report of the first run."""
    place.add("here.py", "import os\nif os.uname().nodename == 'm2':\n    import nothing_here\n")
    place.add("hosts", hosts(1, 2))
    place.add_scripts()
    place.add("some.elastic.yaml", scenario("some"))
    place.environ["PYTHONPATH"] = str(place.folder)
    called = place.call(reached.command("-o", "elastic_preload=here"))
    assert called.code == pytest.ExitCode.TESTS_FAILED, called.out
    assert f"machine {NETWORK}.2: cannot start the cluster server: " in called.out
    assert "cannot preload 'here': No module named 'nothing_here'" in called.out
    assert reached.left() == []


def test_doctor_says_what_each_machine_can_do(reached: Reached, place: Place) -> None:
    """Machine by machine; the exit code is 1 where one of them cannot be used."""
    place.add("hosts", hosts(1, 77, 3, 4, 5))
    program = (sys.executable, "-m", "pytest_elastic", "doctor")
    called = place.call(reached.enter(*program, "--machines=hosts", f"--ssh={reached.ssh}"))
    assert called.code == 1
    assert f"{NETWORK}.1: can be used\n  m1: Python " in called.out
    assert "  yes  pause: by " in called.out
    for number, why in {
        77: f"ssh: connect to host {NETWORK}.77 port 22: No route to host",
        3: f"No ED25519 host key is known for {NETWORK}.3",
        4: f"bash: line 1: {sys.executable}: No such file or directory",
        5: "torch is not installed there",
    }.items():
        assert f"{NETWORK}.{number}: cannot be used\n  {why}" in called.out


def test_nothing_is_left_anywhere_when_pytest_is_killed(reached: Reached, place: Place) -> None:
    """SIGKILL in the middle of a run: the agents notice, end all that they started, and end."""
    place.add("forever.elastic.yaml", scenario("forever", script="forever.py"))
    process = reached.start_job(place)
    assert reached.left()
    reached.end(process, signal.SIGKILL)


def test_agents_that_wait_end_with_pytest(reached: Reached, place: Place) -> None:
    """SIGKILL while tests are collected: they were never given an order."""
    place.add("forever.elastic.yaml", scenario("forever", script="forever.py"))
    place.add(
        "conftest.py",
        "import os, signal\n"
        "def pytest_collection():\n"
        "    with open(os.environ['BELL'], 'w') as bell:\n"
        "        bell.write('here')\n"
        "    signal.pause()\n",
    )
    process = reached.start_job(place)
    assert sum("machines.agent" in command for command in reached.left()) == 4
    reached.end(process, signal.SIGKILL)


def test_a_controller_of_xdist_keeps_no_agents(reached: Reached, place: Place) -> None:
    """They would import torch on every machine, for nobody."""
    place.add("forever.elastic.yaml", scenario("forever", script="forever.py"))
    process = reached.start_job(place, "-n", "1", "-p", "xdist")
    assert sum("machines.agent" in command for command in reached.left()) == 2
    reached.end(process, signal.SIGTERM)


def test_a_run_whose_machine_is_lost_is_unknown(reached: Reached, place: Place) -> None:
    """An agent is killed: that is said, and it is no verdict on the job; the next run is well."""
    place.add("a.elastic.yaml", scenario("lost", script="forever.py"))
    place.add("b.elastic.yaml", scenario("next"))
    process = reached.start_job(place, "-rA")
    reached.network.machines[1].run("pkill", "-9", "-f", "machines.agent")
    out, _ = process.communicate(timeout=LIMIT_S)
    called = Called(code=process.returncode, out=out, seconds=0.0)
    assert called.outcomes == {"lost": "FAILED", "next": "PASSED"}, out
    # It is among the clauses, of which the screen shows a few.
    history = next((place.folder / ".elastic").glob("a.elastic.yaml-*/history.jsonl")).read_text()
    assert f"the cluster was lost: the machine {NETWORK}.2 was lost: its agent has ended" in history
    assert "elastic: 2 runs: 1 unknown, 1 valid" in out
    assert "INVALID" not in out
    assert reached.left() == []


def test_a_run_whose_trunk_stalled_is_unknown(reached: Reached, place: Place) -> None:
    """The job lost a node for it, which is no verdict on the job; the next run is well."""
    place.add("rings.py", RINGS)
    body = "expect: {finally: [{world_sizes: [2]}]}"
    nodes = "{initial: 2, min: 1, max: 2}"
    place.add("a.elastic.yaml", scenario("parted", body, script="rings.py", nodes=nodes))
    place.add("b.elastic.yaml", scenario("next"))
    process = reached.start_job(place, "-rA")
    reached.network.part()
    try:
        wait_for_ring(place.folder / "ALONE", process)
    finally:
        reached.network.part(is_parted=False)
    out, _ = process.communicate(timeout=LIMIT_S)
    called = Called(code=process.returncode, out=out, seconds=0.0)
    assert called.outcomes == {"parted": "FAILED", "next": "PASSED"}, out
    assert "elastic: 2 runs: 1 unknown, 1 valid" in out
    assert "UNKNOWN: world_sizes: " in out, out
    assert "INVALID" not in out
    assert reached.left() == []
