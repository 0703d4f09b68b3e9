"""Faults of workers and resources on a real cluster: proven, felt by the job, and healed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pytest_elastic.errors import UsageError
from pytest_elastic.events.model import WorkerExited
from tests.integration.fault_bench import STEPPING, FaultBench

# Takes steps, and says once of each thing that it meets with. Ends when rank 0 has met with all,
# and is well again; tells the others by a file.
SCRIPT = """
import errno, os, sys, threading, time

probe = sys.modules["elastic_probe"]
rank = int(os.environ["RANK"])
end = os.path.join(os.environ["ELASTIC_CHECKPOINT_DIR"], "end")
wanted, met, well, kept = set(sys.argv[1:]), set(), 0, []


def meet(what):
    if what not in met:
        met.add(what)
        print("rank", rank, "met", what, flush=True)


step = 0
while not os.path.exists(end):
    step += 1
    is_well = True
    probe.report_step(step)
    try:
        os.close(os.open("/dev/null", os.O_RDONLY))
    except OSError as error:
        is_well = False
        meet(errno.errorcode[error.errno])
    another = threading.Thread(target=int)
    try:
        another.start()
        another.join()  # or it is there for as long as nobody lets it run, and is counted
    except RuntimeError:
        is_well = False
        meet("no-thread")
    for _ in range(20_000):
        pass
    time.sleep(0.002)
    well = well + 1 if is_well else 0
    if os.path.exists(os.path.join(os.path.dirname(end), "throttled")):
        met.add("throttled")
    if rank == 0 and wanted <= met and well > 50:
        open(end, "w").close()
"""


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultBench]:
    """One cluster for all tests of this file."""
    try:
        made = FaultBench("namespace", tmp_path_factory.mktemp("faults"))
    except UsageError as error:
        pytest.skip(error.message)
    yield made
    made.close()


def test_limits_are_met_proven_and_lifted(bench: FaultBench) -> None:
    """A worker without memory is killed by the kernel and told so; the others meet their limits."""
    missing = bench.session.choice.capabilities.missing(["memory_limit", "process_limit"])
    if missing:
        pytest.skip("; ".join(each.reason for each in missing))
    outcome = bench.run(
        SCRIPT,
        [
            {"id": "oom", "at": {"step": 5, "rank": 1}, "oom": "rank 1"},
            {"id": "files", "at": {"step": 5, "rank": 0, "round": 2}, "file_limit": "rank 0"},
            # Not when the rank has printed it: what its probe says may come some moments later.
            {
                "id": "mend-files",
                "when": {"event": "fault_effective", "id": "files"},
                "heal": "files",
            },
            {"id": "threads", "after": "files.healed", "process_limit": "n1"},
            {"id": "mend-threads", "when": {"log": "rank 0 met no-thread"}, "heal": "threads"},
            {"id": "cpu", "at": {"step": 9, "rank": 1, "round": 2}, "cpu_limit": "n2"},
            # The job may not end before this has been seen, however late it began.
            {
                "id": "tell",
                "when": {"event": "fault_effective", "id": "cpu"},
                "run": {
                    "command": 'touch "$ELASTIC_CHECKPOINT_DIR/throttled"',
                    "node": "n2",
                    "within": "40s",
                },
            },
        ],
        "EMFILE",
        "no-thread",
        "throttled",
    )
    assert outcome.result.outcome == "succeeded", outcome
    assert not outcome.failed, outcome
    assert "killed by the kernel for lack of memory" in outcome.proved["oom"]
    exits = [each.event for each in outcome.result.history.of_kind(WorkerExited)]
    assert "out of memory" in next(each.message for each in exits if each.cause == "failed")
    assert {"oom", "files", "threads", "cpu"} <= set(outcome.proved)
    assert {"files", "threads", "cpu"} <= set(outcome.healed)


# Saves a checkpoint at each step, on what is shared and on the node's own disk.
SAVING = """
import os, sys, time

