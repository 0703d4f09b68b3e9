"""What a node's part came to: the last round's workers that ended well, and the last word."""

from __future__ import annotations

import pytest

from pytest_elastic.agent.outcome import Outcome
from pytest_elastic.events import model as events
from pytest_elastic.rendezvous.ports import JobOver


def committed(number: int) -> events.RoundCommitted:
    """Return the start of a round."""
    return events.RoundCommitted(
        round=number,
        term=1,
        roster=("n1",),
        group_rank=0,
        world_size=2,
        restart_count=0,
        master_addr="",
        master_port=0,
    )


def exited(number: int, rank: int, cause: str = "exited") -> events.WorkerExited:
    """Return the end of a worker."""
    return events.WorkerExited(
        round=number, local_rank=rank, rank=rank, pid=1, exit_code=0, signal=0, cause=cause
    )


def test_only_workers_of_the_last_round_that_ended_by_themselves_count() -> None:
    """A worker that was done before its round was given up has to do it again."""
    outcome = Outcome()
    for fact in (
        *(committed(1), exited(1, 0), exited(1, 1, "stopped")),
        *(committed(3), exited(1, 1), exited(3, 1), exited(3, 0)),
    ):
        outcome = outcome.after(fact)
    assert (outcome.round, outcome.ranks) == (3, (1, 0))
    outcome = outcome.over(JobOver(result="succeeded", reason="all ended"))
    outcome = outcome.after(events.AgentExited(exit_code=0, reason="other"))
    assert (outcome.result, outcome.reason, outcome.exit_code) == ("succeeded", "all ended", 0)


@pytest.mark.parametrize(("code", "result"), [(2, "refused"), (3, "lost"), (143, "drained")])
def test_without_a_last_word_the_exit_code_tells(code: int, result: str) -> None:
    """A keeper that is lost, a signal that nobody answered."""
    outcome = Outcome().after(events.AgentExited(exit_code=code, reason="because"))
    assert (outcome.result, outcome.reason) == (result, "because")
