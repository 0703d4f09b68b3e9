from __future__ import annotations

import textwrap

import pytest
from elastic_harness.history.checkers import bind
from elastic_harness.history.events import FaultFired, NodeStarted, NodeStopped
from elastic_harness.history.history import History
from elastic_harness.history.verdict import Outcome
from elastic_harness.report.cause import node_of_first_failure
from elastic_harness.report.failure_screen import Place, UnmetClause, failure_screen
from elastic_harness.report.last_words import last_words

from pytest_elastic.events.model import (
    AgentExited,
    JobEnded,
    JobEnding,
    LeaseLost,
    RoundEnded,
    RoundSealed,
    WorkerExited,
)
from tests.unit.history.story import Story


def crash() -> Story:
    """Three nodes, two workers each; one worker is killed, too many steps are executed again."""
    story = Story(nodes=3, nproc=2)
    for number, node in enumerate(("n1", "n2", "n3"), start=1):
        started = NodeStarted(address=f"10.77.0.{number}", incarnation=1)
        story.tell("cluster", node, started)
    story.wait(0.2)
    sealed = RoundSealed(
        round=1, term=1, roster=("n1", "n2", "n3"), spares=(), restart_count=0, reason="full"
    )
    story.tell("agent", "n1", sealed).round(1, ["n1", "n2", "n3"]).wait(0.3).steps(1, 1, 22)
    story.fault("crash", "kill", "rank 3").gone(1, 3)
    failed = WorkerExited(
        round=1, local_rank=1, rank=3, pid=22, exit_code=-9, signal=9, cause="failed"
    )
    story.tell("agent", "n2", failed)
    ended = RoundEnded(round=1, reason="rank 3 failed", charged=True, restarts_used=1)
    story.tell("agent", "n1", ended).gone(1, 0, 1, 2, 4, 5).wait(0.1)
    story.round(2, ["n1", "n2", "n3"]).wait(0.2).steps(2, 11, 24).finish(2)
    story.launcher_exits({"n1": 0, "n2": 0, "n3": 0})
    return story.end()


def unmet(history: History) -> UnmetClause:
    """Return the clause that does not hold for it."""
    check = bind("steps_lost", {"at_most": 5})
    verdict = check.run(history)
    source = "    - steps_lost: {at_most: 5}"
    return UnmetClause(
        text=check.text,
        outcome=verdict.outcome,
        reason=verdict.reason,
        events=verdict.events,
        place=Place(
            file="scenarios/worker/crash.elastic.yaml", line=24, column=7, source=source, length=24
        ),
    )


EXPECTED = """
INVALID: steps_lost: {at_most: 5}
  scenarios/worker/crash.elastic.yaml:24:7
  24 |     - steps_lost: {at_most: 5}
     |       ^^^^^^^^^^^^^^^^^^^^^^^^
  round 2 executed 12 steps again, at most 5 were expected

        n1                            n2                            n3
  0.01  up                            up                            up
  0.24  sealed round 1: n1, n2, n3
  0.26  round 1: ranks 0-1            round 1: ranks 2-3            round 1: ranks 4-5
  0.72                                                              round 1: step 1 done by all
  1.98                                                              * rank 5 did step 22
  1.99  ! crash: kill rank 3
  2.01                                ranks 2-3 gone after step 22
  2.02  round 1 ended: rank 3 failed  rank 3 failed: SIGKILL
  2.04  ranks 0-1 gone after step 22                                ranks 4-5 gone after step 22
  2.20  round 2: ranks 0-1            round 2: ranks 2-3            round 2: ranks 4-5
  2.45  * rank 0 resumed after step …
  2.56                                                              round 2: step 11 done by all
  3.36  ranks 0-1 ended after step 24 ranks 2-3 ended after step 24
  3.44  launcher ended: exit code 0   launcher ended: exit code 0   ranks 4-5 ended after step 24
  3.49                                                              launcher ended: exit code 0
  3.50  run ended: succeeded

last seen      round 2 on n1, n2, n3: 6 of 6 ranks said hello, 0 alive, step 24
first failure  rank 3 on n2, SIGKILL
run directory  /home/me/elastic-artifacts/crash-resume
again          pytest 'scenarios/worker/crash.elastic.yaml::crash-resume' --elastic-seed=7
"""


def test_the_whole_screen() -> None:
    """What a person reads when a scenario fails."""
    history = crash().history
    screen = failure_screen(
        history,
        [unmet(history)],
        run_directory="/home/me/elastic-artifacts/crash-resume",
        command="pytest 'scenarios/worker/crash.elastic.yaml::crash-resume' --elastic-seed=7",
    )
    assert screen == textwrap.dedent(EXPECTED).strip("\n")


