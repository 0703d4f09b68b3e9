"""Whose line a line of output is."""

from __future__ import annotations

import re

import pytest
from elastic_harness.scenario.launchers import launcher_named
from elastic_harness.scenario.stage.log_source import is_by, log_source_of, parse_log_source

OURS = re.compile(launcher_named("pytest-elastic").own_lines)
TORCHS = re.compile(launcher_named("torchrun").own_lines)


@pytest.mark.parametrize(
    ("own", "line", "source"),
    [
        (OURS, "[pytest-elastic n1] round 1: n1 n2", "launcher"),
        (OURS, "pytest-elastic run: the agent ended", "launcher"),
        (OURS, "step 10 loss 2.5", "worker"),
        (OURS, "pytest-elasticity is no word of ours", "worker"),
        (TORCHS, "W1121 18:00:50.123000 71 torch/distributed/run.py:1] hello", "launcher"),
        (TORCHS, "step 10 loss 2.5", "worker"),
        (None, "[pytest-elastic n1] some words", "worker"),
    ],
)
def test_in_one_file_a_launcher_is_told_by_how_its_lines_begin(
    own: re.Pattern[str] | None, line: str, source: str
) -> None:
    """Where it is not known how they begin, everything is a worker's."""
    assert log_source_of("launcher.log", line, own_lines=own, are_apart=False) == source


def test_where_workers_have_files_each_line_is_somebodys_and_counts_once() -> None:
    """What a launcher passes on is in its log a second time."""
    say = {"own_lines": OURS, "are_apart": True}
    file = "workers/job_x/attempt_0/3/stdout.log"
    assert log_source_of(file, "step 10", **say) == 3  # type: ignore[arg-type]
    assert log_source_of("launcher.log", "[default3]:step 10", **say) is None  # type: ignore[arg-type]
    assert log_source_of("launcher.log", "  Traceback", **say) == "launcher"  # type: ignore[arg-type]
    assert log_source_of("mend.log", "done", **say) is None  # type: ignore[arg-type]


def test_who_does_not_say_whose_line_is_meant_does_not_mean_the_launchers() -> None:
    """A launcher repeats what its workers have said when they have failed."""
    assert [by for by in ("launcher", "worker", "rank 3", "") if is_by(by, None)] == [
        "worker",
        "rank 3",
        "",
    ]
    assert is_by("launcher", "any")
    assert is_by("rank 3", "worker")
    assert is_by("rank 3", "rank 3")
    assert not is_by("worker", "rank 3")
    assert not is_by("", "launcher")


def test_somebody_who_prints_nothing_is_refused() -> None:
    """With what could have been meant."""
    with pytest.raises(ValueError, match="launcher, worker, any, or for example rank 1"):
        parse_log_source("rank one")
