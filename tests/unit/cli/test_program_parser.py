"""Where a command line's own options end: at the program."""

from __future__ import annotations

import shlex

import pytest

from pytest_elastic.cli import chaos
from pytest_elastic.cli.program_parser import ProgramParser


@pytest.fixture
def parser() -> ProgramParser:
    """Return a parser with options that a program may have, too."""
    made = ProgramParser()
    made.add_argument("-r", "--rounds")
    made.add_argument("--nodes", "--nodes_of")
    made.add_argument("--node-rank")
    made.add_argument("-m", "--module", action="store_true")
    made.add_argument("program")
    made.add_argument("rest", nargs="...")
    return made


@pytest.mark.parametrize(
    ("words", "program", "rest"),
    [
        ("train.py", "train.py", ""),
        ("train.py --n=3 --no -r", "train.py", "--n=3 --no -r"),
        ("train.py --module --help", "train.py", "--module --help"),
        ("--nodes 2 train.py --nodes 3", "train.py", "--nodes 3"),
        ("--nodes=2 -r3 -m train.py -x", "train.py", "-x"),
        ("-r 3 train.py 4", "train.py", "4"),
        ("--round 3 train.py 4", "train.py", "4"),
        ("--nodes 3 train.py 4", "train.py", "4"),
        ("--nodes_ 3 train.py 4", "train.py", "4"),
        ("--node- 3 train.py 4", "train.py", "4"),
        ("--nodes -1 train.py", "train.py", ""),
        ("-- train.py --n=3", "train.py", "--n=3"),
        ("train.py -- --n=3", "train.py", "--n=3"),
        ("train.py -- -- --n=3", "train.py", "-- --n=3"),
        ("train.py -x -- --n=3", "train.py", "-x -- --n=3"),
        ("-- train.py -- --n=3", "train.py", "-- --n=3"),
        ("-m -- -x.py", "-x.py", ""),
        ("-1 a", "-1", "a"),
        ("- a", "-", "a"),
    ],
)
def test_what_follows_the_program_is_its_own(
    parser: ProgramParser, words: str, program: str, rest: str
) -> None:
    """Also where it looks like options of ours, or like the beginning of two of them."""
    found = parser.read(shlex.split(words), rest="rest")
    assert (found.program, found.rest) == (program, shlex.split(rest))


@pytest.mark.parametrize("words", ["", "--nodes", "--nodes 3", "--n=3 train.py", "--", "-m --"])
def test_what_is_wrong_with_our_own_options_is_refused_as_ever(
    parser: ProgramParser, words: str
) -> None:
    """No program, no value, or an option that is short for two."""
    with pytest.raises(SystemExit):
        parser.read(shlex.split(words), rest="rest")


def test_the_tests_of_a_check_up_may_be_named_one_by_one() -> None:
    """Or several at once, with commas."""
    words = ["--only=worker-killed,slow-link", "--only=preempted", "train.py", "--only=1"]
    found = chaos.build_parser().read(words, rest="arguments")
    assert found.only == ["worker-killed", "slow-link", "preempted"]
    assert found.arguments == ["--only=1"]
