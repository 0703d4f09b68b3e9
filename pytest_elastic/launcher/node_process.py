"""The agent of a call, in a process of its own.

It reads its settings in the folder of the call, takes part in the job, and leaves the outcome
there.
"""

from __future__ import annotations

import ctypes
import json
import os
import pickle
import shutil
import signal
import sys
import traceback
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from pytest_elastic.agent.outcome import RESULTS, Outcome
from pytest_elastic.errors import ElasticError, InternalError
from pytest_elastic.whole_file import replace_file

__all__ = ["CONFIG_FILE", "main", "read_outcome"]

CONFIG_FILE = "config.pickle"
_OUTCOME_FILE = "outcome.json"
_PR_SET_PDEATHSIG = 1


def read_outcome(folder: str) -> Outcome | None:
    """Return what the process left in the folder, or None if it did not come to that."""
    try:
        with open(os.path.join(folder, _OUTCOME_FILE), encoding="utf-8") as file:
            return msgspec.convert(json.load(file), Outcome)
    except FileNotFoundError:
        return None


def _write_outcome(folder: str, outcome: Outcome) -> None:
    text = json.dumps(msgspec.to_builtins(outcome))
    replace_file(os.path.join(folder, _OUTCOME_FILE), text)


def _leave_with(caller: int) -> None:
    """Have this process leave the job when the thread that started it ends, and its process so."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != caller:
        sys.exit(128 + signal.SIGTERM)  # it ended before we asked


def main(argv: Sequence[str]) -> int:
    """Take part; `argv` is a name, the folder, and the caller's pid. Returns the exit code."""
    _, folder, caller = argv
    try:
        return _take_part(folder, int(caller))
    finally:
        if os.getppid() != int(caller):
            shutil.rmtree(folder, ignore_errors=True)  # the caller cannot any more


def _take_part(folder: str, caller: int) -> int:
    _leave_with(caller)
    with open(os.path.join(folder, CONFIG_FILE), "rb") as file:
        config = pickle.load(file)  # noqa: S301 (the caller has written it)
    if os.path.abspath(config.program.python) == os.path.abspath(sys.executable):
        # The same interpreter by another path: workers may be forked from ours.
        config = replace(config, program=replace(config.program, python=sys.executable))
    # Here and not above: the caller imports this module too, and runs no agent.
    from pytest_elastic.launch import launch

    try:
        outcome = launch(config)
    except ElasticError as error:
        result = RESULTS.get(error.exit_code, "")
        outcome = Outcome(result=result, reason=str(error), exit_code=error.exit_code)
    except Exception as error:  # noqa: BLE001 (the outermost loop: the caller raises it)
        traceback.print_exc()
        reason = f"the agent ended by an unexpected {type(error).__name__}"
        outcome = Outcome(reason=reason, exit_code=InternalError.exit_code)
    _write_outcome(folder, outcome)
    return outcome.exit_code
