"""Histories that contradict themselves: one fact of a run that agrees with itself is changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from elastic_harness.history.checkers import bind
from elastic_harness.history.events import (
    ClockCompared,
    FaultHealed,
    FaultPlanned,
    GroupFormed,
    HarnessFailed,
    NodeStarted,
    NodeStopped,
    OutputRead,
    ParametersHashed,
    ProcessExited,
    ProcessStarted,
    ResumeObserved,
    RunClosed,
    RunEnded,
    SurvivorsSought,
    WorkerGone,
)
from elastic_harness.history.history import History
from elastic_harness.history.verdict import Outcome, Verdict
from msgspec.structs import replace

from pytest_elastic.events.model import (
    CoordinatorStarted,
    Record,
    RoundCommitted,
    RoundEnded,
    RoundSealed,
    WorkerExited,
    WorkersStarted,
)
from tests.unit.history.story import Story

NODES = ("n1", "n2")


def told() -> Story:
    """Two rounds of two nodes, of which everything is told that launchers tell."""
    story = Story()
    for node in NODES:
        story.tell("cluster", node, NodeStarted(address="10.77.0.1", incarnation=1))
        story.tell("cluster", node, ProcessStarted(pid=int(node[1]), role="launcher", argv=()))
    _round(story, 1)
    story.steps(1, 1, 3).fault("crash").gone(1)
    _exits(story, 1, -9).heal("crash")
    _round(story, 2)
    story.steps(2, 3, 5).hashed(2, 0, "x").hashed(2, 1, "x").finish(2)
    _exits(story, 2, 0).end()
    for node in NODES:
        story.tell("cluster", node, NodeStopped(cause="teardown"))
    return story.tell("engine", "", RunClosed(digest=""))


def _round(story: Story, number: int) -> None:
    sealed = RoundSealed(
        round=number, term=1, roster=NODES, spares=(), restart_count=number - 1, reason=""
    )
    story.tell("agent", "n1", sealed)
    for rank, node in enumerate(NODES):
        committed = RoundCommitted(
            round=number,
            term=1,
            roster=NODES,
            group_rank=rank,
            world_size=2,
            restart_count=number - 1,
            master_addr="10.77.0.1",
            master_port=30000 + number,
        )
        started = WorkersStarted(
            round=number, pids=(5,), ranks=(rank,), start="warm", start_reason=""
        )
        story.tell("agent", node, committed).tell("agent", node, started)
    story.round(number, NODES).group(number, f"nonce {number}")


def _exits(story: Story, number: int, code: int) -> Story:
    for rank, node in enumerate(NODES):
        exited = WorkerExited(
            round=number, local_rank=0, rank=rank, pid=5, exit_code=code, signal=0, cause="failed"
        )
        story.tell("agent", node, exited)
    ended = RoundEnded(round=number, reason="", charged=number == 1, restarts_used=1)
    return story.tell("agent", "n1", ended)


def judge(records: Sequence[Record]) -> Verdict:
    """Return what the checker says of records."""
    return bind("consistent").run(History.of(records))


def places(kind: str) -> list[int]:
    """Return where the records of a kind stand in the history that is told."""
    return [place for place, each in enumerate(told().records) if each.event.kind == kind]


def edited(kind: str, number: int, **more: Any) -> list[Record]:  # noqa: ANN401 (any field's)
    """Return what is told, with other fields in one record; `at_` and `node_` are the record's."""
    records = told().records
    place = places(kind)[number]
    own: dict[str, Any] = {
        name[:-1]: value for name, value in more.items() if name in ("at_", "node_", "run_id_")
    }
    fields = {name: value for name, value in more.items() if name[:-1] not in own}
    event = replace(records[place].event, **fields)
    records[place] = replace(records[place], event=event, **own)
    return records


def dropped(kind: str, number: int) -> list[Record]:
    """Return what is told, without a record."""
    records = told().records
    del records[places(kind)[number]]
    return records


def moved(kind: str, number: int, before: str, other: int) -> list[Record]:
    """Return what is told, with a record at another place, at that time."""
    records = told().records
    record, target = records[places(kind)[number]], records[places(before)[other]]
    records.remove(record)
    place = records.index(target)
    records.insert(place, replace(record, at=target.at))
    return records


def repeated(kind: str, number: int) -> list[Record]:
    """Return what is told, with a record twice."""
    records = told().records
    place = places(kind)[number]
    records.insert(place, records[place])
    return records