@pytest.mark.parametrize("nodes", [1, 4, 12, 60])
@pytest.mark.parametrize("rounds", [1, 8, 60])
def test_it_is_one_screen_however_much_happened(nodes: int, rounds: int) -> None:
    """At most 45 lines of 100 columns, the proof among them, the command last."""
    names = [f"n{number}" for number in range(1, nodes + 1)]
    story = Story(nodes=nodes)
    for number in range(1, rounds + 1):
        story.round(number, names).steps(number, number, number + 1).fault(f"f{number}")
        story.gone(number).wait(0.5)
    history = story.end("limit").history
    fault = history.first(FaultFired)
    assert fault is not None
    clauses = [
        UnmetClause(
            text=f"clause {number}",
            outcome=Outcome.INVALID if number else Outcome.UNKNOWN,
            reason="because " * 200,
            events=(fault.seq,),
        )
        for number in range(9)
    ]
    lines = failure_screen(
        history, clauses, run_directory="/artifacts/x", command="pytest x"
    ).splitlines()
    assert len(lines) <= 45
    assert max(map(len, lines)) <= 100
    assert lines[0] == "INVALID: clause 1"
    assert sum("* ! f1: kill n2" in line for line in lines) == 1
    assert lines[-1].split() == ["again", "pytest", "x"]
    assert lines[-2].split() == ["run", "directory", "/artifacts/x"]


def test_more_nodes_than_fit_leave_out_the_quietest() -> None:
    """A column that cannot hold a word is worth nothing."""
    story = Story(nodes=30)
    for number in range(1, 31):
        story.tell("cluster", f"n{number}", NodeStarted(address="10.77.0.1", incarnation=1))
    story.tell("cluster", "n29", NodeStopped(cause="power_cut"))
    text = failure_screen(story.history, [], run_directory="/x", command="y")
    header = next(line for line in text.splitlines() if "n29" in line)
    assert len(header.split()) == 5
    assert "down: power cut" in text


def test_a_crashed_checkers_traceback_keeps_its_end() -> None:
    """The last line of a traceback is the one that says what happened."""
    reason = "\n".join(["the checker crashed:", *["  frame"] * 50, "ZeroDivisionError: inside"])
    clause = UnmetClause(text="mine", outcome=Outcome.UNKNOWN, reason=reason)
    text = failure_screen(Story().history, [clause], run_directory="/x", command="y")
    assert "UNKNOWN: mine" in text
    assert "ZeroDivisionError: inside" in text
    assert len(text.splitlines()) <= 45


def test_the_job_wide_first_failure_is_what_the_launcher_decided() -> None:
    """Where the launcher names one, that is it, on every node the same."""
    failure = {"node": "n2", "rank": 3, "exit_code": 1, "message": "ValueError: loss is nan"}
    ended = JobEnded(result="failed", reason="budget used up", first_failure=failure)
    history = crash().tell("agent", "n1", ended).history
    text = failure_screen(history, [], run_directory="/x", command="y")
    assert "first failure  rank 3 on n2, exit code 1: ValueError: loss is nan" in text


@pytest.mark.parametrize("kind", [JobEnded, JobEnding])
@pytest.mark.parametrize(
    ("result", "clause", "is_shown"),
    [
        ("failed", "assert False", True),
        ("failed", "the job failed, it should have succeeded: no restart is allowed", False),
        ("lost", "assert False", True),
        ("succeeded", "assert False", False),
        ("drained", "assert False", False),
    ],
)
def test_why_the_launcher_ended_the_job_is_said_once(
    kind: type[JobEnded | JobEnding], result: str, clause: str, *, is_shown: bool
) -> None:
    """Without it a test that forgot `max_restarts` shows only its own fault as the cause."""
    unmet = UnmetClause(text="test x", outcome=Outcome.INVALID, reason=clause)
    ended = kind(result=result, reason="no restart is allowed")
    history = crash().tell("agent", "n1", ended).history
    text = failure_screen(history, [unmet], run_directory="/x", command="y")
    assert (f"job ended      {result}: no restart is allowed" in text) is is_shown


def test_an_agent_that_gave_up_says_why_where_no_end_of_the_job_was_said() -> None:
    """One whose keeper was killed can only end."""
    history = crash().tell("agent", "n1", AgentExited(exit_code=3, reason="its keeper ended"))
    text = failure_screen(history.history, [], run_directory="/x", command="y")
    assert "job ended      n1 gave up: its keeper ended" in text


def test_a_job_that_succeeded_is_not_called_lost_because_a_node_was_cut_off() -> None:
    """That node knows no better; the others know how it ended."""
    story = crash().tell("agent", "n3", JobEnded(result="lost", reason="no quorum"))
    story.tell("agent", "n1", JobEnded(result="succeeded", reason="all succeeded"))
    assert "job ended" not in failure_screen(story.history, [], run_directory="/x", command="y")


