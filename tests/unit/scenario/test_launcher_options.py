"""`options:` are refused when the scenario is read, in the words of the launcher's own parser."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.scenario.test_loader import GOOD, load, refuse

# For each list of options what is said: the column, and the message or its beginning.
OURS = [
    (
        "[--no-such-option]",
        "13: there is no option --no-such-option (Did you mean --no-python? See",
    ),
    ("[--role=x, -r9]", "23: --redirects=9 names no streams: expected 0 (none), 1 (stdout), 2 "),
    ("[--tee, --role=x]", "13: argument -t/--tee: expected one argument (See 'pytest-elastic run "),
    ("[--role=x, --tee]", "23: argument -t/--tee: expected one argument (See 'pytest-elastic run "),
    ("[--monitor-interval, -1]", "33: --monitor-interval=-1: expected a number of seconds"),
    ("[other.py]", "13: 'other.py' is no option: what the program is given stands in `args`"),
    ("[--nnodes=7]", "13: --nnodes is what `nodes: {min: …, max: …}` says"),
    ("[--rdzv_endpoint, h]", "30: --rdzv-endpoint is what `rdzv: {store_host: …}`, or `endpoi"),
    ("[-m]", "13: --module is what `module` says"),
    ("[--help]", "13: --help is what pytest-elastic run --help says"),
    ("[--node-name=a]", "13: --node-name would be the same on every node: leave it out"),
    (
        "[--rdzv-token-file=none]",
        "13: --rdzv-token-file=none: No such file or directory (Make one ",
    ),
]
TAKEN = [
    "[--tee, '3', --role, a]",
    "[-r=3, --local_ranks_filter=0]",
    "[--use-env]",
    "[--event-log-handler=mine]",  # ours says so and goes on
]


def with_options(options: str, *, launcher: str | None = None) -> str:
    """Return a scenario with options in its sixth line, or its seventh."""
    pinned = f"  launcher: {launcher}\n" if launcher else ""
    return GOOD.replace("  nproc_per_node: 2\n", f"{pinned}  options: {options}\n", 1).replace(
        "rank 1", "rank 0"
    )


@pytest.mark.parametrize(("options", "said"), OURS, ids=[options for options, _ in OURS])
def test_an_option_that_our_parser_refuses_is_shown_where_it_stands(
    options: str, said: str
) -> None:
    """So is one that the scenario says elsewhere."""
    text = with_options(options).replace("rank: 1", "rank: 0")
    first, *_ = str(refuse(text)).splitlines()
    assert first.startswith(f"some/file.elastic.yaml:6:{said}")


@pytest.mark.parametrize("options", TAKEN)
def test_whatever_the_parser_takes_can_be_given(options: str) -> None:
    """In all forms that argparse knows."""
    assert load(with_options(options).replace("rank: 1", "rank: 0"))


def test_torchrun_is_asked_about_its_own_options() -> None:
    """It knows fewer than ours, and says so itself; one question is asked for all that is wrong."""
    text = with_options("[--role=x, --worker-start=exec]", launcher="torchrun")
    (found,) = refuse(text.replace("rank: 1", "rank: 0")).findings
    assert found.at is not None
    assert (found.at.line, found.at.column) == (7, 23)
    assert found.message == "torchrun says: unrecognized arguments: --worker-start=exec"


def test_a_token_file_is_looked_into(tmp_path: Path) -> None:
    """One that is too short is refused, and a good one is taken."""
    token = tmp_path / "token"
    token.write_text("short")
    token.chmod(0o600)
    text = with_options(f"[--rdzv-token-file, {token}]").replace("rank: 1", "rank: 0")
    assert "holds 5 bytes" in str(refuse(text))
    token.write_text("x" * 64)
    assert load(text)