def test_what_is_told_agrees_with_itself() -> None:
    """So do stories in which launchers and nodes say nothing."""
    assert judge(told().records).is_valid, judge(told().records).reason
    assert judge(Story().round(1, ["n1", "n2"]).steps(1, 1, 2).finish(1).end().records).is_valid


CONTRADICTIONS: tuple[tuple[list[Record], str], ...] = (
    (repeated("worker_hello", 0), "said hello twice"),
    (dropped("worker_hello", 0), "which never said hello"),
    (edited("step_completed", 0, rank=1), "and step_completed as rank 1 on n1"),
    (edited("step_completed", 0, node_="n2"), "and step_completed as rank 0 on n2"),
    (edited("step_completed", 0, run_id_="other"), "said hello, and step_completed"),
    (moved("worker_gone", 0, "step_completed", 4), "which was gone"),
    (repeated("worker_gone", 0), "which was gone"),
    (repeated("worker_finished", 0), "which had finished"),
    (moved("worker_finished", 0, "parameters_hashed", 0), "which had finished"),
    (edited("group_formed", 0, at_=100.0), "is earlier than what it had said before"),
    (edited("step_completed", 2, at_=100.5), "is earlier than what it had said before"),
    (edited("group_formed", 0, world_size=3), "is one of 2, and its group has 3"),
    (dropped("resume_observed", 0), "never said where it resumes"),
    (edited("resume_observed", 0, step=1), "went from step 1 to 1"),
    (edited("step_completed", 2, step=1), "went from step 1 to 3"),
    (edited("step_completed", 2, step=3), "went from step 1 to 3"),
    (edited("step_completed", 4, step=1), "went from step 2 to 1"),
    (repeated("parameters_hashed", 0), "were hashed twice"),
    (edited("parameters_hashed", 0, step=4), "ended with step 4, and its last one was 5"),
    (repeated("step_completed", 2), "completed its step 2 twice"),
    (dropped("step_completed", 0), "was its number 2"),
    (edited("step_completed", 4, count=1), "follows its step 2"),
    (edited("step_completed", 0, began_at=100.0), "did not begin after the one before"),
    (edited("step_completed", 0, began_at=200.0), "did not begin after the one before"),
    (edited("group_formed", 1, nonce="other"), "met in two groups"),
    (dropped("worker_gone", 0), "the process 1001 was alive, and it was found otherwise"),
    (edited("worker_hello", 2, alive_before=(1001,)), "was gone, and it was found otherwise"),
    (edited("round_sealed", 0, roster=("n2", "n1")), "was sealed otherwise than n1 was told"),
    (edited("round_sealed", 0, restart_count=3), "was sealed otherwise than n1 was told"),
    (repeated("workers_started", 0), "started the workers of round 1 twice"),
    (dropped("round_committed", 0), "n1 started round 1 and was never told to"),
    (dropped("workers_started", 0), "whose launcher never said that it had started it"),
    (edited("worker_exited", 0, rank=1), "whose launcher never said that it had started it"),
    (dropped("worker_gone", 3), "ended, and was not seen to be gone"),
    (repeated("round_sealed", 0), "said round_sealed of round 1 twice"),
    (repeated("round_committed", 0), "said round_committed of round 1 twice"),
    (repeated("round_ended", 0), "said round_ended of round 1 twice"),
    (repeated("worker_exited", 0), "said worker_exited of round 1 twice"),
    (edited("round_ended", 0, round=3), "round_ended of round 3, which was never proposed"),
    (dropped("round_sealed", 0), "round_committed of round 1, which was never proposed"),
    (edited("round_ended", 0, restarts_used=2), "2 restarts were used when round 1 ended"),
    (repeated("node_started", 0), "n1 started, and was up"),
    (repeated("node_stopped", 0), "n1 stopped, and was not up"),
    (dropped("node_started", 0), "process_started on n1, which was not up"),
    (moved("node_stopped", 0, "worker_hello", 2), "worker_hello on n1, which was not up"),
    (dropped("node_stopped", 0), "all is undone, and n1 was not stopped"),
    (repeated("process_started", 0), "was started twice"),
    (dropped("process_started", 0), "the launcher 1 on n1 ended, and was not running"),
    (edited("process_started", 0, role="auxiliary"), "ended, and was not running"),
    (repeated("process_exited", 0), "ended, and was not running"),
    (edited("process_exited", 0, exit_code=1), "and the run says {'n1': 0, 'n2': 0}"),
    (edited("run_ended", 0, exit_codes={"n1": 0}), "and the run says {'n1': 0}"),
    (dropped("process_exited", 0), "launchers ended with {'n2': 0}"),
    (edited("run_ended", 0, ended_by_faults=("n3",)), "to have ended n3: no launcher ran there"),
    (edited("run_ended", 0, outcome="failed"), "the job failed, and its launchers ended with"),
    (edited("run_ended", 0, outcome="drained"), "the job drained, and its launchers ended with"),
    (edited("run_ended", 0, ended_by_faults=NODES), "the job succeeded, and its launchers"),
    (repeated("fault_planned", 0), "crash was planned twice"),
    (dropped("fault_planned", 0), "crash fired unplanned"),
    (repeated("fault_fired", 0), "crash fired twice"),
    (dropped("fault_fired", 0), "fault_effective of crash, which had not fired"),
    (edited("fault_healed", 0, id="cut"), "fault_healed of cut, which had not fired"),
    (repeated("run_started", 0), "run_started twice"),
    (repeated("run_ended", 0), "run_ended twice"),
    (repeated("survivors_sought", 0), "survivors_sought twice"),
    (repeated("run_closed", 0), "run_closed twice"),
    (moved("run_started", 0, "node_started", 1), "the run started after its first record"),
    (edited("run_started", 0, at_=100.5), "is earlier than the start of the run"),
    (edited("survivors_sought", 0, at_=999.0), "survivors_sought is later than the end of the run"),
    (edited("run_ended", 0, at_=100.0), "run_ended is earlier than the fault_planned before it"),
)


