"""Sessions of pytest beside each other, of one user and of two: nothing of them ever meets.

Each job waits until all of them run at the same moment, and then asks its own ranks who they are: a
name, a port, an address or a namespace that two of them shared would put ranks of one into another.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.plugin.place import LIMIT_S, Called, Place
from tests.plugin.test_ordinary_user import NOBODY, kind_for

# How many runs of one user there are at a time: one for each processor.
PLACES = min(2, len(os.sched_getaffinity(0)))

TESTS = """
    import os, pathlib, time, uuid
    import pytest

    MEETING = pathlib.Path(os.environ["MEETING"])
    JOBS = int(os.environ["JOBS"])

    def meet(mine):
        import torch.distributed as dist
        rank = int(os.environ["RANK"])
        dist.init_process_group("gloo")
        dist.barrier()
        if rank == 0:
            (MEETING / mine).touch()
        deadline = time.monotonic() + 300
        while len(list(MEETING.iterdir())) < JOBS:
            assert time.monotonic() < deadline, f"{sorted(MEETING.iterdir())} of {JOBS}"
            time.sleep(0.02)
        found = [None] * dist.get_world_size()
        dist.all_gather_object(found, (mine, rank, os.environ["TORCHELASTIC_RUN_ID"]))
        dist.barrier()
        return found

    @pytest.mark.elastic(nodes=2, nproc=1, limit="350s")
    @pytest.mark.parametrize("number", range(int(os.environ["MINE"])))
    def test_a_job_among_others(elastic_job, number):
        mine = uuid.uuid4().hex
        done = elastic_job(meet, mine).wait()
        assert done.succeeded
        for found in done.results.values():
            assert [(name, rank) for name, rank, _ in found] == [(mine, 0), (mine, 1)]
            assert len({run_id for *_, run_id in found}) == 1
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a folder that every user may read and write."""
    folder = Path(tempfile.mkdtemp(prefix="plugin-test-"))  # tmp_path is closed to others
    (folder / "meeting").mkdir()
    for path in (folder, folder / "meeting"):
        path.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


def session_in(folder: Path, *, jobs: int, mine: int, user: int | None = None) -> Place:
    """Make a folder for one session, whose jobs wait for all others."""
    environ = {"MEETING": str(folder / "meeting"), "JOBS": str(jobs), "MINE": str(mine)}
    own = folder / f"session-{user}"
    own.mkdir()
    place = Place(own, environ, user=user, preload="torch")
    place.add_ini()
    place.add("test_some.py", TESTS)
    for path in (own, *own.iterdir()):
        os.chown(path, user or -1, user or -1)
    return place


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["auto", "process"])
def test_parallel_sessions_do_not_meet(folder: Path, kind: str) -> None:
    """Two workers of xdist, and another session, of an ordinary user if we are root."""
    is_root = os.getuid() == 0
    if is_root:
        kind_for(NOBODY)  # before anything is started: those who wait for it would wait in vain
    jobs = PLACES + is_root
    here = session_in(folder, jobs=jobs, mine=PLACES)
    # What lies below the root is there on every node: the place to meet at, too.
    words = ("-rA", f"--rootdir={folder}", "-p", "no:cacheprovider")
    started = []
    try:
        ours = (f"--elastic-cluster={kind}", f"--elastic-artifacts={here.folder}/.elastic")
        started.append(here.start("-n", str(PLACES), *ours, *words))
        if is_root:
            other = session_in(folder, jobs=jobs, mine=1, user=NOBODY)
            other.environ.update({"HOME": str(other.folder)})
            theirs = ("-p", "no:xdist", f"--elastic-artifacts={other.folder}/.elastic")
            started.append(other.start(*theirs, *words))
        outs = [process.communicate(timeout=LIMIT_S)[0] for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    for process, out in zip(started, outs, strict=True):
        logs = [log.read_text()[-1000:] for log in sorted(folder.rglob("launcher.log"))]
        assert process.returncode == pytest.ExitCode.OK, "\n".join([out, *logs])
    found = [Called(code=0, out=out, seconds=0.0).outcomes for out in outs]
    assert sum(map(len, found)) == jobs, outs
    assert len(list((folder / "meeting").iterdir())) == jobs
