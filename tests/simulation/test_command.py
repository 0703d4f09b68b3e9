"""The simulator's command, as a person uses it."""

from __future__ import annotations

import pytest
from elastic_harness.simulation.__main__ import main

from tests.simulation.planted import PLANTED


def test_one_storm_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """What became of it, and how much happened."""
    assert main(["--seed", "3", "--swarm"]) == 0
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith("seed 3: kept, ")


def test_a_trace_has_a_column_for_each_node(capsys: pytest.CaptureFixture[str]) -> None:
    """The same storm, told again."""
    main(["--seed", "3", "--swarm", "--nodes", "3", "--trace"])
    head, *lines, _ = capsys.readouterr().out.splitlines()
    assert head.split()[0] == "time"
    assert {"n1", "n2", "n3"} <= set(head.split())
    assert any("* round_sealed round=1" in line for line in lines)
    assert any("--- calm" in line for line in lines)


def test_a_broken_promise_is_named_with_the_command_that_repeats_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One line for each seed that broke one, exit code 1, and the command at the end."""
    with PLANTED["too-few"].planted():
        assert main(["--seeds", "0..20", "--swarm"]) == 1
        lines = capsys.readouterr().out.splitlines()
        broken = [line for line in lines if ": BROKEN: " in line]
        assert broken
        seed = broken[0].split(":")[0].removeprefix("seed ")
        command = f"python -m elastic_harness.simulation --seed {seed} --swarm --trace"
        assert lines[-1] == f"repeat: {command}"
        assert main(command.split()[3:]) == 1
    assert ": BROKEN: " in capsys.readouterr().out


def test_a_broken_storm_is_shrunk_to_what_it_needs(capsys: pytest.CaptureFixture[str]) -> None:
    """Blows that have nothing to do with it are left out."""
    with PLANTED["connection-not-noticed"].planted():
        assert main(["--seed", "39", "--swarm", "--trace", "--shrink"]) == 1
    blows = [line for line in capsys.readouterr().out.splitlines() if "--- " in line]
    assert 1 <= len([line for line in blows if "calm" not in line]) <= 3


def test_jobs_share_the_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    """As many storms as with one process, counted together."""
    assert main(["--seeds", "0..150", "--swarm", "-j", "2"]) == 0
    assert "150 storms, 0 broken" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--seeds", "5"], "cannot take '5' for seeds"),
        (["--kinds", "flood"], "cannot draw faults of the kind 'flood'"),
        (["--nodes", "0"], "cannot have 0 nodes"),
    ],
)
def test_what_cannot_be_meant_is_one_clear_error(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was given, what is expected, exit code 2."""
    assert main(arguments) == 2
    assert expected in capsys.readouterr().err


def test_a_crowd_costs_each_node_a_handful_of_messages(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """However many nodes there are: three to a member (welcome, seal, commit), two from it."""
    assert main(["crowd", "--nodes", "300"]) == 0
    assert "5.00 messages for each node, 3 to the one that got most" in capsys.readouterr().out
