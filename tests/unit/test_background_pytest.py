"""Tests may be started in the background of a shell, whose signals of a terminal are ignored."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.cluster_bench import ROOT

KEYS = (signal.SIGINT, signal.SIGQUIT)  # Ctrl-C and Ctrl-\


@pytest.mark.parametrize("number", KEYS)
def test_programs_that_tests_start_hear_the_keys_of_a_terminal(number: signal.Signals) -> None:
    """What is ignored here would be ignored there, too."""
    code = f"import signal; assert signal.getsignal({int(number)}) is not signal.SIG_IGN"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_they_do_so_in_the_background_of_a_shell_without_job_control() -> None:
    """Such a shell has what it puts there ignore both."""
    test = f"{__file__}::{test_programs_that_tests_start_hear_the_keys_of_a_terminal.__name__}"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test]
    done = subprocess.run(
        ["sh", "-c", '"$@" & wait "$!"', "sh", *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert f"{len(KEYS)} passed" in done.stdout