probe = sys.modules["elastic_probe"]
folders = [os.environ["ELASTIC_CHECKPOINT_DIR"], "/tmp/disk"]
end = os.path.join(folders[0], "end")
step = 0
while not os.path.exists(end):
    step += 1
    for folder in folders:
        if step < 4:
            with open(f"{folder}/{os.environ['RANK']}-{step}.pt", "wb") as file:
                file.write(bytes([step]) * 1000)
    probe.report_step(step)
    time.sleep(0.002)
    if step > 5 and os.environ["RANK"] == "0":
        torn = [f for f in folders if open(f"{f}/0-3.pt", "rb").read().count(0) == 500]
        if len(torn) == 2:
            open(end, "w").close()
"""


def test_checkpoints_are_torn_on_shared_and_on_local_disks(bench: FaultBench) -> None:
    """Each as the node sees it; the job finds the zeros."""
    outcome = bench.run(
        SAVING,
        [
            {"id": "shared", "at": {"step": 4, "rank": 0}, "corrupt": "0-*.pt"},
            {
                "id": "local",
                "after": "shared",
                "corrupt": {"file": "/tmp/disk/*.pt", "node": "n1"},
            },
            {
                "id": "outside",
                "after": "local",
                "corrupt": {"file": "/etc/host*", "node": "n1"},
                "optional": True,
            },
        ],
        nodes=1,
    )
    assert outcome.result.outcome == "succeeded", outcome
    assert "0-3.pt, the newest of 3: zeros from byte 500 of 1000" in outcome.proved["shared"]
    assert outcome.proved["local"].startswith("/tmp/disk/0-3.pt")
    assert "/etc/host* is outside of what the job may lose" in outcome.failed["outside"]


# Saves a checkpoint at each step, gives up on none, and ends when it has met with all of these.
TRYING = """
import errno, os, sys

probe = sys.modules["elastic_probe"]
folder = os.environ["ELASTIC_CHECKPOINT_DIR"]
wanted, met, step, well = set(sys.argv[1:]), [], 0, 0
while not (wanted <= set(met) and well > 3):
    step += 1
    try:
        with open(f"{folder}/checkpoint.pt", "wb") as file:
            file.write(bytes(1000))
            file.flush()
            os.fsync(file.fileno())
        well += 1
    except OSError as error:
        well = 0
        if errno.errorcode[error.errno] not in met:
            met.append(errno.errorcode[error.errno])
            print("met", met[-1], flush=True)
    probe.report_step(step)
