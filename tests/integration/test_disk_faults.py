"""An overlaid path of a node: passed on as it is, and then full, read-only, failing and slow."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from elastic_harness.cluster.choose import choose_cluster
from elastic_harness.cluster.cluster import ClusterError
from elastic_harness.cluster.disks.policy import DiskCounters, DiskPolicy
from elastic_harness.future import wait_for

from pytest_elastic.errors import UsageError
from tests.cluster_bench import Bench

# What programs do with files, through the overlay and, for comparison, beside it.
WORK = """
import errno, mmap, os, shutil, sys
os.chdir(sys.argv[1])
os.makedirs("a/b")
with open("a/file", "wb") as f:
    f.write(bytes(range(256)) * 4096)
    f.flush(); os.fsync(f.fileno())
with open("a/file", "ab") as f: f.write(b"tail")
with open("a/file", "r+b") as f: f.seek(10); f.write(b"middle"); f.truncate(1 << 19)
data = open("a/file", "rb").read()
assert len(data) == 1 << 19 and data[10:16] == b"middle", len(data)
os.rename("a/file", "a/b/other"); os.replace("a/b/other", "a/file")
os.symlink("file", "a/link"); assert os.readlink("a/link") == "file"
os.link("a/file", "a/hard"); assert os.stat("a/file").st_nlink == 2
os.chmod("a/file", 0o600); os.utime("a/file", ns=(5, 7 * 10**9 + 1))
found = os.stat("a/file")
assert (found.st_mode & 0o777, found.st_mtime_ns) == (0o600, 7 * 10**9 + 1), found
assert sorted(os.listdir("a")) == ["b", "file", "hard", "link"], os.listdir("a")
for number in range(300): open(f"a/b/{number}", "w").close()
assert len(os.listdir("a/b")) == 300
with open("a/file", "rb") as f, mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as m:
    assert m[10:16] == b"middle"
try: os.rmdir("a/b")
except OSError as error: assert error.errno == errno.ENOTEMPTY
try: open("nothing")
except FileNotFoundError: pass
shutil.rmtree("a")
assert os.statvfs(".").f_blocks > 0
print("done")
"""
WRITE = """
import errno, os, sys, time
began = time.monotonic()
try:
    with open(sys.argv[1] + "/file", "wb", buffering=0) as f:
        f.write(b"x" * 1000); f.write(b"y" * 1000); os.fsync(f.fileno())
    print("written", os.path.getsize(sys.argv[1] + "/file"), flush=True)
except OSError as error:
    print(errno.errorcode[error.errno], flush=True)