@pytest.mark.parametrize(("records", "what"), CONTRADICTIONS, ids=[w for _, w in CONTRADICTIONS])
def test_a_history_that_contradicts_itself_proves_nothing(records: list[Record], what: str) -> None:
    """It is unknown, and the records that cannot both be right are named."""
    verdict = judge(records)
    assert verdict.outcome is Outcome.UNKNOWN, verdict.reason
    assert what in verdict.reason
    assert all(1 <= seq <= len(records) for seq in verdict.events)
    assert verdict.events


@pytest.mark.parametrize("field", ["world_size", "restart_count", "group_rank", "master_port"])
def test_a_worker_that_is_told_something_else_than_its_launcher_is_a_wrong_job(field: str) -> None:
    """The launcher says what it was told, and the worker what it was told: by the launcher."""
    verdict = judge(edited("worker_hello", 1, **{field: 7}))
    assert verdict.outcome is Outcome.INVALID
    assert verdict.reason.startswith("rank 1 on n2 was told something else of round 1")
    assert len(verdict.events) == 2


def test_a_node_has_the_place_that_it_was_told() -> None:
    """A roster says who is who."""
    records = told().records[: places("worker_hello")[0]]
    records = [*records[:-3], *edited("round_committed", 0, group_rank=1)[len(records) - 4 :][:1]]
    assert "n1 is number 1 of n1, n2" in judge(records).reason


def test_what_no_launcher_and_no_optimizer_promises_is_no_contradiction() -> None:
    """A step that is reported late replaces the guess, and an optimizer may skip its own step."""
    late = (
        Story()
        .round(1, ["n1"])
        .step(1, 0, None, count=1)
        .step(1, 0, 9, count=1, step_source="script")
    )
    assert judge(late.records).is_valid, judge(late.records).reason
    skipped = Story().round(1, ["n1"]).step(1, 0, 1).step(1, 0, 1).step(1, 0, 2)
    assert judge(skipped.records).is_valid, judge(skipped.records).reason
    again = Story().round(1, ["n1"]).gone(1)
    again._pid -= 1
    again.round(2, ["n1"])
    assert judge(again.records).is_valid, "a pid is used again"
    healed = Story().fault("crash")
    healed.tell("fault", "", FaultHealed(id="crash", by="teardown"))
    assert judge(healed.records).is_valid


# --- what is no contradiction, and just is one ---------------------------------------------------

TWO = ("n1", "n2")
FIRST = "the history contradicts itself: "


def ends(outcome: str, *codes: int, exempt: tuple[str, ...] = ()) -> Story:
    """End a run whose launchers ended so."""
    story = Story().launcher_exits({f"n{n}": code for n, code in enumerate(codes, start=1)})
    return story.end(outcome, launchers=(), exempt=exempt)


