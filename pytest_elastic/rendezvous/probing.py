"""What an agent says to whoever dials it to see whether it lives, and what a dial has shown."""

from __future__ import annotations

from pytest_elastic.rendezvous.member import MemberMachine
from pytest_elastic.rendezvous.messages import ProbeAnswer
from pytest_elastic.rendezvous.vocabulary import Outcome, Probe, ProbeAnswered

__all__ = ["answer_of", "outcome_of"]


def answer_of(member: MemberMachine) -> ProbeAnswer:
    """Return what the agent of a member says."""
    newest_round, restarts_used = member.known_numbers
    return ProbeAnswer(
        incarnation=member.node.incarnation,
        is_tombstone=False,
        newest_round=newest_round,
        restarts_used=restarts_used,
        is_ending=member.ending is not None,
        ended=member.ended,
    )


def outcome_of(probe: Probe, outcome: Outcome, said: ProbeAnswer | None) -> ProbeAnswered:
    """Return how a dial has ended, with what the agent said, if one answered."""
    return ProbeAnswered(
        name=probe.name,
        incarnation=probe.incarnation,
        outcome=outcome,
        newest_round=0 if said is None else said.newest_round,
        restarts_used=0 if said is None else said.restarts_used,
        is_ending=said is not None and said.is_ending,
        ended=None if said is None else said.ended,
    )