print("slow" if time.monotonic() - began > 0.3 else "fast", flush=True)
"""


@pytest.fixture(scope="module")
def cluster_bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """One server for all tests of this file."""
    try:
        choice = choose_cluster("namespace")
    except UsageError as error:
        pytest.skip(error.message)
    if not choice.capabilities.has("disk_faults"):
        pytest.skip(choice.capabilities["disk_faults"].reason)
    made = Bench("namespace", tmp_path_factory.mktemp("cluster"), preload=())
    yield made
    made.close()


@pytest.fixture
def bench(cluster_bench: Bench, tmp_path: Path) -> Iterator[Bench]:
    """Lend the server, with a node, and look for what the test left."""
    for lent in cluster_bench.borrow(tmp_path):
        lent.start("n1")
        (tmp_path / "data").mkdir()
        yield lent


def lay(bench: Bench, policy: DiskPolicy | None, owner: str = "x") -> None:
    """Lay a policy over the data directory."""
    path = str(bench.folder / "data")
    wait_for(bench.loop, bench.disks.set_policy("n1", path, owner, policy))


def said(bench: Bench, code: str) -> list[str]:
    """Run a program on the node, on the data directory, and return what it printed last."""
    before = len(bench.printed().splitlines())
    process = bench.python("n1", code, str(bench.folder / "data"))
    bench.finish(process)
    return bench.printed().splitlines()[before:]


def counters(bench: Bench) -> DiskCounters:
    """Return what the overlay has counted."""
    path = str(bench.folder / "data")
    found: DiskCounters = wait_for(bench.loop, bench.disks.counters("n1", path))
    return found


def times(bench: Bench, what: str) -> int:
    """Return how often a policy has done something."""
    return sum(done.get(what, 0) for done in counters(bench).by_owner.values())


def test_an_overlay_is_a_file_system_like_any_other(bench: Bench) -> None:
    """Whatever programs do works, and arrives in the directory below."""
    assert said(bench, WORK) == ["done"]
    lay(bench, DiskPolicy())
    assert said(bench, WORK) == ["done"]
    assert said(bench, WRITE)[0] == "written 2000"
    assert (bench.folder / "data" / "file").read_bytes() == b"x" * 1000 + b"y" * 1000
    assert counters(bench).operations > 1000


def test_each_kind_of_trouble_is_met_counted_and_healed(bench: Bench) -> None:
    """Full after some bytes, read-only, failing, slow; then as before, twice."""
    lay(bench, DiskPolicy(free_bytes=1500))
    assert said(bench, WRITE)[0] == "written 1500"  # a short write, as of any disk
    assert said(bench, WRITE)[0] == "ENOSPC"
    lay(bench, DiskPolicy(is_read_only=True))
    assert said(bench, WRITE)[0] == "EROFS"
    lay(bench, DiskPolicy(fails=("sync",)))
    assert said(bench, WRITE)[0] == "EIO"
    lay(bench, DiskPolicy(latency_s=0.2))
    assert said(bench, WRITE) == ["written 2000", "slow"]
    lay(bench, None)
    lay(bench, None)
    assert said(bench, WRITE)[0] == "written 2000"
    found = counters(bench)
    (done,) = found.by_owner.values()
    assert set(done) == {"refused_full", "refused_read_only", "failed", "delayed"}


def test_a_node_that_waits_for_its_disk_can_die(bench: Bench) -> None:
    """Killing it does not take as long as its disk would."""
    lay(bench, DiskPolicy(latency_s=60.0))
    bench.python("n1", WRITE, str(bench.folder / "data"))
    bench.until(lambda: times(bench, "delayed") > 0, "somebody to wait for the disk")
    bench.end("crash", "n1")
    bench.start("n1")
    assert said(bench, WRITE)[0] == "written 2000"


def test_a_path_that_cannot_be_overlaid_is_said(bench: Bench) -> None:
    """A path that the node does not have."""
    with pytest.raises(ClusterError, match="cannot mount an overlay on /nothing/there of 'n1'"):
        wait_for(bench.loop, bench.disks.set_policy("n1", "/nothing/there", "x", DiskPolicy()))


SAVE = """
import os, signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: None)
with open(sys.argv[1] + "/step-20.tmp", "wb", buffering=0) as f:
    print("writing", os.getpid(), flush=True)
    written = 0
    while written < 3000:
        written += f.write(b"x" * (3000 - written))
os.rename(sys.argv[1] + "/step-20.tmp", sys.argv[1] + "/step-20.pt")
print("saved", flush=True)
"""


@pytest.mark.parametrize("by", ["release", "SIGKILL", "SIGUSR1"])
def test_a_writer_is_held_in_the_middle_of_its_file(bench: Bench, by: str) -> None:
    """Until it is let go, or killed: then the file stays torn, under the name that it had."""
    data = bench.folder / "data"
    lay(bench, DiskPolicy(holds="step-*"))
    process = bench.python("n1", SAVE, str(data))
    bench.until(lambda: times(bench, "held") > 0, "a writer to be held")
    assert counters(bench).held_file == "step-20.tmp"
    assert (data / "step-20.tmp").read_bytes() == b"x" * 1500
    if by == "release":
        lay(bench, None)
    else:
        os.kill(process.pid, signal.Signals[by])
    if by == "SIGUSR1":  # it goes on, and is held again at what it had left
        bench.until(lambda: times(bench, "held") > 1, "the writer to be held again")
        assert (data / "step-20.tmp").read_bytes() == b"x" * 2250
        lay(bench, None)
    bench.finish(process)
    if by == "SIGKILL":
        assert (data / "step-20.tmp").read_bytes() == b"x" * 1500
        assert not (data / "step-20.pt").exists()
    else:
        assert (data / "step-20.pt").read_bytes() == b"x" * 3000
