"""What a join request is judged by (R14)."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import asdict, replace

from pytest_elastic.cli.options import build_parser
from pytest_elastic.rdzv_conf import parse_rdzv_conf
from pytest_elastic.rendezvous.consensus.records import NO_TERM
from pytest_elastic.rendezvous.messages import JoinRequest
from pytest_elastic.rendezvous.model import Node, free_name
from pytest_elastic.rendezvous.settings import (
    Settings,
    difference,
)

NODE = Node(name="n2", incarnation="i", address="n2", port=1, slots=1)
OURS = Settings(run_id="r", min_nodes=1, max_nodes=2, max_restarts=3)


def request(settings: Settings = OURS) -> JoinRequest:
    """Return the join request of a node with these settings."""
    return JoinRequest(
        run_id=settings.run_id,
        node=NODE,
        settings=asdict(settings),
        resumes_round=0,
        term=NO_TERM,
        number=0,
        restarts_used=0,
        meant_for="",
    )


def test_the_same_settings_are_welcome() -> None:
    """No difference, no words."""
    assert difference(request(), OURS, "n1") is None


def test_every_difference_is_named_with_both_values() -> None:
    """The message says which option to change on which node, as it is typed."""
    theirs = replace(OURS, max_nodes=1, max_restarts=0, last_call_s=7.5, join_timeout_s=9.0)
    assert difference(request(theirs), OURS, "n1") == (
        "cannot join run 'r' as node 'n2': its settings differ from those of n1, which leads: "
        "--max-restarts is 0 on n2 and 3 on n1; --nnodes is 1 on n2 and 1:2 on n1; "
        "--rdzv-conf join_timeout is 9 on n2 and 600 on n1; "
        "--rdzv-conf last_call_timeout is 7.5 on n2 and 30 on n1. Give all nodes the same options."
    )


def test_two_nodes_of_one_name_are_told_apart() -> None:
    """As two agents of one host are that were given no names."""
    problem = difference(request(replace(OURS, lease_s=9.0)), OURS, "n2") or ""
    assert "those of the node that leads: --rdzv-conf lease is 9 on this node and 5 on" in problem


OTHERS = {
    name: f"{value}?" if isinstance(value, str) else value + 1
    for name, value in asdict(OURS).items()
    if name != "run_id"
}


@pytest.mark.parametrize("name", OTHERS)
def test_every_setting_is_called_what_a_user_types(name: str) -> None:
    """Each that differs is an option of the command, or a setting that --rdzv-conf takes."""
    theirs = {**asdict(OURS), name: OTHERS[name]}
    problem = difference(replace(request(), settings=theirs), OURS, "n1") or ""
    ((option, setting),) = re.findall(r"(?:leads: |; )(--\S+) ([a-z_]*)", problem)
    if option == "--rdzv-conf":
        parse_rdzv_conf(f"{setting}={'majority' if setting == 'quorum' else 7}")
    else:
        assert option in build_parser().format_help()


def test_where_the_lease_differs_what_follows_from_it_is_not_named() -> None:
    """One option was given, and one is to be changed."""
    theirs = {**OTHERS, "run_id": "r"}
    problem = difference(replace(request(), settings=theirs), OURS, "n1") or ""
    assert "--rdzv-conf lease is 6 on n2 and 5 on n1" in problem
    assert "--max-restarts is 4" in problem
    assert "beat_interval" not in problem


def test_a_setting_that_one_side_does_not_know_is_a_difference() -> None:
    """Another version may have settings of its own."""
    newer = replace(request(), settings={**request().settings, "new_s": 1.0})
    problem = difference(newer, OURS, "n1") or ""
    assert "--rdzv-conf new is 1 on n2 and unknown on n1" in problem


def test_another_run_is_named() -> None:
    """The run comes before everything else."""
    theirs = replace(OURS, run_id="other", max_nodes=9)
    problem = difference(request(theirs), OURS, "n1") or ""
    assert "belongs to run 'other'" in problem
    assert "max_nodes" not in problem


def test_a_free_name_has_the_smallest_suffix() -> None:
    """host, host-2, host-3, and holes are filled."""
    assert free_name("host", {"host"}) == "host-2"
    assert free_name("host", {"host", "host-2", "host-4"}) == "host-3"
