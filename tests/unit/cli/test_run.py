"""The outermost loop of an agent: what its exit code says when nobody expected it."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest

from pytest_elastic import launch
from pytest_elastic.cli.main import main
from pytest_elastic.cli.run import read_config
from pytest_elastic.errors import RendezvousError
from pytest_elastic.rendezvous.leases import HeldLease


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


@pytest.mark.parametrize("lease_s", [0.8, 1.25, 2.0, 5.0])
def test_the_keeper_begins_to_kill_when_the_member_does(lease_s: float) -> None:
    """Before the end of a lease, by what the keeper is told of it (R6)."""
    conf = f"--rdzv-conf=lease={lease_s},beat_interval=0.2"
    config = read_config(["--standalone", conf, __file__], {})
    held = HeldLease(launch.settings_of(config), now=100.0)
    assert held.take_echo(0)
    assert held.held_until is not None
    assert held.fence_at == pytest.approx(held.held_until - launch.keeper_kill_margin_s(config))
