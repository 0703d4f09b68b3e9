"""What workers write, and where, is as the installed torch has it."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

from pytest_elastic.workers.error_file import read_error_file
from pytest_elastic.workers.logs.folders import parse_streams


def test_parity_with_torchs_own_parser() -> None:
    """What the installed torch accepts is accepted, with the same meaning."""
    api = importlib.import_module("torch.distributed.elastic.multiprocessing.api")
    for text in ("0", "1", "2", "3", "0:3,1:0,2:1,3:2"):
        theirs = api.Std.from_str(text)
        ours = parse_streams(text, option="--tee")
        expected = theirs if isinstance(theirs, dict) else {0: theirs}
        found = ours if isinstance(ours, dict) else {0: ours}
        assert {
            rank: (bool(value & api.Std.OUT), bool(value & api.Std.ERR))
            for rank, value in expected.items()
        } == {rank: (streams.stdout, streams.stderr) for rank, streams in found.items()}


def test_what_torch_records_is_read(tmp_path: Path) -> None:
    """The file that `torch.distributed.elastic`'s `record` writes says message and traceback."""
    path = tmp_path / "error.json"
    script = (
        "from torch.distributed.elastic.multiprocessing.errors import record\n"
        "@record\n"
        "def main(): raise ValueError('seven is not enough')\n"
        "main()\n"
    )
    subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "TORCHELASTIC_ERROR_FILE": str(path)},
        stderr=subprocess.DEVNULL,
        timeout=120,
        check=False,
    )
    error = read_error_file(str(path))
    assert error is not None
    assert error.message == "ValueError: seven is not enough"
    assert error.traceback.startswith("Traceback (most recent call last):")
    assert error.timestamp > 1_700_000_000
    assert error.error_code is None
