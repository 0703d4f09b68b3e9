"""`breakpoint()` in a test with a job: the job runs on, and no deadline comes nearer."""

from __future__ import annotations

import pytest

from tests.plugin.place import Place

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
    called = place.debug("-s", "--elastic-cluster=process", looks_s=9, types="c\n")
    assert called.code == pytest.ExitCode.OK, called.out
