"""`breakpoint()` in a test with a job: the job runs on, and no deadline comes nearer."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.plugin.place import LIMIT_S, Place

WAITS = """
    import os, time
    while not os.path.exists(os.environ["GO"]):
        time.sleep(0.02)
"""

TESTS = """
    import os

    def test_looked_at(elastic_job):
        job = elastic_job("waits.py", nodes=1, limit="8s", env={"GO": os.environ["GO"]})
        job.wait_for_round(1, within="60s")
        breakpoint()
        open(os.environ["GO"], "w").close()
        assert job.wait().outcome == "succeeded"
"""


def test_a_job_does_not_time_out_while_somebody_looks(place: Place) -> None:
    """The prompt stands for longer than the job's whole limit."""
    place.add("waits.py", WAITS)
    place.add("test_some.py", TESTS)
    place.environ["GO"] = str(place.folder / "go")
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-s", "--elastic-cluster=process"],
        cwd=place.folder,
        env=place._environ(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        said = b""
        while not said.endswith(b"(Pdb) "):
            byte = process.stdout.read(1)
            assert byte, said.decode()
            said += byte
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=9)
        out, _ = process.communicate(b"c\n", timeout=LIMIT_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == pytest.ExitCode.OK, out.decode()
