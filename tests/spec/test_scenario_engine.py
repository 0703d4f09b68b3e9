"""The scenario engine's rules, each shown by a transcript of a whole run.

On the left what the engine was given, at seconds into the run; behind `=>` what it answered. The
transcripts are compared word for word: they are what a person reads to learn what happens when.
"""

from __future__ import annotations

from textwrap import dedent

from elastic_harness.history.events import (
    ClauseJudged,
    ClausePlanned,
    FaultEffective,
    FaultFired,
    FaultHealed,
    FaultIneffective,
    FaultPlanned,
)
from elastic_harness.scenario.engine.messages import (
    ArmHold,
    DisarmHold,
    EndRun,
    EngineCommand,
    Fire,
    Heal,
    HoldWriting,
    Judge,
    RecordEvent,
    ReleaseHold,
    ReleaseWriting,
    WakeAt,
    WatchLog,
)

from pytest_elastic.events.model import Event
from tests.unit.scenario.bench import Bench, scenario


def say_event(event: Event) -> str | None:
    """Return what is written into the history, in words."""
    match event:
        case FaultFired(id=id):
            return f"write: {id} fired"
        case FaultEffective(id=id, evidence=evidence):
            return f"write: {id} effective ({evidence})"
        case FaultIneffective(id=id, reason=reason):
            return f"write: {id} ineffective ({reason})"
        case FaultHealed(id=id, by=by):
            return f"write: {id} healed by {by}"
        case ClauseJudged(text=text, outcome=outcome):
            return f"write: {outcome} {text}"
        case ClausePlanned() | FaultPlanned():
            return None
        case _:
            raise AssertionError(event)


def say(command: EngineCommand) -> str | None:
    """Return a command in words; when to wake up goes without saying."""
    match command:
        case ArmHold(step=step, rank=rank):
            return f"hold rank {rank} at step {step}"
        case DisarmHold():
            return "hold nobody there any more"
        case ReleaseHold(rank=rank):
            return f"let rank {rank} go"
        case Fire(entry_id=id, targets=targets):
            return f"fire {id} at {', '.join(targets.describe())}"
        case Heal(entry_id=id):
            return f"heal {id}"
        case HoldWriting(node=node, condition=condition):
            return f"hold who writes {condition.writing} on {node}"
        case ReleaseWriting(node=node):
            return f"let writers on {node} go"
        case RecordEvent(event=event):
            return say_event(event)
        case EndRun(outcome=outcome, reason=reason):
            return f"end: {outcome} ({reason})"
        case Judge(entry_id=id):
            return f"judge {id}"
        case WatchLog(pattern=pattern):
            return f"watch for /{pattern}/"
        case WakeAt():
            return None


