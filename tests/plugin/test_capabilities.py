"""What `pytest-elastic doctor` declares is held against the truth, for each kind of cluster.

What it says can be done is done to a job, and has to be proven like any fault; what it says cannot
be done is refused, with its reason, before a launcher has started.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from elastic_harness.cluster.cluster import CAPABILITIES
from elastic_harness.faults.registry import built_in_faults

from tests.plugin.place import Called, Place
from tests.plugin.test_ordinary_user import NOBODY, kind_for
from tests.unit.faults.examples import EXAMPLES

# What is done to the job where it can be: one fault for each capability that faults need.
FAULTS = {
    "network": "degrade: {latency: 5ms}",
    "names": "names: {node: n2, of: n1, missing: true}",
    "listeners": "slow_store: {share: 50%}",
    "node_sockets": "foreign_bytes: rendezvous",
    "pause": "pause: {node: n2}",
    "cpu_limit": "cpu_limit: n2",
    "process_limit": "process_limit: n1",
    "disk_faults": "disk_slow: {node: n2, latency: 5ms}",
    "clock_skew": "clock_skew: {node: n1, by: 60m}",
    "cuda": "gpu_sleep: rank 0",
    "memory_limit": "oom: rank 1",  # ends the round, and cannot be undone
}
# What a job sees for itself, and the harness's services at the gateway.
BY_THE_JOB = (
    "private_disk",
    "private_pids",
    "gateway",
    "shared_files",
    "same_kernel",
    "common_clock",
)
# What no cluster of this machine has: `tests/frameworks/ray_machines.py` does it.
ON_OTHER_MACHINES = ("placement",)
# The job of this file has no torch: tests/gpu does it, where there is a device.
ON_A_DEVICE = ("cuda",)

# Uses whatever may be limited, and looks at its surroundings. Ends when the last entry says so.
JOB = """
    import glob, mmap, os, socket, sys, time

    probe = sys.modules["elastic_probe"]
    shared, rank = os.environ["ELASTIC_CHECKPOINT_DIR"], os.environ["RANK"]
    end = os.path.join(shared, "end")
    mine = "private_disk" in sys.argv and "/tmp/capability-of-" + rank

    def tell(what, text):
        path = os.path.join(shared, what + "-" + rank)
        with open(path + ".new", "w") as file:
            file.write(text)
        os.rename(path + ".new", path)
        while True:
            found = [path for path in glob.glob(os.path.join(shared, what + "-[01]"))]
            if len(found) == 2:
                return [open(path).read() for path in sorted(found)]
            time.sleep(0.01)

    if mine:
        open(mine, "w").close()
        tell("wrote", "")
        assert glob.glob("/tmp/capability-of-*") == [mine], "each node has its own /tmp"
    if "private_pids" in sys.argv:
        assert len(set(tell("pids", os.readlink("/proc/self/ns/pid")))) == 2, "and its own numbers"
    if "same_kernel" in sys.argv:  # and the files that this is told by are shared
        assert len(set(tell("kernel", open("/proc/sys/kernel/random/boot_id").read()))) == 1
    if "common_clock" in sys.argv:
        assert len(set(tell("clock", os.readlink("/proc/self/ns/time")))) == 1

    step = 0
    while not os.path.exists(end):
        step += 1
        probe.report_step(step)
        open(os.path.join(shared, "step-" + rank), "w").close()
        try:
            # Not a thread: with libfaketime it waits so long for its turn that it seems to stay.
            another = os.fork() or os._exit(0)
            os.waitpid(another, 0)
        except BlockingIOError:
            pass  # no more processes
        if "gateway" in sys.argv:  # where nodes have networks of their own, and names
            try:
                socket.gethostbyname("n1")
            except OSError:
                pass  # the fault takes it away
        for _ in range(20_000):
            pass
        time.sleep(0.01)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What doctor has said, by capability: None, or why it is missing; and what became of runs."""

    missing: dict[str, str | None]
    called: Called
    started: list[str]


def declared(text: str) -> dict[str, str | None]:
    """Read what doctor prints: each capability, with the reason of those that are missing."""
    found: dict[str, str | None] = {}
    together: list[str] = []  # one reason stands behind all that lack it
    for line in text.splitlines():
        words = line.split(maxsplit=2)
        if words[:1] == ["yes"]:
            found[words[1].rstrip(":")] = None
        elif words[:1] == ["no"]:
            together.append(words[1].rstrip(":"))
        elif words[:1] == ["because:"]:
            found.update(dict.fromkeys(together, line.strip().removeprefix("because: ")))
            together.clear()
    assert not together, text
    return found


def able(missing: dict[str, str | None]) -> str:
    """Return a scenario that does everything that can be done, one thing after the other."""
    entries, last = [], "at: {step: 5, rank: 0}"
    if missing["gateway"] is None:
        entries.append(
            "- {id: gateway, when: {event: node_started, count: 2}, "
            "toxic: {proxy: rdzv, type: latency, latency: 5ms}}"
        )
        entries.append("- {when: {event: fault_effective, id: gateway}, heal: gateway}")
    for name, fault in FAULTS.items():
        if missing[name] is None and name not in ON_A_DEVICE:
            entries.append(f"- {{id: {name}, {last}, {fault}}}")
            # Not `after`: what is in force is not proven, and a job that is told to end ends first.
            last = f"when: {{event: fault_effective, id: {name}}}"
            if name != "memory_limit":
                entries.append(f"- {{when: {{event: fault_effective, id: {name}}}, heal: {name}}}")
                last = f"after: {name}.healed"
    entries.append(f"- {{{last}, run: 'touch $ELASTIC_CHECKPOINT_DIR/end'}}")
    seen = [name for name in BY_THE_JOB if missing[name] is None]
    proxies = "proxies: {rdzv: rendezvous}\n" if "gateway" in seen else ""
    return (
        "version: 1\nid: able\ntitle: All that can be done\nlimit: 240s\nnodes: 2\n"
        f"job: {{script: job.py, args: {seen}, max_restarts: 3, rdzv: {{conf: {{lease: 30}}}},"
        " options: [--preload=]}\n"
        f"requires: {seen}\n{proxies}timeline:\n  "
        + "\n  ".join(entries)
        + "\nexpect: {finally: [{job: succeeded}]}\n"
    )


def lacking(name: str) -> str:
    """Return a scenario that asks for one capability, by a fault if one needs it."""
    asks = f"requires: [{name}]"
    if name in FAULTS:
        asks = f"timeline: [{{at: {{step: 5, rank: 0}}, {FAULTS[name]}}}]"
    return (
        f"version: 1\nid: lacks-{name}\ntitle: It cannot be had\nnodes: 2\n"
        f"job: {{script: marks.py, env: {{MARK: {name}}}}}\n{asks}\n"
    )


@pytest.fixture(scope="module", params=["process", "ordinary user"])
def seen(request: pytest.FixtureRequest) -> Iterator[Seen]:
    """Ask doctor, and run what follows from its answer; as nobody, where we are root."""
    user, kind = None, "process"
    if request.param == "ordinary user":
        kind = "auto"  # namespaces where they can be had
        if os.getuid() == 0:
            user = NOBODY
            kind_for(NOBODY)  # can that user run us at all?
    folder = Path(tempfile.mkdtemp(prefix="plugin-test-"))  # tmp_path is closed to others
    try:
        place = Place(folder, {"HOME": str(folder)}, user=user, preload="torch")
        place.add_ini()
        place.add("job.py", JOB)
        place.add("marks.py", "import os; open('started-' + os.environ['MARK'], 'w').close()")
        for path in (folder, *folder.rglob("*")):
            os.chown(path, user or -1, user or -1)
        doctor = [sys.executable, "-m", "pytest_elastic", "doctor", f"--cluster={kind}"]
        told = place.call(doctor)
        assert told.code == 0, told.out
        missing = declared(told.out)
        scenarios = [able(missing), *(lacking(name) for name, why in missing.items() if why)]
        path = folder / "asks.elastic.yaml"
        path.write_text("---\n".join(scenarios))
        path.chmod(0o644)
        called = place.pytest("-rfEps", f"--elastic-cluster={kind}")
        started = sorted(each.name for each in folder.glob("started-*"))
        yield Seen(missing=missing, called=called, started=started)
    finally:
        shutil.rmtree(folder)


def test_every_capability_is_asked_for_here() -> None:
    """By the job or a fault; one that comes new is not left out."""
    assert {*FAULTS, *BY_THE_JOB, *ON_OTHER_MACHINES} == set(CAPABILITIES)
    faults = built_in_faults()
    needed = {faults.parse(each.action, each.value).needs for each in EXAMPLES.values()}
    assert needed - {None, *BY_THE_JOB} == set(FAULTS)


def test_what_is_declared_is_done_and_proven(seen: Seen) -> None:
    """A fault without an effect would leave the verdict unknown, and the scenario not passed."""
    assert set(seen.missing) == set(CAPABILITIES)
    assert seen.missing["pause"] is None, "a node can be paused everywhere"
    assert seen.called.outcomes == {"able": "PASSED"}, seen.called.out


def test_what_is_missing_is_refused_with_the_reason_that_doctor_gives(seen: Seen) -> None:
    """Before anything of the job has started."""
    skipped = [line for line in seen.called.out.splitlines() if line.startswith("SKIPPED")]
    reasons = {line.partition("needs what this cluster lacks: ")[2] for line in skipped}
    assert reasons == {f"{name}: {why}" for name, why in seen.missing.items() if why}
    assert seen.started == []
    assert seen.called.code == 0, seen.called.out