"""


def test_the_checkpoint_directory_is_full_read_only_failing_and_slow(bench: FaultBench) -> None:
    """Under a job that goes on trying, and saves again after each heal."""
    if not bench.session.choice.capabilities.has("disk_faults"):
        pytest.skip(bench.session.choice.capabilities["disk_faults"].reason)
    outcome = bench.run(
        TRYING,
        [
            {"id": "full", "at": {"step": 5, "rank": 0}, "disk_full": "n1"},
            {"when": {"log": "met ENOSPC"}, "heal": "full"},
            {"id": "fixed", "after": "full.healed", "disk_read_only": "rank 0 host"},
            {"when": {"log": "met EROFS"}, "heal": "fixed"},
            {
                "id": "broken",
                "after": "fixed.healed",
                "disk_error": {"node": "all", "on": ["sync"]},
            },
            {"when": {"log": "met EIO"}, "heal": "broken"},
            {"id": "slow", "after": "full", "disk_slow": {"node": "n1", "latency": "5ms"}},
        ],
        "ENOSPC",
        "EROFS",
        "EIO",
        nodes=1,
    )
    assert outcome.result.outcome == "succeeded", outcome
    assert not outcome.failed, outcome
    assert set(outcome.proved) == {"full", "fixed", "broken", "slow"}


@pytest.mark.parametrize("launcher", ["pytest-elastic", "torchrun"])
def test_the_store_is_found_under_any_launcher(bench: FaultBench, launcher: str) -> None:
    """The processes that listen are stopped and continued, slowed, and killed."""
    outcome = bench.run(
        STEPPING,
        [
            {
                "id": "freeze",
                "at": {"step": 5, "rank": 0},
                "freeze_store": "workers",
                "for": "200ms",
            },
            {"id": "slow", "after": "freeze.healed", "slow_store": "rendezvous", "for": "1s"},
            {"id": "kill", "after": "slow.healed", "kill_store": "rendezvous"},
            {"after": "kill + 100ms", "exit": {"worker": "rank 0", "code": 0}, "optional": True},
        ],
        nodes=1,
        launcher=launcher,
    )
    assert {"freeze", "slow", "kill"} <= set(outcome.proved), outcome
    assert not set(outcome.failed) & {"freeze", "slow", "kill"}, outcome
    assert ":29400" in outcome.proved["kill"]


def test_strangers_on_the_stores_are_proven_and_the_job_goes_on(bench: FaultBench) -> None:
    """All that they can say, on both stores, from both nodes; then a worker dies, and is replaced.

    One of them is sent away again; the others stay until the end.
    """
    sent = ["random", "http", "torn", "huge", "stale", "silence"]
    timeline: list[dict[str, object]] = []
    for number, send in enumerate(sent):
        words = {
            "send": send,
            "which": "rendezvous" if number % 2 else "workers",
            "node": "n1" if number % 3 else "n2",
            "connections": 20 if send == "silence" else 2,
        }
        at = {"after": sent[number - 1]} if number else {"at": {"step": 5, "rank": 1}}
        timeline.append({"id": send, **at, "foreign_bytes": words})
    outcome = bench.run(
        STEPPING,
        [
            *timeline,
            {"id": "again", "after": "silence", "foreign_bytes": "workers", "for": "10ms"},
            {"id": "crash", "after": "again.healed", "kill": "rank 1"},
            {
                "at": {"step": 5, "rank": 0, "round": 2},
                "run": 'touch "$ELASTIC_CHECKPOINT_DIR/end"',
            },
        ],
    )
    assert outcome.result.outcome == "succeeded", outcome
    assert not outcome.failed, outcome
    assert set(outcome.proved) >= {*sent, "again", "crash"}, outcome
    assert set(outcome.healed) == {*sent, "again"}
    assert outcome.proved["silence"].startswith("20 connections from n1 to n1:29400, nothing said")
    assert "connections from n2 to n1:" in outcome.proved["random"]


TELLING = """
import os, sys, time

probe = sys.modules["elastic_probe"]
proved = os.path.join(os.environ["ELASTIC_CHECKPOINT_DIR"], "proved")
step, right = 0, 0
began, real = time.time(), time.clock_gettime(time.CLOCK_BOOTTIME)
seen = False
while not (seen and right > 20):
    step += 1
    skew = (time.time() - began) - (time.clock_gettime(time.CLOCK_BOOTTIME) - real)
    if abs(skew - 3600) < 60 and not seen and os.path.exists(proved):
        seen = True
        print("an hour ahead", flush=True)
    right = right + 1 if abs(skew) < 60 else 0
    probe.report_step(step)
    time.sleep(0.02)
"""


def test_a_clock_is_wrong_on_one_node_and_right_again(bench: FaultBench) -> None:
    """As the job itself sees it, under a launcher that was started with libfaketime."""
    if not bench.session.choice.capabilities.has("clock_skew"):
        pytest.skip(bench.session.choice.capabilities["clock_skew"].reason)
    outcome = bench.run(
        TELLING,
        [
            {
                "id": "ahead",
                "at": {"step": 5, "rank": 0},
                "clock_skew": {"node": "n1", "by": "60m"},
            },
            {
                "when": {"event": "fault_effective", "id": "ahead"},
                "run": "touch $ELASTIC_CHECKPOINT_DIR/proved",
            },
            {"when": {"log": "an hour ahead"}, "heal": "ahead"},
        ],
        nodes=1,
    )
    assert outcome.result.outcome == "succeeded", outcome
    assert outcome.proved.get("ahead", "").endswith("wrong by 3600s"), outcome
    assert outcome.healed == ["ahead"]
