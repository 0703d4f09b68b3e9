"""What a greeting is judged by (R14)."""

from __future__ import annotations

import dataclasses

import pytest

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
    assert difference(hello(), OURS) is None


def test_every_difference_is_named_with_both_values() -> None:
    """Whoever reads it knows which option to change on which node."""
    theirs = dataclasses.replace(OURS, max_restarts=0, lease_s=7.5, quorum="majority")
    assert difference(hello(theirs), OURS) == (
        "cannot join run 'r' as node 'n2': its settings differ from the coordinator's: "
        "lease_s is 7.5 there and 5 here; max_restarts is 0 there and 3 here; "
        "quorum is 'majority' there and 'coordinator' here. Give all nodes the same options."
    )


def test_a_setting_that_one_side_does_not_know_is_a_difference() -> None:
    """Another version may have settings of its own."""
    greeting = dataclasses.replace(hello(), settings={**hello().settings, "new_s": 1.0})
    assert "new_s is 1 there and unknown here" in (difference(greeting, OURS) or "")


def test_another_run_is_named() -> None:
    """The run comes before everything else."""
    theirs = dataclasses.replace(OURS, run_id="other", max_nodes=9)
    problem = difference(hello(theirs), OURS) or ""
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
