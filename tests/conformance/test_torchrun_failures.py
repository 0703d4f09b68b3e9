"""Failures of torchrun that no other test shows us to stand; see `docs/torchrun-failures.md`."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path

import pytest

from tests.conformance.launchers import OURS, TORCHRUN, run, write
from tests.conformance.torchrun_alone import takes_children_of_a_failed_worker_along

pytestmark = pytest.mark.slow

LEAVE_A_KEY = """
import os, socket, sys
from datetime import timedelta
from torch.distributed import TCPStore
host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as sock:
    try:
        sock.bind((host, port))
        bound = "free"
    except OSError:
        bound = "bound"
store = TCPStore(host, port, is_master=False, timeout=timedelta(seconds=30))
seen = store.check(["left by an attempt"])
store.set("left by an attempt", "1")
sys.stdout.write(f"at {host} {port} {bound} {seen}\\n")
sys.exit(os.environ["TORCHELASTIC_RESTART_COUNT"] == "0")
"""


def test_a_restart_has_a_store_of_its_own_at_an_address_that_needs_no_names(
    tmp_path: Path,
) -> None:
    """No key of an earlier attempt (#135712), no name service (#150532), no lost port (#91940)."""
    script = write(tmp_path / "leave.py", LEAVE_A_KEY)
    done = run(tmp_path, *OURS, "--standalone", "--max-restarts=1", script)
    assert done.returncode == 0, done.stderr
    found = re.findall(r"^at (\S+) (\d+) (\w+) (\w+)$", done.stdout, re.MULTILINE)
    assert len(found) == 2, done.stdout
    assert [(bound, seen) for _, _, bound, seen in found] == [("bound", "False")] * 2
    for host, _, _, _ in found:
        ipaddress.ip_address(host)
    assert found[0][1] != found[1][1]


OVERSTAY = """
import os, sys, time
import torch.distributed.elastic.timer as timer
sys.stdout.write(f"attempt {os.environ['TORCHELASTIC_RESTART_COUNT']}\\n")
sys.stdout.flush()
timer.configure(timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"]))
with timer.expires(after=600): pass
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    with timer.expires(after=0.2):
        while True: time.sleep(1)
"""


def test_a_worker_that_overstays_its_own_timer_is_killed(tmp_path: Path) -> None:
    """As under torchrun, which ends itself by the same signal; here the job restarts."""
    script = write(tmp_path / "overstay.py", OVERSTAY)
    environ = {"TORCHELASTIC_ENABLE_FILE_TIMER": "1"}
    theirs = run(tmp_path, *TORCHRUN, "--standalone", "--max-restarts=1", script, environ=environ)
    assert theirs.returncode == -9, theirs.stderr
    pipe = tmp_path / "pipe"
    environ["TORCHELASTIC_TIMER_FILE"] = str(pipe)
    ours = run(tmp_path, *OURS, "--standalone", "--max-restarts=1", script, environ=environ)
    assert ours.returncode == 0, ours.stderr
    assert ours.stdout.splitlines() == ["attempt 0", "attempt 1"]
    assert "overstayed its timer" in ours.stderr
    assert "(SIGKILL)" in ours.stderr
    assert not pipe.exists()


def test_children_of_a_failed_worker_end_with_it(tmp_path: Path) -> None:
    """Whatever it started has nobody to serve any more."""
    assert takes_children_of_a_failed_worker_along(tmp_path, (*OURS, "--worker-start=exec"))
