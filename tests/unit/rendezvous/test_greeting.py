"""What a greeting is judged by (R14)."""

from __future__ import annotations

import dataclasses
import re

import pytest

from pytest_elastic.cli.options import build_parser
from pytest_elastic.rdzv_conf import parse_rdzv_conf
from pytest_elastic.rendezvous.greeting import (
    difference,
    free_name,
    resumes,
    settings_as_values,
)
from pytest_elastic.rendezvous.liveness import GrantedLease
from pytest_elastic.rendezvous.messages import Hello
from pytest_elastic.rendezvous.model import Node, Settings
from pytest_elastic.rendezvous.peer import Peer, Standing

NODE = Node(name="n2", incarnation="i", address="n2", port=1, slots=1)
OURS = Settings(run_id="r", min_nodes=1, max_nodes=2, max_restarts=3)


def hello(settings: Settings = OURS, resumes_round: int = 0) -> Hello:
    """Return the greeting of a node with these settings."""
    return Hello(
        run_id=settings.run_id,
        node=NODE,
        settings=settings_as_values(settings),
        resumes_round=resumes_round,
    )


def test_the_same_settings_are_welcome() -> None:
    """No difference, no words."""
    assert difference(hello(), OURS, "n1") is None


def test_every_difference_is_named_with_both_values() -> None:
    """Whoever reads it knows which option to change on which node, as it is typed."""
    theirs = dataclasses.replace(
        OURS, max_nodes=1, max_restarts=0, last_call_s=7.5, join_timeout_s=9.0
    )
    assert difference(hello(theirs), OURS, "n1") == (
        "cannot join run 'r' as node 'n2': its settings differ from those of n1, which decides: "
        "--max-restarts is 0 on n2 and 3 on n1; --nnodes is 1 on n2 and 1:2 on n1; "
        "--rdzv-conf join_timeout is 9 on n2 and 600 on n1; "
        "--rdzv-conf last_call_timeout is 7.5 on n2 and 30 on n1. Give all nodes the same options."
    )


def test_two_nodes_of_one_name_are_told_apart() -> None:
    """As two agents of one host are that were given no names."""
    problem = difference(hello(dataclasses.replace(OURS, lease_s=9.0)), OURS, "n2") or ""
    assert "those of the node that decides: --rdzv-conf lease is 9 on this node and 5 on" in problem


def test_every_setting_is_called_what_a_user_types() -> None:
    """Each that differs is an option of the command, or a setting that --rdzv-conf takes."""
    values = settings_as_values(OURS)
    others = {
        name: f"{value}?" if isinstance(value, str) else value + 1
        for name, value in values.items()
        if name != "run_id"
    }
    problem = difference(dataclasses.replace(hello(), settings=others), OURS, "n1") or ""
    named = re.findall(r"(?:decides: |; )(--\S+) ([a-z_]*)", problem)
    assert len(named) == len(others) - 1, problem  # --nnodes says two of them
    for option, setting in named:
        if option == "--rdzv-conf":
            parse_rdzv_conf(f"{setting}={'majority' if setting == 'quorum' else 7}")
        else:
            assert option in build_parser().format_help()


def test_a_setting_that_one_side_does_not_know_is_a_difference() -> None:
    """Another version may have settings of its own."""
    greeting = dataclasses.replace(hello(), settings={**hello().settings, "new_s": 1.0})
    problem = difference(greeting, OURS, "n1") or ""
    assert "--rdzv-conf new is 1 on n2 and unknown on n1" in problem


def test_another_run_is_named() -> None:
    """The run comes before everything else."""
    theirs = dataclasses.replace(OURS, run_id="other", max_nodes=9)
    problem = difference(hello(theirs), OURS, "n1") or ""
    assert "belongs to run 'other'" in problem
    assert "max_nodes" not in problem


def test_a_free_name_has_the_smallest_suffix() -> None:
    """host, host-2, host-3, and holes are filled."""
    assert free_name("host", {"host"}) == "host-2"
    assert free_name("host", {"host", "host-2", "host-4"}) == "host-3"


@pytest.mark.parametrize(
    ("standing", "resumed", "expected"),
    [
        (Standing.WAITING, 0, True),
        (Standing.WAITING, 3, True),
        (Standing.SEALED, 0, True),
        (Standing.SEALED, 4, True),
        (Standing.RUNNING, 4, True),
        (Standing.SUCCEEDED, 4, True),
        (Standing.RUNNING, 0, False),
        (Standing.RUNNING, 3, False),
        (Standing.SUCCEEDED, 0, False),
    ],
)
def test_with_workers_a_member_resumes_only_the_round_it_was_given(
    *, standing: Standing, resumed: int, expected: bool
) -> None:
    """Else it has fenced itself, and is a newcomer."""
    peer = Peer(
        node=NODE,
        connection=1,
        lease=GrantedLease(OURS, 0.0),
        came_at=0.0,
        standing=standing,
        round=4,
    )
    assert resumes(peer, hello(resumes_round=resumed)) is expected
