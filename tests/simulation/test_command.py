"""The simulator's command, as a person uses it."""

from __future__ import annotations

from pathlib import Path

import pytest
from elastic_simulation.__main__ import main
from elastic_simulation.random_faults.campaign import run_seeds
from elastic_simulation.random_faults.ledger import Ledger
from elastic_simulation.random_faults.plan import Options

from tests.simulation.planted import PLANTED


def test_one_run_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """What became of it, and how much happened."""
    assert main(["--seed", "3", "--swarm"]) == 0
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith("seed 3: kept, ")


def test_a_trace_has_a_column_for_each_node(capsys: pytest.CaptureFixture[str]) -> None:
    """The same run, told again."""
    main(["--seed", "3", "--swarm", "--nodes", "3", "--trace"])
    head, *lines, _ = capsys.readouterr().out.splitlines()
    assert head.split()[0] == "time"
    assert {"n1", "n2", "n3"} <= set(head.split())
    assert any("* round_sealed round=1" in line for line in lines)
    assert any("--- healed" in line for line in lines)


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
        command = f"python -m elastic_simulation --seed {seed} --swarm --trace"
        assert lines[-1] == f"repeat: {command}"
        assert main(command.split()[3:]) == 1
    assert ": BROKEN: " in capsys.readouterr().out


def test_a_broken_run_is_shrunk_to_what_it_needs(capsys: pytest.CaptureFixture[str]) -> None:
    """Faults that have nothing to do with it are left out."""
    with PLANTED["number-reused"].planted():
        assert main(["--seed", "12", "--swarm", "--trace", "--shrink"]) == 1
    faults = [line for line in capsys.readouterr().out.splitlines() if "--- " in line]
    assert 1 <= len([line for line in faults if "healed" not in line]) <= 3


def test_jobs_share_the_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    """As many runs as with one process, counted together."""
    assert main(["--seeds", "0..150", "--swarm", "-j", "2"]) == 0
    assert "150 runs, 0 broken" in capsys.readouterr().out


def test_a_campaign_goes_on_where_its_ledger_ends(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """No seed is run twice, and the totals are those of all that were."""
    ledger = tmp_path / "ledger.jsonl"
    campaign = ["--swarm", "--brisk", "--quiet", "--ledger", str(ledger)]
    assert main(["--seeds", "50..130", *campaign]) == 0
    assert main(["--seeds", "0..150", *campaign]) == 0
    assert main(["--seeds", "0..20", "--swarm", "--ledger", str(ledger)]) == 0  # of another kind
    capsys.readouterr()
    done = [(entry.kind, entry.seeds) for entry in Ledger(ledger).entries]
    brisk = [seeds for kind, seeds in done if kind == "--swarm --brisk"]
    assert sorted(seed for seeds in brisk for seed in seeds) == list(range(150))
    assert main(["ledger", str(ledger)]) == 0
    plain, other, total = capsys.readouterr().out.splitlines()
    assert plain.startswith("--swarm --seeds 0..20: ")
    assert other.startswith("--swarm --brisk --seeds 0..150: ")
    assert ", 0 violations; " in total
    assert _counted(total) == _counted(plain) + _counted(other)


def _counted(line: str) -> int:
    return int(line.partition(": ")[2].split()[0])


def test_a_ledger_names_the_seeds_that_broke_a_promise(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Also when they are not run any more."""
    campaign = ["--seeds", "0..20", "--swarm", "--quiet", "--ledger", str(tmp_path / "ledger")]
    with PLANTED["too-few"].planted():
        assert main(campaign) == 1
    capsys.readouterr()
    assert main(campaign) == 1
    total, repeat = capsys.readouterr().out.splitlines()
    seed = total.partition("(seeds ")[2].split(",")[0].rstrip(")").split(")")[0]
    assert repeat == f"repeat: python -m elastic_simulation --seed {seed} --swarm --trace"


def test_brisk_runs_are_short_and_most_of_them_count() -> None:
    """What campaigns are made of."""
    plain, brisk = (
        run_seeds(range(60), Options(quorum="majority", nodes=5, is_brisk=is_brisk))
        for is_brisk in (False, True)
    )
    assert brisk.virtual_s < plain.virtual_s
    assert brisk.counted > max(plain.counted, brisk.runs / 2)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["ledger", "nowhere"], "cannot sum up 'nowhere'"),
        (["ledger", __file__], "cannot read line 1 of the ledger"),
        (["crowd", "ledger.jsonl"], "only `ledger` takes files"),
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
    """However many nodes: four to a member (welcome, check, seal, commit), three from it."""
    assert main(["crowd", "--nodes", "300"]) == 0
    assert "7.00 messages for each node, 4 to the one that got most" in capsys.readouterr().out
