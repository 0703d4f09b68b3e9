"""What the outermost process of a cluster removes when its server ends."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from elastic_harness.cluster.server import stale_resources
from elastic_harness.cluster.server.supervisor import leave_nothing


def test_what_a_server_makes_as_it_is_killed_is_removed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine may be lost, or pytest ended, while its server is starting."""
    folder, reap = tmp_path / "session", stale_resources.reap
    has_made: list[bool] = []

    def reap_late() -> tuple[int, int]:
        if not has_made:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
            folder.mkdir()  # the last that it did
            has_made.append(True)
        return reap()

    monkeypatch.setattr(stale_resources, "reap", reap_late)
    monkeypatch.setattr(stale_resources, "scratch_folder", lambda _tag: str(folder))
    supervisor = os.fork()
    if supervisor == 0:
        server = os.fork()
        if server == 0:
            signal.pause()
        leave_nothing(server, "no tag")
        os._exit(len(has_made) - folder.exists())
    assert os.waitstatus_to_exitcode(os.waitpid(supervisor, 0)[1]) == 1, "made and removed"
