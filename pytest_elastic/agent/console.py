"""What a person at the console reads: a line for each turn of events, a screen at a failure.

Pure text. The lines go to stderr, so that a job's own output stays what it was. They may
quote text from anywhere: the caller makes it printable.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_elastic.events import model as events
from pytest_elastic.exit_codes import exit_text
from pytest_elastic.rendezvous.model import Failure
from pytest_elastic.rendezvous.ports import JobOver

__all__ = ["describe_event", "describe_failure", "describe_outcome"]

_RULE = "=" * 72
# The end of a traceback says what went wrong; what is cut is in the error file and in the events.
_MAX_TRACEBACK_LINES = 24
_MAX_MESSAGE_LINES = 12


def describe_event(event: events.Event) -> str | None:
    """Return the line that a person should see about an event, or None."""
    match event:
        case events.WorkersStopped(round=round_, strays=strays) if strays:
            several = ", ".join(strays)
            return (
                f"the workers of round {round_} left processes behind, which were ended: {several}"
            )
        case events.QuorumChosen(quorum="majority"):
            return f"a majority of nodes goes on without any other, quorum=majority: {event.reason}"
        case events.QuorumChosen():
            return (
                f"the job ends with the node that hosts it, quorum={event.quorum}: {event.reason}"
            )
        case events.EndpointsReached():
            return _describe_reach(event)
        case events.FirstRoundDelayed():
            return _describe_delay(event)
        case events.StillWaiting():
            return _describe_wait(event)
        case events.CoordinatorStarted(term=1, quorum="coordinator"):
            return (
                f"hosting the rendezvous ({event.reason}); if this node is lost, the job ends "
                f"(quorum={event.quorum})"
            )
        case events.CoordinatorStarted(term=1):
            return f"hosting the rendezvous ({event.reason})"
        case events.CoordinatorStarted():
            return f"coordinating the job from here on, term {event.term}: {event.reason}"
        case events.CoordinatorSteppedDown():
            return f"coordinating no more: {event.reason}"
        case events.QuorumMissed():
            return (
                f"cut off from the majority: {event.reached} of {event.members} members can be "
                f"reached ({event.reason}); no worker runs here; looking for the others"
            )
        case events.MemberLost():
            return f"lost node {event.member}: {event.detail} ({event.cause})"
        case events.StrangerTurnedAway():
            return f"turned away a connection from {event.address}: {event.reason}"
        case events.MemberLeft():
            return f"node {event.member} left: {event.reason}"
        case events.RoundEnded():
            charge = f"restarts used: {event.restarts_used}" if event.charged else "no restart used"
            return f"round {event.round} ended: {event.reason} ({charge})"
        case events.RoundSealed():
            return f"round {event.round}: {' '.join(event.roster)} ({event.reason})"
        case events.NodeSpared():
            return f"waiting as a spare: {event.reason}"
        case events.PeersUnreached():
            gaps = ", ".join(f"{name} ({how})" for name, how in event.unreached.items())
            return f"node {event.member} cannot reach {gaps}: they cannot be in one round"
        case events.WorkersHeld():
            return f"workers of round {event.round} are held: {event.reason}"
        case events.WorkersReleased():
            return f"workers of round {event.round} go on"
        case events.LeaseLost():
            return f"workers of round {event.round} were killed: {event.reason}"
        case events.AgentStalled():
            return (
                f"this agent stood still for {event.stalled_s:.1f} s: it was stopped, or its "
                "machine was asleep or short of processor time"
            )
        case events.DrainStarted():
            return f"leaving the job: {event.reason} (workers have {event.grace_s:g} s)"
        case _:
            return None


def _describe_delay(event: events.FirstRoundDelayed) -> str:
    if event.reason:
        return (
            f"enough nodes are ready, but this machine was in a job of this --rdzv-id, and "
            f"{event.reason}; waiting up to {event.wait_s:g} s to hear of them (a new job under "
            "another --rdzv-id begins at once)"
        )
    return (
        f"enough nodes are ready; waiting {event.wait_s:g} s for word of a job that may be "
        "running already (several endpoints would need no such wait)"
    )


def _describe_wait(event: events.StillWaiting) -> str:
    limit = f"for at most {event.limit_s:g} s in all"
    match event.awaited:
        case "job":
            text = (
                f"looking for the job at {event.where} {limit}: {event.reason or 'no answer yet'}"
            )
            if "--rdzv" not in event.reason:
                text += (
                    "; is the node that hosts it started, with the same --rdzv-endpoint and "
                    "--rdzv-id, and can it be reached from here?"
                )
            return text
        case "nodes":
            return (
                f"waiting for at least {event.min_nodes} nodes {limit}, and ready are "
                f"{len(event.ready)} ({', '.join(event.ready) or 'none'}); start the others with "
                f"the same --rdzv-endpoint ({event.where}), --rdzv-id and --nnodes"
            )
        case "last call":
            return (
                f"waiting for up to {event.max_nodes} nodes, and ready are {len(event.ready)} "
                f"({', '.join(event.ready)}); the first round begins {event.limit_s:g} s after "
                "enough were there (--rdzv-conf last_call_timeout), or when all are"
            )
        case _:
            return (
                f"taken in by the job at {event.where}; waiting {limit} for its next round, of "
                f"{event.min_nodes} to {event.max_nodes} nodes"
            )


def _describe_reach(event: events.EndpointsReached) -> str:
    count = len(event.reached) + len(event.missing)
    text = f"reached {len(event.reached)} of {count} endpoints"
    if event.reached:
        text += f": {', '.join(event.reached)}"
    if event.missing:
        text += f"; not {'; not '.join(f'{n} ({why})' for n, why in event.missing.items())}"
    return text


def describe_outcome(over: JobOver) -> Sequence[str]:
    """Return the lines that a person should read when the job is over: none when all went well."""
    if over.result in ("succeeded", "drained"):
        return ()
    lines = [_RULE, f"the job {_VERBS[over.result]}: {over.reason}"]
    if over.first_failure is not None:
        lines += ["", *_failure_lines(over.first_failure)]
    return (*lines, _RULE)


_VERBS = {"failed": "failed", "lost": "cannot go on", "refused": "cannot be joined"}


def describe_failure(failure: Failure) -> str:
    """Return one line: which worker failed, where and how, without its message."""
    how = (
        f"killed by {exit_text(failure.exit_code)}"
        if failure.exit_code < 0
        else exit_text(failure.exit_code)
    )
    return (
        f"rank {failure.rank} (node {failure.node}, local rank {failure.local_rank}, "
        f"pid {failure.pid}) in round {failure.round}: {how}"
    )


def _failure_lines(failure: Failure) -> list[str]:
    message = failure.message.rstrip().splitlines()
    if len(message) > _MAX_MESSAGE_LINES:
        message = [*message[:_MAX_MESSAGE_LINES], "..."]
    traceback = failure.traceback.rstrip().splitlines()
    if len(traceback) > _MAX_TRACEBACK_LINES:
        traceback = ["...", *traceback[-_MAX_TRACEBACK_LINES:]]
    said = [f"  {line.expandtabs(4)}" for line in (*message, *traceback)]
    return [f"first failure: {describe_failure(failure)}", *said]