class Transcript:
    """A bench that writes down what was said."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self._start = bench.now
        self._told = 0
        self.lines: list[str] = []
        self.note("start")

    def note(self, what: str) -> None:
        """Write down what was given, and what the engine has answered since the last note."""
        answers = [text for answer in self.bench.answers[self._told :] if (text := say(answer))]
        self._told = len(self.bench.answers)
        at = self.bench.now - self._start
        self.lines.append(f"{at:5.1f}  {what}")
        self.lines += [f"       => {answer}" for answer in answers]

    def expect(self, text: str) -> None:
        assert dedent("\n".join(self.lines)).splitlines() == dedent(text).strip("\n").splitlines()


def test_a_crash_at_a_step_from_hold_to_end() -> None:
    """The rank is held until the fault is proven; the round that follows meets the clause."""
    bench = Bench(
        scenario(
            {"at": {"step": 22, "rank": 1}, "id": "crash", "kill": "rank 1"},
            expect={
                "eventually": [{"round": 2, "within": "10s", "after": "crash"}],
                "finally": [{"job": "succeeded"}],
            },
        )
    )
    run = Transcript(bench)
    bench.start_nodes("n1", "n2")
    bench.form("n1", "n2")
    run.note("two nodes form round 1")
    bench.pass_time(2)
    bench.hold(1, 22)
    run.note("rank 1 is held after step 22")
    bench.in_force("crash")
    run.note("the signal is sent")
    bench.prove("crash")
    run.note("the process is gone")
    bench.lose(1)
    bench.lose(0)
    bench.pass_time(0.5)
    bench.form("n1", "n2")
    run.note("round 2 forms")
    bench.hold(1, 22)
    run.note("rank 1 is held after step 22 again, by an order on its way")
    bench.pass_time(1)
    bench.end_job()
    run.note("all launchers end with 0")
    run.expect("""
          0.0  start
               => hold rank 1 at step 22
          0.0  two nodes form round 1
          2.0  rank 1 is held after step 22
               => write: crash fired
               => fire crash at rank 1 (n2, pid 4004)
          2.0  the signal is sent
          2.0  the process is gone
               => write: crash effective (seen)
               => hold nobody there any more
               => let rank 1 go
          2.5  round 2 forms
               => write: valid round 2 within 10s after crash
          2.5  rank 1 is held after step 22 again, by an order on its way
               => let rank 1 go
          3.5  all launchers end with 0
               => end: succeeded (all launchers that count have ended)
    """)


def test_a_partition_that_heals_by_itself_once_nothing_else_is_left_to_come() -> None:
    """Faults, then quiescence: the automatic heal, then a fresh budget for `finally`."""
    bench = Bench(
        scenario(
            {"at": "2s", "id": "cut", "partition": "n3"},
            expect={
                "eventually": [
                    {"world_size": 2, "within": "10s", "after": "cut"},
                    {"world_size": 3, "within": "10s", "after": "cut.healed"},
                ],
                "finally": [{"job": "succeeded", "within": "30s"}],
            },
            nodes={"initial": 3, "min": 2, "max": 3},
        )
    )
    run = Transcript(bench)
    bench.start_nodes("n1", "n2", "n3")
    bench.form("n1", "n2", "n3")
    bench.pass_time(2)
    run.note("two seconds pass")
    bench.in_force("cut", proof_needs_job=True)
    bench.prove("cut")
    run.note("the switch drops packets")
    bench.pass_time(2)
    bench._pids.clear()
    bench.form("n1", "n2")
    run.note("the two others form a round")
    bench.pass_time(0.1)
    bench.undo("cut")
    run.note("the links are up")
    bench.pass_time(1)
    bench.form("n1", "n2", "n3")
    run.note("all three form a round")
    bench.end_job()
    run.note("all launchers end with 0")
    run.expect("""
          0.0  start
          2.0  two seconds pass
               => write: cut fired
               => fire cut at n3, n1->n3, n2->n3, n3->n1, n3->n2
          2.0  the switch drops packets
               => write: cut effective (seen)
          4.0  the two others form a round
               => write: valid a world of 2 within 10s after cut
               => heal cut
          4.1  the links are up
               => write: cut healed by schedule
          5.1  all three form a round
               => write: valid a world of 3 within 10s after cut.healed
          5.1  all launchers end with 0
               => end: succeeded (all launchers that count have ended)
    """)


def test_a_run_that_cannot_become_right_any_more_ends_soon() -> None:
    """Not at the limit: it is watched for as long again, to tell what is late from what is not."""
    bench = Bench(
        scenario(
            {"at": "1s", "id": "dark", "power_cut": "n2"},
            expect={"eventually": [{"world_size": 1, "within": "5s", "after": "dark"}]},
            nodes={"initial": 2, "min": 1, "max": 2},
            limit="60s",
        )
    )
    run = Transcript(bench)
    bench.start_nodes("n1", "n2")
    bench.form("n1", "n2")
    bench.pass_time(1)
    run.note("a second passes")
    bench.stop_node("n2", "power_cut")
    bench.prove("dark")
    run.note("n2 is gone")
    bench.pass_time(10)
    run.note("nothing happens for long")
    run.expect("""
          0.0  start
          1.0  a second passes
               => write: dark fired
               => fire dark at n2
          1.0  n2 is gone
               => write: dark effective (seen)
         11.0  nothing happens for long
               => write: invalid a world of 1 within 5s after dark
               => end: unmet (a world of 1 within 5s after dark: not in time, nor after 10.0 s; last seen: round 1 with 2 ranks, 0 of 1 steps by every rank)
    """)  # noqa: E501 (one answer is one line)
    assert bench.end is not None