def shifted(kind: str, number: int, seconds: float) -> list[Record]:
    """Return what is told, with one record earlier or later; its step begins with it."""
    records = told().records
    place = places(kind)[number]
    records[place] = replace(records[place], at=records[place].at + seconds)
    return records


def stepped(*steps: tuple[int | None, str, int], began: float | None = None) -> list[Record]:
    """Let a worker complete steps: the global one, who says so, and its own count."""
    story = Story().round(1, ["n1"])
    story.tell("worker", "n1", ResumeObserved(pid=1001, rank=0, step=0))
    story._resumed.add(1001)
    for step, source, count in steps:
        more = {} if began is None or count == 1 else {"began_at": story.at + began}
        story.step(1, 0, step, step_source=source, count=count, **more)
    return story.records


def engine(seconds: float) -> list[Record]:
    """Let the engine plan two faults, the second one earlier or later."""
    story = Story()
    for id in ("a", "b"):
        story.tell("engine", "", FaultPlanned(id=id, fault="kill"))
    last = story.records.pop()
    return [*story.records, replace(last, at=last.at + seconds)]


def hashed(step: int | None) -> list[Record]:
    """Let a worker end after two steps, or none, and say which was the last."""
    story = Story().round(1, ["n1"]).steps(1, 1, 2)
    event = ParametersHashed(pid=1001, rank=0, step=step, digest="x")
    return story.tell("worker", "n1", event).records


def groups(story: Story, *groups: tuple[int, int, str]) -> list[Record]:
    """Let ranks find groups: rank, size, nonce."""
    for rank, size, nonce in groups:
        pid = 1001 + rank
        event = GroupFormed(pid=pid, rank=rank, world_size=size, nonce=nonce)
        story.tell("worker", f"n{rank + 1}", event)
    return story.records


def committed(story: Story, number: int, node: str, *roster: str, **more: object) -> Story:
    """Tell a launcher of a round of so many workers."""
    values: dict[str, Any] = {
        "term": 1,
        "group_rank": 0,
        "world_size": len(roster),
        "restart_count": number - 1,
        "master_addr": "10.77.0.1",
        "master_port": 30000 + number,
        **more,
    }
    return story.tell("agent", node, RoundCommitted(round=number, roster=roster, **values))


def sealed_after(number: int, restarts: int) -> list[Record]:
    """Let a coordinator end round 1 with one restart used, and seal another one."""
    story = Story()
    for each, used in ((1, 0), (number, restarts)):
        seal = RoundSealed(round=each, term=1, roster=TWO, spares=(), restart_count=used, reason="")
        story.tell("agent", "n1", seal)
        if each == 1:
            ended = RoundEnded(round=1, reason="", charged=True, restarts_used=1)
            story.tell("agent", "n1", ended)
    return story.records


def ended_again(*, is_elected_again: bool) -> list[Record]:
    """A coordinator gives a round up, and ends it once more, maybe under another term."""
    story = Story()
    for term in (1, 2):
        if term == 1 or is_elected_again:
            started = CoordinatorStarted(term=term, address="", port=1, quorum="", reason="")
            story.tell("agent", "n1", started)
        if term == 1:
            seal = RoundSealed(round=1, term=1, roster=TWO, spares=(), restart_count=0, reason="")
            story.tell("agent", "n1", seal)
        ended = RoundEnded(round=1, reason="", charged=False, restarts_used=0)
        story.tell("agent", "n1", ended)
    return story.records


def never_begun(*codes: int, hello: bool = False) -> list[Record]:
    """The workers of a node end so, and its launcher does not say that all of them ran."""
    story = Story()
    if hello:
        story.hello(1, "n1", 0, len(codes))
    for rank, code in enumerate(codes):
        exited = WorkerExited(
            round=1, local_rank=rank, rank=rank, pid=5, exit_code=code, signal=0, cause="failed"
        )
        story.tell("agent", "n1", exited)
    return story.records


def other_processes() -> Story:
    """An auxiliary process fails, and nothing else ends before the run does."""
    story = Story().tell("cluster", "n1", ProcessStarted(pid=7, role="auxiliary", argv=()))
    story.tell("cluster", "n1", ProcessExited(pid=7, role="auxiliary", exit_code=1))
    return story.tell("engine", "", RunEnded(outcome="failed"))


