"""The outermost loop of an agent: what its exit code says when nobody expected it."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest

from pytest_elastic import launch
from pytest_elastic.cli.main import main
from pytest_elastic.errors import RendezvousError


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (AssertionError("a planted fault"), 70, "This is a bug in pytest-elastic"),
        (RendezvousError("nobody is there"), 3, "pytest-elastic run: nobody is there"),
    ],
)
def test_a_fault_of_ours_is_not_taken_for_a_failed_job(
    error: Exception,
    code: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What nobody meant to raise is exit code 70, with its traceback; others keep theirs."""

    def fail(config: object, **_: object) -> NoReturn:
        raise error

    monkeypatch.setattr(launch, "launch", fail)
    script = tmp_path / "train.py"
    script.touch()
    assert main(["run", "--standalone", str(script)]) == code
    printed = capsys.readouterr().err
    assert said in printed
    assert ("a planted fault" in printed) == ("Traceback" in printed) == (code == 70)
