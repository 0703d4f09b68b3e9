from __future__ import annotations

from elastic_harness.history.verdict import Outcome, compose, invalid, unknown, valid


def test_the_worst_verdict_wins_and_keeps_its_reasons_and_proof() -> None:
    """Invalid before unknown before valid."""
    mixed = [valid("a", [1]), unknown("b", [2]), invalid("c", [4]), invalid("d", [3])]
    verdict = compose(mixed)
    assert (verdict.outcome, verdict.reason, verdict.events) == (Outcome.INVALID, "c; d", (3, 4))
    assert compose(mixed[:2]).outcome is Outcome.UNKNOWN
    assert compose(mixed[:1]).is_valid
    assert compose([]).outcome is Outcome.UNKNOWN, "nothing was judged"
