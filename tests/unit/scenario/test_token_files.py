"""A file of a token that a scenario's options name is looked for when the scenario is read."""

from __future__ import annotations

from pathlib import Path

import pytest
from elastic_harness.scenario.reading.problems import Problem, ScenarioError

from tests.unit.scenario.test_loader import GOOD, load


def refused(text: str) -> tuple[Problem, ...]:
    """Return what is wrong with a text."""
    with pytest.raises(ScenarioError) as caught:
        load(text)
    return tuple(caught.value.problems)


def test_a_token_that_cannot_be_had_is_said_when_the_file_is_read(tmp_path: Path) -> None:
    """As every launcher would say it, with what makes one; a good one is read where it is."""
    option = f"  options: [--rdzv-token-file, {tmp_path}/token]\n"
    text = GOOD.replace("  nproc_per_node: 2\n", f"  nproc_per_node: 2\n{option}")
    (problem,) = refused(text)
    assert problem.message == f"--rdzv-token-file={tmp_path}/token: No such file or directory"
    assert problem.suggestion is not None
    assert problem.at.line == text.splitlines().index(option.rstrip("\n")) + 1
    (tmp_path / "token").write_text("short")
    (tmp_path / "token").chmod(0o600)
    assert "holds 5 bytes" in refused(text)[0].message
    (tmp_path / "token").write_text("x" * 64)
    assert load(text)