def without_start() -> list[Record]:
    """A history that does not say what was run."""
    return Story().round(1, TWO).records[1:]


def closed_and_more(seconds: float) -> list[Record]:
    """Something is told after the run was closed."""
    records = told().records
    last = records[-1]
    return [
        *records,
        replace(records[-2], event=HarnessFailed(what=""), at=last.at + seconds),
    ]


def cut_while_torn_down() -> list[Record]:
    """Of two nodes one was stopped with the run, when the history was cut."""
    story = Story()
    for node in TWO:
        story.tell("cluster", node, NodeStarted(address="", incarnation=1))
    return story.tell("cluster", "n1", NodeStopped(cause="teardown")).records


PLAIN: tuple[list[Record], ...] = (
    ends("drained", 143, 143, exempt=TWO).records,
    ends("drained", 0, 143, exempt=TWO).records,
    ends("drained", -15, exempt=TWO[:1]).records,
    ends("drained", 0, 143, -15, exempt=(*TWO, "n3")).records,
    ends("failed", 1, exempt=("n1",)).records,
    ends("failed", 0, 1).records,
    ends("failed").records,
    ends("limit", 0).records,
    ends("succeeded", 0, 1, exempt=("n2",)).records,
    Story().launcher_exits({"n1": 0}).end("limit").launcher_exits({"n2": -9}).records,
    Story().launcher_exits({"n1": 1}).records,
    other_processes().records,
    ended_again(is_elected_again=True),
    never_begun(127),
    never_begun(-15, 127, hello=True),
    without_start(),
    closed_and_more(9.0),
    shifted("worker_finished", 0, -0.02 - 0.00005),
    shifted("resume_observed", 0, 0.03),  # a busy machine may stop a worker in between
    shifted("node_started", 0, -0.01 - 0.00005),
    shifted("node_stopped", 1, 0.01 + 0.00005),
    engine(-0.01 - 0.00005),
    Story().round(1, ["n1"]).hashed(1, 0, "x").records,
    hashed(2),
    hashed(None),
    stepped((None, "process", 1), (2, "state", 2)),
    stepped((10, "script", 1), (20, "script", 2)),
    Story().round(1, ["n1"]).step(1, 0, None, count=1)
    .step(1, 0, 9, count=1, step_source="script", began_at=100.01).records,
    stepped((10, "script", 1), (30, "state", 2)),
    stepped((1, "state", 1), (30, "script", 2)),
    stepped((1, "parameters", 1), (2, "parameters", 2)),
    stepped((1, "parameters", 1), (30, "state", 2)),
    stepped((1, "state", 1), (None, "state", 2)),
    stepped((1, "state", 1), (None, "process", 2), (2, "script", 2), began=-0.005),
    stepped((1, "state", 1), (2, "state", 2), began=-0.01 - 0.00005),
    stepped((1, "state", 1), (2, "state", 2), began=0.00005),
    groups(Story().round(1, TWO, round=None), (0, 2, "a"), (1, 2, "b")),
    groups(Story().round(1, TWO), (0, 1, "a"), (1, 1, "b")),
    Story().round(1, TWO).gone(1, 0).hello(2, "n1", 0, 1).records,
    Story().hello(4, "n1", 0, 2).hello(5, "n2", 1, 2).hello(4, "n2", 1, 2).records,
    Story().hello(1, "n1", 0, 2).hello(1, "n1", 0, 2).records,
    Story().hello(1, "n1", 0, 1).hello(2, "n1", 0, 1, run_id="other").records,
    committed(Story(), 1, "n3", "n1", "n2").records,
    Story().tell(
        "agent", "n1",
        WorkersStarted(round=1, pids=(5,), ranks=(0,), start="warm", start_reason=""),
    ).records,
    dropped("worker_gone", 3)[:-1],
    committed(committed(Story(), 1, "n1", "n1"), 1, "n1", "n1", "n2", term=2)
    .hello(1, "n1", 0, 1).records,
    [each for each in told().records if each.event.kind != "node_stopped"],
    cut_while_torn_down(),
    sealed_after(3, 2),
    sealed_after(2, 1),
)  # fmt: skip


@pytest.mark.parametrize("records", PLAIN)
def test_what_may_be_so_is_no_contradiction(records: list[Record]) -> None:
    """Each of these is what some run has done, or may do."""
    verdict = judge(records)
    assert verdict.is_valid, verdict.reason


