"""Error files go both ways, as `docs/torchrun-parity.md` says, with real commands and workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.launchers import OURS, TORCHRUN, error_in, run, write

# Each starts launchers, and most wait for a worker that imports torch.
pytestmark = pytest.mark.slow

RECORDED = """
import sys
from torch.distributed.elastic.multiprocessing.errors import record
@record
def main():
    raise ValueError("sample 17 is not a tensor")
main()
"""


def test_the_reason_of_a_failure_is_left_where_torchrun_leaves_it(tmp_path: Path) -> None:
    """The root cause's own file, with its exit code, becomes the agent's."""
    script = write(tmp_path / "raise.py", RECORDED)
    found = {}
    for name, launcher in (("ours", OURS), ("theirs", TORCHRUN)):
        target = tmp_path / f"{name}.json"
        environ = {"TORCHELASTIC_ERROR_FILE": str(target)}
        done = run(tmp_path, *launcher, "--standalone", script, environ=environ)
        assert done.returncode == 1
        found[name] = error_in(target)
    assert found["ours"] == found["theirs"]
    assert found["ours"]["message"] == "ValueError: sample 17 is not a tensor"
    assert found["ours"]["errorCode"] == 1
    assert "in main" in found["ours"]["extraInfo"]["py_callstack"]


def test_a_failure_without_a_recorded_exception_is_left_too(tmp_path: Path) -> None:
    """Who failed and how, where torchrun would leave nothing."""
    script = write(tmp_path / "exit.py", "import os, sys; sys.exit(3 * int(os.environ['RANK']))")
    target = tmp_path / "error.json"
    done = run(
        tmp_path,
        *(*OURS, "--standalone", "--nproc-per-node=2", script),
        environ={"TORCHELASTIC_ERROR_FILE": str(target)},
    )
    assert done.returncode == 1
    error = error_in(target)
    assert error["message"].startswith("rank 1 (node ")
    assert error["message"].endswith(": exit code 3")
    assert error["errorCode"] == 3


def test_an_error_file_that_cannot_be_written_harms_nothing(tmp_path: Path) -> None:
    """The exit code is still the job's."""
    script = write(tmp_path / "exit.py", "raise SystemExit(3)")
    environ = {"TORCHELASTIC_ERROR_FILE": "/nowhere/error.json"}
    done = run(tmp_path, *OURS, "--standalone", script, environ=environ)
    assert done.returncode == 1
    assert "cannot write the reason to /nowhere/error.json" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("outer", "inner"), [(OURS, OURS), (OURS, TORCHRUN), (TORCHRUN, OURS)], ids=str
)
def test_a_launcher_below_a_launcher_passes_the_reason_up(
    tmp_path: Path, outer: tuple[str, ...], inner: tuple[str, ...]
) -> None:
    """The exception of the innermost worker is in the outermost summary, at any depth."""
    script = write(tmp_path / "raise.py", RECORDED)
    done = run(
        tmp_path,
        *(*outer, "--standalone", "--log-dir", str(tmp_path / "outer"), "-r", "3"),
        *("--no-python", *inner, "--standalone", script),
    )
    assert done.returncode == 1
    assert "ValueError: sample 17 is not a tensor" in done.stderr


def test_an_exception_under_run_path_is_recorded(tmp_path: Path) -> None:
    """--run-path needs no decorator, as with torchrun."""
    script = write(tmp_path / "raise.py", "raise ValueError('sample 17 is not a tensor')")
    done = run(tmp_path, *OURS, "--standalone", "--run-path", script)
    assert done.returncode == 1
    assert "ValueError: sample 17" in done.stderr.partition("first failure")[2]
