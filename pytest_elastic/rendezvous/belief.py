"""Which numbers are believed that a stranger tells: terms and rounds (R15).

Without a token anybody may write a record, or send a greeting, and name a term or a round that no
job comes to. Whoever went on from there would soon reach the largest number that a message may
hold, and nobody could decide any more. A job takes milliseconds at least for each election and for
each round, so what is further from what is known than a job can go in years is not believed.
"""

from __future__ import annotations

from pytest_elastic.rendezvous.messages import Hello

__all__ = ["is_believable", "what_is_unbelievable_in"]

# 136 years of elections, one each second. Who wants to use up all numbers that way has to be
# believed two thousand million times, each of which costs an election.
_MOST_AHEAD = 2**32
# Of a job of which nothing is known: what is left above it is enough for all that follows.
_FARTHEST = 2**61


def is_believable(number: int, known: int) -> bool:
    """Tell whether a term or a round may be that of a job that was at `known`, 0: not known."""
    return number <= (known + _MOST_AHEAD if known else _FARTHEST)


def what_is_unbelievable_in(
    hello: Hello, *, term: int, round_: int, max_restarts: int
) -> str | None:
    """Say what no node can have been told that greets a coordinator of `term`, None for nothing.

    `round_` is the newest one; it and the term are 0 where no round was committed. All nodes have
    the same `max_restarts` (R14), and a job in which more are used has ended.
    """
    act = f"cannot join run {hello.run_id!r} as node {hello.node.name!r}: "
    for what, number, known in (
        ("term", hello.term, term),
        ("term", hello.sealed_term, term),
        ("round", hello.sealed_round, round_),
        ("round", hello.newest_round, round_),
        ("round", hello.resumes_round, round_),
    ):
        if not is_believable(number, known):
            return act + f"it tells of {what} {number}, to which no job comes"
    if hello.restarts_used > max_restarts:
        return act + f"it tells of {hello.restarts_used} restarts, and {max_restarts} are allowed"
    return None