WRONG: tuple[tuple[list[Record], str, int], ...] = (
    (ends("drained", 1, exempt=TWO[:1]).records, ("the job drained, and its launchers ended with "
     "{'n1': 1}"), 1),
    (ends("drained").records, "the job drained, and its launchers ended with {}", 1),
    (ends("succeeded", 0, 1).records,
     "the job succeeded, and its launchers ended with {'n1': 0, 'n2': 1}", 1),
    (shifted("worker_finished", 0, -0.02 - 0.0002),
     "worker_finished of rank 0 on n1 is earlier than what it had said before", 2),
    (shifted("resume_observed", 0, -0.025),
     "resume_observed of rank 0 on n1 is earlier than what it had said before", 2),
    (shifted("node_started", 0, -0.01 - 0.0002),
     "node_started is earlier than the start of the run", 2),
    (shifted("node_stopped", 1, 0.01 + 0.0002), "node_stopped is later than the end of the run", 2),
    (stepped((1, "state", 1), (2, "state", 2), began=-0.01 - 0.0002),
     "step 2 of rank 0 on n1 did not begin after the one before, and before its end", 2),
    (stepped((1, "state", 1), (2, "state", 2), began=0.0002),
     "step 2 of rank 0 on n1 did not begin after the one before, and before its end", 2),
    (stepped((2, "parameters", 1)), "rank 0 on n1 went from step 0 to 2", 2),
    (stepped((1, "parameters", 1), (3, "parameters", 2)), "rank 0 on n1 went from step 1 to 3", 2),
    (stepped((2, "state", 1)), "rank 0 on n1 went from step 0 to 2", 2),
    (stepped((0, "state", 1)), "rank 0 on n1 went from step 0 to 0", 2),
    (hashed(3), "rank 0 on n1 ended with step 3, and its last one was 2", 2),
    (groups(Story().hello(1, "n1", 0, 3).hello(1, "n2", 1, 3).hello(1, "n3", 2, 3),
            (0, 1, "a"), (1, 3, "b"), (2, 3, "c")),
     "the ranks 1 and 2 of a round met in two groups", 2),
    (Story().hello(1, "n1", 0, 1, run_id="other").hello(1, "n1", 0, 1).hello(2, "n1", 0, 1).records,
     ("when rank 0 of round 2 said hello on n1, the process 1002 was alive, and it was found "
     "otherwise"), 2),
    (Story().hello(1, "n1", 0, 1).hello(2, "n1", 0, 1).gone(1).records,
     ("when rank 0 of round 2 said hello on n1, the process 1001 was alive, and it was found "
     "otherwise"), 2),
    (sealed_after(2, 2), "1 restarts were used when round 1 ended, and round 2 begins with 2", 2),
    (ended_again(is_elected_again=False), "n1 said round_ended of round 1 twice", 2),
    (never_begun(127, hello=True),
     "rank 0 of round 1 ended on n1, whose launcher never said that it had started it", 1),
    (never_begun(-15),
     "rank 0 of round 1 ended on n1, whose launcher never said that it had started it", 1),
    (engine(-0.01 - 0.0002), "fault_planned is earlier than the fault_planned before it", 2),
)  # fmt: skip


@pytest.mark.parametrize(("records", "what", "count"), WRONG)
def test_what_just_cannot_be_is_a_contradiction(
    records: list[Record], what: str, count: int
) -> None:
    """It is said in one sentence, with the records that contradict each other."""
    verdict = judge(records)
    assert (verdict.outcome, verdict.reason) == (Outcome.UNKNOWN, FIRST + what)
    assert len(verdict.events) == count or "launchers" in what


def compared(records: list[Record], node: str, error_s: float) -> list[Record]:
    """Return the records, and how far off the clock of a node may be."""
    place = max(places("node_started")) + 1
    clock = replace(records[place], node=node, event=ClockCompared(error_s=error_s))
    return [*records[:place], clock, *records[place:]]