def test_leases_that_are_lost_by_no_fault_are_told() -> None:
    """A machine that is short of processor time looks like a launcher that does not work."""
    lost = LeaseLost(round=1, reason="the lease of 1.25 s from n1 ran out")
    story = Story().tell("agent", "n2", lost)

    def said() -> str:
        screen = failure_screen(story.history, [], run_directory="/x", command="y")
        return next((line for line in screen.splitlines() if line.startswith("leases lost")), "")

    assert "once on n2, by no fault: was this machine short of processor time?" in said()
    story.tell("agent", "n10", lost).tell("agent", "n2", lost)
    assert "3 times on n2, n10, by no fault: was this machine" in said()
    story = Story().tell("cluster", "n1", NodeStopped(cause="crash")).tell("agent", "n2", lost)
    assert said() == "", "its leader may have been there"
    story = Story().fault("cut").tell("agent", "n2", lost)
    assert said() == ""
    story = Story().fault("crash", workers=(("n1", 0, 9),)).tell("agent", "n2", lost)
    assert said(), "a worker keeps no lease"
    story = Story().fault("oom", workers=(("n1", 0, 9),), nodes=("n1",)).tell("agent", "n2", lost)
    assert said() == ""
    story = Story().fault("cut", workers=(("n1", 0, 9),), links=(("n1", "n2"),))
    story.tell("agent", "n2", lost)
    assert said() == ""
    story = Story().fault("capture", disturbs=False).tell("agent", "n2", lost)
    assert said()


def test_who_is_ended_with_the_run_has_not_failed() -> None:
    """At the limit all workers are killed; none of them failed first."""
    story = Story(nodes=1).round(1, ["n1"]).wait(0.5)
    story.end("limit").wait(0.1).gone(1)
    assert "first failure" not in failure_screen(story.history, [], run_directory="/x", command="y")


def test_the_last_words_of_the_first_failure_stand_below_it() -> None:
    """What it printed says more than its exit code, unless the launcher has said it already."""
    story = Story().round(1, ["n1", "n2"])
    failed = WorkerExited(
        round=1, local_rank=0, rank=1, pid=1001, exit_code=1, signal=0, cause="failed"
    )
    history = story.tell("agent", "n2", failed).end("failed").history
    assert node_of_first_failure(history) == "n2"
    words = "SyntaxError: invalid syntax"
    text = failure_screen(history, [], run_directory="/x", command="y", last_words=words)
    lines = text.splitlines()
    at = lines.index("first failure  rank 1 on n2, exit code 1")
    assert lines[at + 1] == f"               {words}"
    failure = {"node": "n2", "rank": 1, "exit_code": 1, "message": words}
    ended = JobEnded(result="failed", reason="budget used up", first_failure=failure)
    history = story.tell("agent", "n1", ended).history
    text = failure_screen(history, [], run_directory="/x", command="y", last_words=words)
    assert text.count(words) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ""),
        ("loss 0.5\n[agent n1] ValueError: of its own\nthe job failed: no restart left\n", ""),
        ("Traceback\n  frame\nValueError: nan\n====\nthe job failed: rank 0\n", "ValueError: nan"),
        ("KeyError: 1\ntorch.cuda.OutOfMemoryError: CUDA\n", "torch.cuda.OutOfMemoryError: CUDA"),
        ("[default0]:KeyError: 'x'\n", "KeyError: 'x'"),
        ("ValueError: x\nKeyboardInterrupt\n", "KeyboardInterrupt"),
        ("/usr/bin/python3: No module named x\n", "/usr/bin/python3: No module named x"),
    ],
)
def test_last_words_are_the_last_line_that_says_what_went_wrong(text: str, words: str) -> None:
    """The launcher's own lines, and its summary of the job, are none."""
    assert last_words(text) == words


def test_torchrun_refusing_an_option_is_not_hidden_by_its_own_summary() -> None:
    """A main function of torch's that exits is summed up as a child that has failed."""
    rule = "=" * 60
    text = f"""\
run.py: error: unrecognized arguments: --worker-start=exec
E1124 07:35:55.8 1000 torch/api.py:1002] failed (exitcode: 2) local_rank: 0 of binary: python
Traceback (most recent call last):
  File "<string>", line 4, in <module>
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
{rule}
torch.distributed.run FAILED
"""
    assert last_words(text) == "run.py: error: unrecognized arguments: --worker-start=exec"


def test_a_launcher_that_cannot_begin_has_last_words_too() -> None:
    """No worker has failed, because there was none."""
    history = Story().launcher_exits({"n1": 0, "n2": 1}).end("failed").history
    assert node_of_first_failure(history) == "n2"
    words = "ModuleNotFoundError: No module named 'torch'"
    text = failure_screen(history, [], run_directory="/x", command="y", last_words=words)
    assert "first failure" not in text
    assert f"last words     {words}" in text.splitlines()