@pytest.mark.parametrize(
    ("records", "what"),
    [
        (compared(shifted("worker_gone", 0, -0.05), "n1", 0.06), ""),
        (compared(told().records, "n1", 5.0), ""),
        (compared(shifted("worker_gone", 0, -0.05), "n1", 0.005), "worker_gone of rank 0"),
        (compared(shifted("worker_gone", 0, -0.05), "n2", 0.06), "worker_gone of rank 0"),
        (shifted("worker_gone", 0, -0.05), "worker_gone of rank 0"),
        (compared(shifted("worker_finished", 0, -0.05), "n1", 0.06), "worker_finished of rank 0"),
    ],
)
def test_that_a_worker_is_gone_is_told_by_another_clock_than_its_own_words(
    records: list[Record], what: str
) -> None:
    """By so much it may seem to be gone before its last word; its own words have one clock."""
    verdict = judge(records)
    assert (verdict.is_valid, what in verdict.reason) == (not what, True), verdict.reason


def test_the_first_contradiction_is_told_and_the_others_are_counted() -> None:
    """A stranger's words are no reason to hear nobody else."""
    story = Story()
    for pid in (7, 8):
        story.tell("worker", "n1", WorkerGone(pid=pid, rank=0))
    verdict = judge(story.records)
    assert verdict.reason == (
        f"{FIRST}worker_gone of the process 7, which never said hello (and 1 more)"
    )
    assert verdict.events == (2,)


def test_the_records_that_contradict_each_other_are_the_nearest_ones() -> None:
    """A worker's last word, its last step, and the last that its launcher was told."""
    early = judge(shifted("worker_finished", 0, -0.03))
    finished = places("worker_finished")[0] + 1
    hashes = places("parameters_hashed")[0] + 1
    assert early.events == (hashes, finished)
    assert judge(hashed(3)).events == (5, 6)
    story = committed(committed(Story(), 1, "n1", "n1"), 1, "n1", "n1", term=2)
    story.hello(0, "n2", 0, 1, round=None).hello(1, "n1", 0, 7)
    verdict = judge(story.records)
    assert (verdict.outcome, verdict.events) == (Outcome.INVALID, (3, 5))


def test_a_replaced_node_whose_new_launcher_still_runs_is_no_contradiction() -> None:
    """The run tells of each node's newest launcher; what the first one left went with its node."""
    story = Story()
    for incarnation, pid in ((1, 40), (2, 50)):
        story.tell("cluster", "n2", NodeStarted(address="10.77.0.2", incarnation=incarnation))
        story.tell("cluster", "n2", ProcessStarted(pid=pid, role="launcher", argv=("run",)))
        if incarnation == 1:
            story.tell("cluster", "n2", ProcessExited(pid=pid, role="launcher", exit_code=-9))
            story.tell("cluster", "n2", NodeStopped(cause="crash"))
    story.tell("engine", "", RunEnded(outcome="limit", ended_by_faults=("n2",)))
    story.tell("engine", "", OutputRead(unread=()))
    story.tell("cluster", "", SurvivorsSought(nodes=()))
    verdict = judge(story.records)
    assert verdict.is_valid, verdict.reason
    left = bind("no_survivors").run(History.of(story.records))
    assert "was never looked at" not in left.reason


def test_a_node_that_came_back_when_the_run_was_over_is_no_contradiction() -> None:
    """What the run says of its launcher is that of before."""
    story = Story()
    for pid in (40, 50):
        story.tell("cluster", "n2", NodeStarted(address="10.77.0.2", incarnation=1 + (pid == 50)))
        story.tell("cluster", "n2", ProcessStarted(pid=pid, role="launcher", argv=("run",)))
        if pid == 40:
            story.tell("cluster", "n2", ProcessExited(pid=pid, role="launcher", exit_code=0))
            story.tell("engine", "", RunEnded(outcome="succeeded", exit_codes={"n2": 0}))
            story.tell("cluster", "n2", NodeStopped(cause="crash"))
    verdict = judge(story.records)
    assert "launchers ended with" not in verdict.reason, verdict.reason


def test_what_else_ran_on_a_node_says_nothing_of_its_launcher() -> None:
    """A command that a test has run there afterwards, for example."""
    story = Story().tell("cluster", "n2", NodeStarted(address="10.77.0.2", incarnation=1))
    for pid, role in ((40, "launcher"), (50, "command")):
        story.tell("cluster", "n2", ProcessStarted(pid=pid, role=role, argv=("run",)))
        story.tell("cluster", "n2", ProcessExited(pid=pid, role=role, exit_code=0))
    story.tell("engine", "", RunEnded(outcome="succeeded", exit_codes={"n2": 0}))
    verdict = judge(story.records)
    assert "launchers ended with" not in verdict.reason, verdict.reason
