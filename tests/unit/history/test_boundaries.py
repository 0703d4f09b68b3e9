"""Each boundary of each checker, and each thing that it says, by the smallest history."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from elastic_harness.history.checkers import STANDARD, bind
from elastic_harness.history.events import (
    FaultFired,
    FaultIneffective,
    FaultPlanned,
    LogMatched,
    NodeStarted,
    NodeStopped,
    OutputRead,
    ProcessExited,
    ProcessStarted,
    RunEnded,
    SurvivorFound,
    SurvivorsSought,
    WorkerEnded,
    WorkerFinished,
    WorkerGone,
    WorkerHello,
    WorkerRaised,
)
from elastic_harness.history.verdict import Outcome
from msgspec.structs import replace

from pytest_elastic.errors import UsageError
from pytest_elastic.events.model import (
    Event,
    JobEnded,
    Record,
    RoundCommitted,
    RoundEnded,
    StopOrdered,
    WorkerExited,
    WorkersStarted,
)
from tests.unit.history.story import Story

VALID, INVALID, UNKNOWN = Outcome.VALID, Outcome.INVALID, Outcome.UNKNOWN
TWO = ("n1", "n2")
LEFT_NOTHING = "nothing outlived the launchers that ended on n1, n2"


def crashed(name: str = "crash") -> Story:
    """Two nodes, a crash at step 6, a resume at step 5, a good end."""
    story = Story().round(1, TWO).steps(1, 1, 6).fault(name).gone(1)
    return story.wait(0.5).round(2, TWO).steps(2, 6, 9).finish(2).end()


def trained_on(code: int, by_s: float, *, killed_before: str = "") -> Story:
    """A launcher ends, and its worker begins a step so long after that."""
    story = Story().round(1, TWO).steps(1, 1, 2)
    if killed_before:
        story.launcher_exits({killed_before: -9})
    ended_at = story.at
    story.launcher_exits({"n1": code, "n2": 0}).wait(by_s + 1.0)
    return story.step(1, 0, 3, began_at=ended_at + by_s).end()


def without_start(story: Story) -> Story:
    """Forget what was run."""
    del story.records[0]
    return story


def started(story: Story, round: int, *ranks: int, node: str = "n1") -> Story:
    """Let a launcher say whom it has started."""
    pids = tuple(range(len(ranks)))
    told = WorkersStarted(round=round, pids=pids, ranks=ranks, start="warm", start_reason="")
    return story.tell("agent", node, told)


def worker_exits(story: Story, round: int, rank: int, code: int) -> Story:
    """Let the launcher on n1 say how a worker ended."""
    exited = WorkerExited(
        round=round, local_rank=0, rank=rank, pid=5, exit_code=code, signal=0, cause="exited"
    )
    return story.tell("agent", "n1", exited)


def launcher(story: Story, node: str, role: str = "launcher") -> Story:
    """Start a process."""
    return story.tell("cluster", node, ProcessStarted(pid=1, role=role, argv=()))


def left_behind(*nodes: str) -> Story:
    """Find a process on each of these nodes."""
    story = Story()
    for node in nodes:
        story.tell("cluster", node, SurvivorFound(pid=9, command="a"))
    return story


def used(restarts: int) -> Story:
    """Say after one round that so many restarts were used, where one is allowed."""
    ended = RoundEnded(round=1, reason="", charged=True, restarts_used=restarts)
    return Story(max_restarts=1).round(1, TWO).tell("agent", "n1", ended)


def swallowed(result: str, node: str, *, exempt: tuple[str, ...] = ()) -> Story:
    """Let a launcher say how the job ended, another one that it was well, and both end with 0."""
    story = Story().tell("agent", "n1", JobEnded(result="lost", reason="not yet"))
    story.tell("agent", node, JobEnded(result=result, reason="why"))
    story.tell("agent", "n2", JobEnded(result="succeeded", reason="all did"))
    return story.end(exempt=exempt)


def dead(
    *,
    hit: tuple[str, int, int] = ("n2", 1, 9),
    raises: bool = False,
    pauses: bool = False,
    finishes: bool = False,
    goes: bool = True,
    early: bool = False,
    late: bool = False,
    rounds: int = 1,
    code: int | None = None,
    exempt: tuple[str, ...] = (),
) -> Story:
    """Let rank 1 be ended by a fault in the last round, and launchers end with 0 all the same.

    With a `code` that is how it ended, by no fault.
    """
    story = Story()
    if early:
        story.fault("kill", workers=(hit,))
    story.round(1, TWO).steps(1, 1, 3)
    if not (raises or early or late or code is not None):
        story.fault("kill", workers=(hit,), pauses=pauses)
    pid = story.pids[1, 1]
    if raises:
        story.tell("worker", "n2", WorkerRaised(pid=pid, rank=1, error="E", message="m"))
    if finishes:
        story.tell("worker", "n2", WorkerFinished(pid=pid, rank=1))
    if goes:
        story.gone(1, 1)
    if code is not None:
        story.tell("cluster", "n2", WorkerEnded(pid=pid, rank=1, exit_code=code))
    if late:
        story.fault("kill", workers=(hit,))
    if rounds == 2:
        story.gone(1, 0).round(2, TWO).finish(2)
    else:
        story.tell("worker", "n1", WorkerFinished(pid=story.pids[1, 0], rank=0))
        story.gone(1, 0)
    return story.end(exempt=exempt)


def ended_alike(*codes: int | None, raises: bool = False, finishes: bool = False) -> Story:
    """All workers go without a word, with these exit codes, when they are done."""
    story = Story().round(1, TWO).steps(1, 1, 3)
    if raises:
        story.tell(
            "worker", "n2", WorkerRaised(pid=story.pids[1, 1], rank=1, error="E", message="")
        )
    if finishes:
        story.tell("worker", "n2", WorkerFinished(pid=story.pids[1, 1], rank=1))
    story.gone(1)
    for rank, code in enumerate(codes):
        if code is not None:
            ended = WorkerEnded(pid=story.pids[1, rank], rank=rank, exit_code=code)
            story.tell("cluster", TWO[rank], ended)
    return story.end()


def late_step(rounds: int, *, after: int, run_id: str = "job") -> Story:
    """Let round 1 begin a step when so many later rounds have made progress."""
    story = Story().round(1, ["n1"]).steps(1, 1, 2)
    for number in range(2, rounds + 1):
        began = story.at
        story.hello(number, f"n{number}", 0, 1, run_id=run_id)
        if number <= after:
            story.steps(number, 3, 3)
            began = story.at
    return story.wait(0.1).step(1, 0, 3, began_at=began if after == rounds else began - 0.001)


def between(*, is_third_first: bool = False) -> Story:
    """Let round 1 begin a step when one of two later rounds has made progress."""
    first, second = (3, 2) if is_third_first else (2, 3)
    story = Story().round(1, ["n1"]).steps(1, 1, 2).hello(2, "n2", 0, 1).hello(3, "n3", 0, 1)
    began = story.steps(first, 3, 4).at
    return story.wait(0.1).steps(second, 3, 4).step(1, 0, 3, began_at=began)


def at_the_moment() -> Story:
    """Let round 1 begin a step at the very moment at which round 2 has made progress."""
    story = Story().round(1, ["n1"]).steps(1, 1, 2).hello(2, "n2", 0, 1).steps(2, 3, 3)
    return story.step(1, 0, 3, began_at=story.records[-1].at)


def two_runs() -> Story:
    """Another job ran at the time, and made no step."""
    story = Story().hello(9, "n9", 0, 1, run_id="other").round(1, ["n1"]).steps(1, 1, 2)
    story.hello(2, "n2", 0, 1).steps(2, 3, 3)
    return story.wait(0.1).step(1, 0, 3, began_at=story.at - 0.05)


def apart(*, gone_at: float | None, run_id: str = "job") -> Story:
    """Two rounds of which nobody saw a step; when the first one was gone, by the second's hello."""
    story = Story().hello(1, "n1", 0, 1)
    hello_at = story.at = 200.0
    if gone_at is not None:
        story.at += gone_at
        story.gone(1)
        story.at = hello_at
    return story.hello(2, "n1", 0, 1, run_id=run_id)


def same_moment(number: int) -> Story:
    """Let a round begin at the very moment of a fault, and a step of it."""
    story = Story().round(1, ["n1"]).steps(1, 1, 2).fault("crash").gone(1)
    at = next(each.at for each in story.records if each.event.kind == "fault_fired")
    end = story.at
    story.at = at
    story.hello(number, "n1", 0, 1)
    story.at = end
    return story.step(number, 0, 3, began_at=at).step(number, 0, 4)


def ended(outcome: str, codes: dict[str, int], *reasons: str) -> Story:
    """End a run; its launchers gave these reasons."""
    story = Story()
    for reason in reasons:
        story.tell("agent", "n1", JobEnded(result="failed", reason=reason))
    return story.launcher_exits(codes).end(outcome, launchers=())


def matched(node: str, pattern: str, line: str) -> Story:
    """Watch for x, and find a line."""
    found = LogMatched(pattern=pattern, line=line)
    story = Story(settings={"log_patterns": ["x"]}).tell("worker", node, found)
    return story.tell("engine", "", OutputRead(unread=()))


def forming(*events: Event, at: float = 0.0, later: int = 1, before: int = 1) -> Story:
    """Let rank 0 of 2 say hello, and something happen then, or after so many later rounds."""
    story = Story(nodes=9).wait(1.0).hello(1, "n1", 0, 2)
    hello_at = story.at - 0.01
    for number in range(2, later + 1):
        if number == before + 1:
            _tell(story, events, at + (hello_at if before == 1 else story.at))
        story.hello(number, f"n{number}", 0, 1)
    if before == later:
        _tell(story, events, at + (hello_at if before == 1 else story.at))
    return story.end("limit")


def _tell(story: Story, events: tuple[Event, ...], at: float) -> None:
    now, story.at = story.at, at
    for event in events:
        story.tell("cluster", "n9", event)
    story.at = now


def exited(round: int, rank: int) -> WorkerExited:
    """What a launcher says of a worker that ended."""
    return WorkerExited(
        round=round, local_rank=0, rank=rank, pid=5, exit_code=1, signal=0, cause="failed"
    )


def told(story: Story, node: str, *roster: str) -> Story:
    """Tell a launcher of round 1."""
    committed = RoundCommitted(
        round=1, term=1, roster=roster, group_rank=0, world_size=len(roster), restart_count=0,
        master_addr="10.77.0.1", master_port=30001,
    )  # fmt: skip
    return story.tell("agent", node, committed)


def stops(story: Story, node: str) -> Story:
    """Let a launcher be heard of."""
    return story.tell("agent", node, StopOrdered(round=1, reason=""))


def heard_early() -> Story:
    """n2 is heard of after the first launcher was told of the round, and before the last one."""
    story = stops(told(Story(nodes=3), "n1", "n1", "n2", "n3"), "n2")
    told(story, "n3", "n1", "n2", "n3")
    started(started(story, 1, 0), 1, 2, node="n3")
    return story.hello(1, "n1", 0, 3).hello(1, "n3", 2, 3).end("limit")


def told_and_silent() -> Story:
    """n1 is told of the round, and never heard of again."""
    story = started(told(told(Story(), "n1", *TWO), "n2", *TWO), 1, 1, node="n2")
    return story.hello(1, "n2", 1, 2).end("limit")


def started_before() -> Story:
    """n1 has said whom it started before n2 was told, and nothing since."""
    story = stops(told(started(Story(), 1, 0), "n2", *TWO), "n2")
    return story.hello(1, "n1", 0, 2).end("limit")


def effective_then_step(seconds: float) -> Story:
    """A step begins so long after a fault took effect."""
    story = Story().round(1, ["n1"]).fault("crash")
    return story.step(1, 0, 1, began_at=story.records[-1].at + seconds)


def held(
    seconds: float, *between: Event, at: float = 102.0, node: str = "n3", **more: object
) -> Story:
    """Let a second rank 0 say hello beside the first, which dies so long after it."""
    story = Story(nodes=3).wait(1.0).hello(1, "n1", 0, 2, round=None)
    story.records[-1] = replace(story.records[-1], at=101.0)
    story.hello(1, "n2", 1, 2, round=None)
    _tell(story, between, at)
    story.at = 104.0
    story.hello(2, node, 0, 2, **{"round": None, "restart_count": 0, **more})
    story.at = 104.0 + seconds
    return story.gone(1, 0)


def held_to_the_end(*, is_over: bool) -> Story:
    """Let a rank be held by two workers until the run is over, or the history ends."""
    story = held(2.0)
    gone = story.records.pop()
    story.at = 108.0
    story.tell("engine", "", RunEnded(outcome="limit") if is_over else FIRED)
    story.at = 110.0
    return story.tell("worker", "n1", gone.event) if is_over else story


def uncounted(
    *events: Event,
    at: float = 110.0,
    is_hit: bool = True,
    disturbs: bool = True,
    nodes: Sequence[str] = TWO,
    **more: object,
) -> Story:
    """Let rank 1 be killed after 105 s, and a round begin at 120 s with the same restart count."""
    story = Story(nodes=3)
    story.at = 105.0
    story.round(1, TWO)
    if is_hit:
        hit = (("n2", 1, story.pids[1, 1]),)
        story.fault("crash", workers=hit, disturbs=disturbs)
    story.gone(1)
    _tell(story, events, at)
    story.at = 120.0
    return story.round(2, nodes, **{"restart_count": 0, **more})


def raised() -> Story:
    """Let rank 1 fail by itself, and a round begin with the same restart count."""
    story = uncounted(is_hit=False)
    event = WorkerRaised(pid=story.pids[1, 1], rank=1, error="E", message="")
    story.records.insert(3, Record(at=106.0, source="worker", node="n2", run_id="job", event=event))
    return story


def hit_and_finished() -> Story:
    """Let rank 1 end well after it was hit."""
    story = uncounted()
    event = WorkerFinished(pid=story.pids[1, 1], rank=1)
    gone = next(n for n, each in enumerate(story.records) if isinstance(each.event, WorkerGone))
    story.records.insert(gone, replace(story.records[gone], event=event))
    return story


def counted_on_one_node() -> Story:
    """Let only one node count a restart."""
    story = uncounted()
    del story.records[-1]
    return story.hello(2, "n2", 1, 2, restart_count=1)


def counted_before() -> Story:
    """Let nodes have counts that differ, and none of them rise."""
    story = uncounted()
    for place in (2, -1):
        hello = story.records[place].event
        assert isinstance(hello, WorkerHello)
        told = replace(hello, restart_count=2)
        story.records[place] = replace(story.records[place], event=told)
    return story


def uncounted_later() -> Story:
    """Let the first failure be counted, and not the second."""
    story = uncounted(restart_count=1)
    story.fault("again", workers=(("n2", 1, story.pids[2, 1]),)).gone(2)
    return story.round(3, TWO, restart_count=1)


def still_there() -> Story:
    """Let rank 1 be hit, and never be seen dead."""
    story = uncounted()
    story.records = [each for each in story.records if not isinstance(each.event, WorkerGone)]
    return story


def one_nonce_later(*, gone_at: float) -> Story:
    """Let a worker with another run id find the nonce of one that is gone, or not yet."""
    story = Story().round(1, ["n1"]).group(1, "a")
    story.at = 150.0
    story.round(2, ["n1"], run_id="other").group(2, "a")
    story.at = gone_at
    return story.gone(1)


def without_peer(story: Story) -> Story:
    """Forget rank 1."""
    story.records = [each for each in story.records if getattr(each.event, "rank", 0) != 1]
    return story


def without_count(story: Story) -> Story:
    """Let a launcher tell its workers no restart count."""
    story.records = [
        replace(each, event=replace(each.event, restart_count=None))
        if isinstance(each.event, WorkerHello)
        else each
        for each in story.records
    ]
    return story


CUT = "0 rounds with every rank from 0 on given once; 1 more were cut short while they formed"
GIVEN = {"gives_max_restarts": True}
SIZES = (
    "rank 0 on n1 was told of GROUP_WORLD_SIZE {} and LOCAL_WORLD_SIZE {} in round 1, which has 2 "
    "nodes, and 1 workers there"
)
CUT_ONE = CUT.replace("0 rounds", "1 rounds")
MISSING = "ranks 1 of round 1 never said hello: whether they were given is not known"
OPTIONAL = FaultPlanned(id="a", fault="kill", is_optional=True)
ENDED = ProcessExited(pid=1, role="launcher", exit_code=1)
FIRED = FaultFired(id="a", fault="kill", targets=())

HIT = replace(FIRED, workers=(("n1", 0, 1),))
UNCHARGED = RoundEnded(round=1, reason="", charged=False, restarts_used=0)
NONE_USED = "0 of 3 restarts were used"
UNCOUNTED = (
    "rank 1 of round 1 failed on n2, and the restart count of round 2 is 0, as it was: "
    "restarts are not counted, or this was none"
)
HELD = (
    "rank 0 was held for {} s by two workers of one restart count, on n1 and on n3, and one of "
    "their rounds never formed"
)

Row = tuple[str, object, Callable[[], Story], Outcome, str]

ROWS: tuple[Row, ...] = (
    # --- ranks ---
    ("ranks", None,
     lambda: Story().hello(1, "n1", 0, 2).gone(1).round(2, TWO).end(), VALID,
     "1 rounds with every rank from 0 on given once; 1 more were cut short while they formed"),
    ("ranks", None, lambda: Story().hello(1, "n1", -1, 2, local_rank=0), INVALID,
     "n1 in round 1 has rank -1, outside a world of 2"),
    ("ranks", None, lambda: Story().hello(1, "n1", 2, 2, local_rank=0), INVALID,
     "n1 in round 1 has rank 2, outside a world of 2"),
    ("ranks", None,
     lambda: Story(nproc=2).hello(1, "n1", 1, 4).hello(1, "n1", 0, 4).hello(1, "n2", 3, 4)
     .hello(1, "n2", 2, 4), VALID, "1 rounds with every rank from 0 on given once"),
    ("ranks", None,
     lambda: Story().hello(1, "n1", 0, 3, group_rank=None).hello(1, "n2", 1, 3)
     .hello(1, "n3", 2, 3, group_rank=1), INVALID,
     "group ranks of round 1 are not one for each node: n2 and n3, 1 and 1"),
    ("ranks", None,
     lambda: Story(nproc=2).hello(1, "n1", 0, 2).hello(1, "n1", 1, 2, group_rank=1), INVALID,
     "group ranks of round 1 are not one for each node: n1 and n1, 0 and 1"),
    ("ranks", None,
     lambda: Story().hello(1, "n1", 0, 1, round=None).hello(2, "n1", 0, 2).hello(2, "n2", 0, 2),
     INVALID, "rank 0 of round 2 was given to two workers, on n1 and on n2"),
    ("ranks", None,
     lambda: started(Story().round(1, ["n1"]).gone(1), 2, 1).round(2, ["n1"]), INVALID,
     "n1 started ranks [1] of round 2, but a worker there says rank 0"),
    ("ranks", None, lambda: Story().hello(1, "n1", 0, 2, local_rank=1).hello(1, "n2", 1, 2),
     INVALID, "n1 in round 1 has local ranks 1"),
    ("ranks", None, lambda: Story().hello(1, "n1", 0, 2, local_rank=1).end("stopped"), VALID,
     "0 rounds with every rank from 0 on given once; 1 more were cut short while they formed"),
    ("ranks", None,
     lambda: Story(nproc=2).round(1, TWO, group_world_size=2, local_world_size=2), VALID,
     "1 rounds with every rank from 0 on given once"),
    ("ranks", None, lambda: Story().round(1, TWO, group_world_size=9), INVALID,
     SIZES.format(9, None)),
    ("ranks", None, lambda: Story().round(1, TWO, local_world_size=7), INVALID,
     SIZES.format(None, 7)),
    # --- ranks of a round that never formed ---
    ("ranks", None, forming, UNKNOWN, MISSING),
    ("ranks", None, lambda: forming(FIRED), VALID, CUT),
    ("ranks", None, lambda: forming(replace(FIRED, disturbs=False)), UNKNOWN, MISSING),
    ("ranks", None, lambda: forming(NodeStopped(cause="crash")), VALID, CUT),
    ("ranks", None, lambda: forming(ENDED), VALID, CUT),
    ("ranks", None, lambda: forming(WorkerGone(pid=1, rank=1)), VALID, CUT),
    ("ranks", None, lambda: forming(FIRED, at=-0.001), UNKNOWN, MISSING),
    ("ranks", None, lambda: forming(FIRED, at=-0.001, later=3, before=2), UNKNOWN, MISSING),
    ("ranks", None, lambda: forming(FIRED, at=0.001, later=3, before=2), UNKNOWN, MISSING),
    ("ranks", None, lambda: forming(FIRED, at=0.01, later=2), VALID,
     "1 rounds with every rank from 0 on given once; 1 more were cut short while they formed"),
    ("ranks", None, lambda: forming(FIRED, at=0.011, later=2), UNKNOWN, MISSING),
    ("ranks", None, lambda: forming(exited(1, 1)), VALID, CUT),
    ("ranks", None, lambda: forming(exited(2, 1)), UNKNOWN, MISSING),
    ("ranks", None, heard_early, VALID, CUT),
    ("ranks", None, told_and_silent, UNKNOWN, MISSING.replace("1 of", "0 of")),
    ("ranks", None, started_before, VALID, CUT),
    ("ranks", None, lambda: started(ended("failed", {}, "why"), 1, 0), UNKNOWN,
     "no worker said hello"),
    ("ranks", None, lambda: ended("failed", {}, "why"), UNKNOWN,
     "no worker said hello (if none is to be started, `no_workers` asks for that)"),
    # --- ranks that two workers hold ---
    ("ranks", None, lambda: held(30.1), INVALID, HELD.format("30.1")),
    ("ranks", None, lambda: held(30.0), UNKNOWN, HELD.format("30.0")),
    ("ranks", None, lambda: held(1.1), UNKNOWN, HELD.format("1.1")),
    ("ranks", None, lambda: without_peer(held(2.0)), UNKNOWN, HELD.format("2.0")),
    ("ranks", None, lambda: without_count(held(40.0).end("stopped")), VALID, CUT_ONE),
    ("ranks", None, lambda: held(40.0).hello(2, "n4", 1, 2, round=None), VALID,
     "2 rounds with every rank from 0 on given once"),
    ("ranks", None, lambda: held(1.0).end("stopped"), VALID, CUT_ONE),
    ("ranks", None, lambda: held(40.0, restart_count=1).end("stopped"), VALID, CUT_ONE),
    ("ranks", None, lambda: held(40.0, run_id="other").end("stopped"), VALID, CUT_ONE),
    ("ranks", None, lambda: held(40.0, node="n1").end("stopped"), VALID, CUT_ONE),
    ("ranks", None, lambda: held(40.0, round=2).end("stopped"), VALID, CUT_ONE),
    ("ranks", None, lambda: held(40.0, FIRED).end("stopped"), VALID, CUT_ONE),
    ("ranks", None, lambda: held(40.0, FIRED, at=101.0).end("stopped"), VALID, CUT_ONE),
    ("ranks", None, lambda: held(40.0, FIRED, at=104.0).end("stopped"), VALID, CUT_ONE),
    ("ranks", None, lambda: held(40.0, FIRED, at=100.9), INVALID, HELD.format("40.0")),
    ("ranks", None, lambda: held(40.0, FIRED, at=104.1), INVALID, HELD.format("40.0")),
    ("ranks", None, lambda: held_to_the_end(is_over=True), UNKNOWN, HELD.format("4.0")),
    ("ranks", None, lambda: held_to_the_end(is_over=False), UNKNOWN, HELD.format("4.0")),
    # --- agreement ---
    ("agreement", None,
     lambda: Story().hello(1, "n1", 0, 3, restart_count=0).hello(1, "n2", 1, 3, restart_count=1)
     .hello(1, "n3", 2, 3, restart_count=2), INVALID,
     "round 1 disagrees about restart_count: rank 0 on n1 was told 0, rank 1 on n2 1"),
    ("agreement", None,
     lambda: Story(settings={"counts_by_node": True}).hello(1, "n1", 0, 2, restart_count=0)
     .hello(1, "n2", 1, 2, restart_count=1), VALID,
     "all ranks of every round were told the same"),
    ("agreement", None,
     lambda: Story().hello(1, "n1", 0, 2).hello(1, "n2", 1, 2, run_id="other").group(1, "a"),
     INVALID, ("one process group disagrees about run_id: rank 0 on n1 was told 'job', rank 1 on "
     "n2 'other'")),
    ("agreement", None, lambda: Story().hello(1, "n1", 0, 2).hello(1, "n2", 1, 2, run_id="other"),
     VALID, "all ranks of every round were told the same"),
    ("agreement", None, lambda: Story().round(1, ["n1"]).group(1, "a")
     .round(2, ["n1"], run_id="other").group(2, "b"),
     VALID, "all ranks of every round were told the same"),
    ("agreement", None, lambda: one_nonce_later(gone_at=150.0), VALID,
     "all ranks of every round were told the same"),
    ("agreement", None, lambda: one_nonce_later(gone_at=150.1), INVALID,
     ("one process group disagrees about run_id: rank 0 on n1 was told 'job', rank 0 on n1 "
     "'other'")),
    ("agreement", None, lambda: Story(settings=GIVEN).round(1, TWO, max_restarts=77), INVALID,
     "rank 0 on n1 was told max_restarts 77, 3 was asked for"),
    ("agreement", None, lambda: Story(settings=GIVEN).round(1, TWO, max_restarts=None), VALID,
     "all ranks of every round were told the same"),
    ("agreement", None, lambda: Story(settings=GIVEN).round(1, TWO, max_restarts=3), VALID,
     "all ranks of every round were told the same"),
    ("agreement", None, lambda: Story().round(1, TWO, max_restarts=77), VALID,
     "all ranks of every round were told the same"),
    ("agreement", None, lambda: without_start(Story(settings=GIVEN).round(1, TWO)), VALID,
     "all ranks of every round were told the same"),
    # --- one_world ---
    ("one_world", None, lambda: Story().round(1, TWO).step(1, 0, 1).round(2, TWO), VALID,
     "no step of an older round began once a newer one was under way"),
    ("one_world", None, lambda: apart(gone_at=None), UNKNOWN,
     "rounds overlapped, and no step of any worker was observed"),
    ("one_world", None, lambda: apart(gone_at=0.0), VALID,
     "no step of an older round began once a newer one was under way"),
    ("one_world", None, lambda: apart(gone_at=None, run_id="other"), VALID,
     "no step of an older round began once a newer one was under way"),
    ("one_world", None, lambda: Story().round(1, TWO), VALID,
     "no step of an older round began once a newer one was under way"),
    ("one_world", None, lambda: late_step(2, after=1), VALID,
     "no step of an older round began once a newer one was under way"),
    ("one_world", None, lambda: late_step(2, after=2, run_id="other"), VALID,
     "no step of an older round began once a newer one was under way"),
    ("one_world", None, lambda: between(is_third_first=True), INVALID,
     ("rank 0 on n1 began a step of round 1 after every rank of round 3 had completed one: two "
     "worlds at once")),
    ("one_world", None, two_runs, INVALID,
     ("rank 0 on n1 began a step of round 1 after every rank of round 2 had completed one: two "
     "worlds at once")),
    ("one_world", None, at_the_moment, VALID,
     "no step of an older round began once a newer one was under way"),
    # --- budget, membership ---
    ("budget", None, lambda: without_start(Story().round(1, ["n1"], max_restarts=None)), UNKNOWN,
     "nothing says how many restarts were allowed"),
    ("budget", None, lambda: used(2), INVALID, "2 restarts were used, 1 allowed"),
    ("budget", None, lambda: used(1), VALID, "0 of 1 restarts were used"),
    ("budget", None, lambda: Story(max_restarts=0).round(1, TWO).gone(1).round(2, TWO), INVALID,
     "round 2 has restart count 1, 0 allowed"),
    # --- failures that were not counted ---
    ("budget", None, uncounted, UNKNOWN, UNCOUNTED),
    ("budget", None, uncounted_later, UNKNOWN,
     UNCOUNTED.replace("round 2 is 0", "round 3 is 1").replace("round 1", "round 2")),
    ("budget", None, raised, UNKNOWN, UNCOUNTED),
    ("budget", None, lambda: uncounted(nodes=("n2", "n1")), UNKNOWN, UNCOUNTED),
    ("budget", None, counted_on_one_node, VALID, "1 of 3 restarts were used"),
    ("budget", None, counted_before, UNKNOWN, UNCOUNTED.replace("is 0", "is 2")),
    ("budget", None, lambda: uncounted(is_hit=False), VALID, NONE_USED),
    ("budget", None, lambda: uncounted(disturbs=False), VALID, NONE_USED),
    ("budget", None, lambda: uncounted(nodes=("n2", "n3")), VALID, NONE_USED),
    ("budget", None, lambda: uncounted(run_id="other"), VALID, NONE_USED),
    ("budget", None, hit_and_finished, VALID, NONE_USED),
    ("budget", None, still_there, VALID, NONE_USED),
    ("budget", None, lambda: uncounted(FIRED, at=101.0), VALID, NONE_USED),
    ("budget", None, lambda: uncounted(FIRED, at=120.0), UNKNOWN, UNCOUNTED),
    ("budget", None, lambda: uncounted(replace(HIT, nodes=("n1",))), VALID, NONE_USED),
    ("budget", None, lambda: uncounted(replace(HIT, links=(TWO,))), VALID, NONE_USED),
    ("budget", None, lambda: uncounted(HIT), UNKNOWN, UNCOUNTED),
    ("budget", None, lambda: uncounted(UNCHARGED), VALID, NONE_USED),
    ("budget", None, lambda: uncounted(replace(UNCHARGED, charged=True)), UNKNOWN, UNCOUNTED),
    ("budget", None, lambda: uncounted(replace(UNCHARGED, round=2)), UNKNOWN, UNCOUNTED),
    ("budget", None, lambda: uncounted(ENDED), VALID, NONE_USED),
    ("budget", None, lambda: uncounted(ENDED, at=105.0), UNKNOWN, UNCOUNTED),
    ("budget", None, lambda: uncounted(ENDED, at=120.0), UNKNOWN, UNCOUNTED),
    ("budget", None, lambda: uncounted(NodeStopped(cause="left")), VALID, NONE_USED),
    ("budget", None, lambda: uncounted(NodeStarted(address="", incarnation=1)), VALID, NONE_USED),
    ("budget", None, lambda: uncounted(ProcessStarted(pid=1, role="launcher", argv=())), VALID,
     NONE_USED),
    ("membership", None, lambda: without_start(Story().round(1, TWO)), UNKNOWN,
     "the history does not say how many nodes were allowed"),
    ("membership", None,
     lambda: Story(nproc=2).round(1, TWO).gone(1).hello(2, "n1", 0, 4), VALID,
     "1 rounds with 1 to 2 nodes"),
    ("membership", None,
     lambda: Story().hello(1, "n1", 0, 2).hello(1, "n1", 1, 2, local_rank=1), INVALID,
     "round 1 has 2 workers on 1 nodes, 1 were asked for"),
    # --- no_survivors ---
    ("no_survivors", None,
     lambda: Story().tell("cluster", "n1", SurvivorFound(pid=8, command="a"))
     .tell("cluster", "n2", SurvivorFound(pid=9, command="b")), INVALID,
     "2 processes outlived their launcher, first on n1: a (pid 8)"),
    ("no_survivors", None, lambda: trained_on(0, 1.5), INVALID,
     "rank 0 on n1 began a step 1.5 s after its launcher had ended with 0"),
    ("no_survivors", None, lambda: trained_on(127, 1.5), INVALID,
     "rank 0 on n1 began a step 1.5 s after its launcher had ended with 127"),
    ("no_survivors", None, lambda: trained_on(0, 1.0), VALID, LEFT_NOTHING),
    ("no_survivors", None, lambda: trained_on(-9, 1.5), VALID, LEFT_NOTHING),
    ("no_survivors", None, lambda: trained_on(128, 1.5), VALID, LEFT_NOTHING),
    ("no_survivors", None, lambda: trained_on(-1, 1.5), VALID, LEFT_NOTHING),
    ("no_survivors", None, lambda: trained_on(0, 1.5, killed_before="n2"), INVALID,
     "rank 0 on n1 began a step 1.5 s after its launcher had ended with 0"),
    ("no_survivors", None,
     lambda: Story().launcher_exits({"n1": 1, "n2": 1}).wait(2.0).round(1, TWO).steps(1, 1, 2)
     .end(), VALID, LEFT_NOTHING),
    ("no_survivors", None, lambda: Story().launcher_exits({"n1": 1}).end("limit"), VALID,
     "nothing outlived the launchers that ended on n1"),
    ("no_survivors", None, lambda: Story().end("stopped"), VALID,
     "nothing outlived the launchers that ended on any node"),
    # --- faults_effective ---
    ("faults_effective", None,
     lambda: Story().fault("a", works=False)
     .tell("fault", "", FaultIneffective(id="a", reason="", is_optional=True)), VALID,
     "0 faults fired and had their effect, 1 optional ones did nothing"),
    ("faults_effective", None,
     lambda: Story().tell("engine", "", OPTIONAL), VALID,
     "0 faults fired and had their effect, 1 optional ones did nothing"),
    ("faults_effective", None,
     lambda: Story().tell("engine", "", OPTIONAL)
     .fault("a"), VALID, "1 faults fired and had their effect"),
    ("faults_effective", None, lambda: Story().fault("a", works=False), UNKNOWN,
     "no effect was seen of: a"),
    # --- ends_in_time, job ---
    ("ends_in_time", None, lambda: Story().end("limit"), INVALID,
     "the job did not end within 60 s"),
    ("ends_in_time", None,
     lambda: Story().tell("engine", "", RunEnded(outcome="limit", reason="n2 hung")), INVALID,
     "n2 hung"),
    ("ends_in_time", None, lambda: without_start(Story().end("limit")), INVALID,
     "the job did not end within its limit"),
    ("job", "drained", lambda: Story().end("drained"), VALID, "the job was drained"),
    ("job", "succeeded", lambda: Story().end(), VALID, "the job succeeded"),
    ("job", "succeeded", lambda: Story().end("drained"), INVALID,
     "the job was drained, it should have succeeded (exit codes: n1 143, n2 143)"),
    ("job", "drained", lambda: ended("failed", {}, "one", "two"), INVALID,
     "the job failed, it should have been drained: two (exit codes: none)"),
    ("job", "succeeded", lambda: ended("failed", {"n1": 1, "n2": -1}), INVALID,
     "the job failed, it should have succeeded (exit codes: n1 1, n2 -1)"),
    ("job", "succeeded", lambda: ended("failed", {"n1": 0, "n2": 1}), INVALID,
     ("the job failed, it should have succeeded (exit codes: n1 0, n2 1); it asks this of every "
     "launcher that no fault has ended: where one side goes on and the other is lost, "
     "`exit_codes` says it node by node")),
    ("job", "succeeded",
     lambda: Story().launcher_exits({"n1": 0, "n2": 1})
     .end("failed", launchers=(), exempt=("n1",)), INVALID,
     "the job failed, it should have succeeded (exit codes: n1 0, n2 1)"),
    ("job", "succeeded", lambda: swallowed("failed", "n1"), INVALID,
     "the launcher of n1 exited with 0, though it had said that the job failed: why"),
    ("job", "succeeded", lambda: swallowed("lost", "n1"), INVALID,
     "the launcher of n1 exited with 0, though it had said that the job was lost: why"),
    ("job", "succeeded", lambda: swallowed("failed", "n1", exempt=("n1",)), VALID,
     "the job succeeded"),
    ("job", "succeeded", lambda: swallowed("drained", "n1"), VALID, "the job succeeded"),
    ("job", "failed", lambda: Story().end("failed"), VALID, "the job failed"),
    ("job", "succeeded", dead, UNKNOWN,
     ("rank 1 on n2 was ended, no round came after that, and all launchers exited with 0: whether "
      "the job did its work is not known (`finished_at` asks for its last step)")),
    ("job", "succeeded", lambda: dead(raises=True), UNKNOWN,
     ("rank 1 on n2 raised, no round came after that, and all launchers exited with 0: whether "
      "the job did its work is not known (`finished_at` asks for its last step)")),
    ("job", "succeeded", lambda: dead(code=3, finishes=True), UNKNOWN,
     ("rank 1 on n2 ended with exit code 3, no round came after that, and all launchers exited "
      "with 0: whether the job did its work is not known (`finished_at` asks for its last step)")),
    ("job", "succeeded", lambda: dead(code=-11), UNKNOWN,
     ("rank 1 on n2 ended with SIGSEGV, no round came after that, and all launchers exited with 0: "
      "whether the job did its work is not known (`finished_at` asks for its last step)")),
    *(("job", "succeeded", story, UNKNOWN,
       (f"rank {rank} on n{rank + 1} {how}, no round came after that, and all launchers exited "
        "with 0: whether the job did its work is not known (`finished_at` asks for its last step)"))
      for story, rank, how in (
        (lambda: ended_alike(3, 3), 0, "ended with exit code 3"),
        (lambda: ended_alike(0, 1), 1, "ended with exit code 1"),
        (lambda: ended_alike(1, 1, finishes=True), 0, "ended with exit code 1"),
        (lambda: ended_alike(None, None, raises=True), 1, "raised"))),
    ("recovered", None, dead, UNKNOWN,
     "rank 1 on n2 died, and no round came after that, though all launchers exited with 0"),
    *(("job", "succeeded", story, VALID, "the job succeeded") for story in (
        lambda: dead(hit=("n2", 0, 9)), lambda: dead(hit=("n1", 1, 9)), lambda: dead(pauses=True),
        lambda: dead(exempt=("n2",)), lambda: dead(finishes=True), lambda: dead(goes=False),
        lambda: dead(raises=True, goes=False), lambda: dead(early=True), lambda: dead(late=True),
        lambda: dead(rounds=2), lambda: dead(code=0), lambda: dead(code=-15),
        lambda: dead(code=143), lambda: dead(code=-9), lambda: dead(code=-1), lambda: dead(code=-2),
        lambda: dead(code=3, exempt=("n2",)), lambda: ended_alike(1, 1),
        lambda: ended_alike(None, 1),
        lambda: dead(code=3, rounds=2),
    )),
    # --- exit_codes ---
    ("exit_codes", 0, Story, UNKNOWN, "no launcher was seen to end"),
    ("exit_codes", 0, lambda: Story().end(), VALID, "all exit codes are as expected"),
    ("exit_codes", 0, lambda: launcher(Story(), "n2").launcher_exits({"n1": 0}), UNKNOWN,
     "the launcher on n2 was not seen to end by itself"),
    ("exit_codes", 0, lambda: launcher(Story(), "n2", "auxiliary").launcher_exits({"n1": 0}), VALID,
     "all exit codes are as expected"),
    ("exit_codes", 0, lambda: launcher(Story(), "n1").launcher_exits({"n1": 0, "n2": 1}), INVALID,
     "the launcher on n2 ended with 1, 0 was expected"),
    # --- workers_observed ---
    ("workers_observed", None, lambda: started(Story(), 1, 0), UNKNOWN,
     "rank 0 of round 1 was started on n1 and never said hello"),
    ("workers_observed", None, lambda: Story().launcher_exits({"n1": 0}), UNKNOWN,
     "a launcher ran to its end and no worker said hello"),
    ("workers_observed", None,
     lambda: Story().tell("cluster", "n1", ProcessExited(pid=1, role="auxiliary", exit_code=0)),
     UNKNOWN, "no worker said hello"),
    ("workers_observed", None,
     lambda: Story().tell("cluster", "n1", ProcessExited(pid=1, role="auxiliary", exit_code=0))
     .launcher_exits({"n2": 0}), UNKNOWN, "a launcher ran to its end and no worker said hello"),
    ("workers_observed", None,
     lambda: worker_exits(started(Story().hello(1, "n1", 0, 2), 1, 0, 1), 1, 1, 1), VALID,
     "1 workers said hello, and every step was heard of"),
    ("workers_observed", None,
     lambda: worker_exits(started(Story().hello(1, "n1", 0, 2), 1, 0, 1), 1, 1, 0).end("stopped"),
     UNKNOWN, "rank 1 of round 1 was started on n1 and never said hello"),
    ("workers_observed", None,
     lambda: started(Story().hello(1, "n1", 0, 2), 1, 0, 1).end("stopped"), VALID,
     ("1 workers said hello, and every step was heard of; rank 1 of round 1 was started on n1, and "
     "the test ended the run before it said hello")),
    # --- log_contains ---
    ("log_contains", "x", lambda: matched("n1", "x", " y "), VALID, "seen on n1: y"),
    ("log_contains", "x", lambda: matched("n1", "z", "an x"), VALID, "seen on n1: an x"),
    ("log_contains", "x", lambda: matched("n1", "z", "y"), INVALID, "no line matched 'x'"),
    ("log_contains", {"pattern": "x", "node": "n2"}, lambda: matched("n1", "x", "x"), INVALID,
     "no line on n2 matched 'x'"),
    ("log_contains", {"pattern": "x", "node": "n2"}, lambda: matched("n2", "x", "x"), VALID,
     "seen on n2: x"),
    ("log_contains", "x", lambda: Story().tell("engine", "", OutputRead(unread=())), UNKNOWN,
     "the logs were not watched for 'x' during the run"),
    ("log_contains", "x",
     lambda: matched("n1", "z", "y").tell("engine", "", OutputRead(unread=("a",))), UNKNOWN,
     "not read to their end: a"),
    # --- restarts ---
    ("restarts", 0, lambda: Story().round(1, TWO), VALID, "0 restarts"),
    ("restarts", {"at_least": 1}, crashed, VALID, "1 restarts"),
    ("restarts", {"at_least": 2}, crashed, INVALID, "1 restarts, at least 2 were expected"),
    ("restarts", {"at_most": 1}, crashed, VALID, "1 restarts"),
    ("restarts", {"at_most": 0}, crashed, INVALID, "1 restarts, at most 0 were expected"),
    # --- recovery_time ---
    ("recovery_time", "2s", lambda: Story().round(1, TWO).steps(1, 1, 2), UNKNOWN,
     "no fault fired that disturbs a job"),
    ("recovery_time", "2s", crashed, VALID, "recovered in 0.59 s"),
    ("recovery_time", 2, crashed, VALID, "recovered in 0.59 s"),
    ("recovery_time", {"at_most": "2s", "after": "crash.fired"}, crashed, VALID,
     "recovered in 0.59 s"),
    ("recovery_time", {"at_most": "2s", "after": "crash"}, lambda: crashed("crash#2"), VALID,
     "recovered in 0.59 s"),
    ("recovery_time", {"at_most": "2s", "after": "crash#2"}, lambda: crashed("crash#2"), VALID,
     "recovered in 0.59 s"),
    ("recovery_time", {"at_most": "2s", "after": "crash#1"}, lambda: crashed("crash#2"), UNKNOWN,
     "nothing called 'crash#1' happened"),
    ("recovery_time", {"at_most": "2s", "after": "crash.gone"}, crashed, UNKNOWN,
     "nothing called 'crash.gone' happened"),
    ("recovery_time", {"at_most": "2s", "after": "crash.healed"}, crashed, UNKNOWN,
     "nothing called 'crash.healed' happened"),
    ("recovery_time", "2s", lambda: Story().round(1, TWO).step(1, 0, 1).fault("crash"), INVALID,
     "after crash, no later round made progress"),
    ("recovery_time", "2s", lambda: same_moment(2), VALID, "recovered in 0.03 s"),
    ("recovery_time", "2s", lambda: crashed().wait(9.0).round(3, TWO).steps(3, 1, 1), VALID,
     "recovered in 0.59 s"),
    ("recovery_time", "2s",
     lambda: Story().round(1, ["n1"]).fault("a").gone(1).wait(1.0).fault("b").round(2, ["n1"])
     .steps(2, 1, 1), VALID, "recovered in 1.07 s"),
    # --- progress ---
    ("progress", 4, crashed, VALID, "every rank of round 2 completed 4 steps"),
    ("progress", 5, crashed, INVALID, "rank 0 completed 4 steps in round 2, 5 were expected"),
    ("progress", 1, lambda: Story().hello(1, "n1", 0, 2).step(1, 0, 1), UNKNOWN, "no round formed"),
    ("progress", {"steps": 2, "after": "crash"}, lambda: same_moment(2), VALID,
     "every rank of round 2 completed 2 steps"),
    # --- recovered ---
    ("recovered", None, lambda: Story().hello(1, "n1", 0, 2).fault("crash"), UNKNOWN,
     "no round formed"),
    ("recovered", None,
     lambda: Story().round(1, ["n1"]).fault("crash").step(1, 0, 1, began_at=200.0), VALID,
     "every rank of round 1 got on after crash (fault_effective)"),
    ("recovered", None, lambda: Story().round(1, ["n1"]).fault("crash"), INVALID,
     "after crash (fault_effective), 0 of 1 ranks of round 1, the last one, completed a step"),
    ("recovered", None, lambda: effective_then_step(0.0), VALID,
     "every rank of round 1 got on after crash (fault_effective)"),
    ("recovered", None, lambda: effective_then_step(-0.001), INVALID,
     "after crash (fault_effective), 0 of 1 ranks of round 1, the last one, completed a step"),
    # --- rank_stability ---
    ("rank_stability", None,
     lambda: Story().round(1, TWO).gone(1).round(2, ["n0", *TWO]), INVALID,
     ("n0 came into round 2 before nodes that were there, in front of all, "
      "where no node had left")),
    ("rank_stability", None,
     lambda: Story().round(1, TWO).gone(1).round(2, ["n1", "n0", "n2"]), INVALID,
     "n0 came into round 2 before nodes that were there, after n1, where no node had left"),
    ("rank_stability", None, lambda: Story().round(1, TWO).gone(1).round(2, [*TWO, "n0"]), VALID,
     "ranks kept their order over 2 rounds"),
)  # fmt: skip


@pytest.mark.parametrize(("name", "value", "make", "outcome", "reason"), ROWS)
def test_each_boundary_has_a_history_on_both_of_its_sides(
    name: str, value: object, make: Callable[[], Story], outcome: Outcome, reason: str
) -> None:
    """The verdict, and the sentence that says why."""
    verdict = bind(name, value).run(make().history)
    assert (verdict.outcome, verdict.reason) == (outcome, reason)


_UP, _CRASH = NodeStarted(address="", incarnation=1), NodeStopped(cause="crash")
_TEARDOWN = NodeStopped(cause="teardown")
_LAUNCHER = ProcessStarted(pid=2, role="launcher", argv=())
_END, _LOOK = RunEnded(outcome="failed"), SurvivorsSought(nodes=("n1",))


@pytest.mark.parametrize(
    ("later", "expected"),
    [
        ((_CRASH, _UP, _LAUNCHER, _END, _LOOK), VALID),  # what was there went with the node
        ((_LAUNCHER, _END, _LOOK), UNKNOWN),  # the node is the same
        ((_CRASH, _UP, replace(_LAUNCHER, role="other"), _END, _LOOK), UNKNOWN),
        ((_END, _UP, _LAUNCHER, _LOOK), UNKNOWN),  # what comes after the end says nothing
        ((_END, _UP, _LOOK), UNKNOWN),
        ((_CRASH, _END, _UP, _LOOK), VALID),
        ((_TEARDOWN, _END, _LOOK), VALID),
        # The teardown stops nodes that were up: what was left on them has to be looked for.
        ((_END, _TEARDOWN, _LOOK), UNKNOWN),
        ((_CRASH, _END, _TEARDOWN, _LOOK), VALID),
        ((_CRASH, _UP, _END, _TEARDOWN, _LOOK), UNKNOWN),
        # A notice may be over just as the run ends: the power goes before the last search.
        ((_END, _CRASH, _LOOK), VALID),
        ((_END, _LOOK, _CRASH), UNKNOWN),
        ((_END, _LOOK, _CRASH, _LOOK), VALID),
        ((_END, _CRASH), UNKNOWN),  # there was no search
    ],
)
def test_what_a_launcher_left_went_with_its_node_or_has_to_be_looked_for(
    later: Sequence[Event], expected: Outcome
) -> None:
    """A launcher on n2 has ended; n2 itself is not looked at."""
    story = Story().tell("cluster", "n2", _UP).tell("cluster", "n2", replace(_LAUNCHER, pid=1))
    story.launcher_exits({"n2": 1})
    for event in later:
        is_of_node = isinstance(event, NodeStarted | NodeStopped | ProcessStarted)
        story.tell("cluster", "n2" if is_of_node else "", event)
    verdict = bind("no_survivors").run(story.history)
    assert verdict.outcome is expected, verdict.reason
    assert (verdict.reason == "what was left on n2 was never looked at") is (expected is UNKNOWN)


@pytest.mark.parametrize(
    ("name", "value", "make", "seqs"),
    [
        # The late step, and the first steps of the round that it is too late for.
        ("one_world", None, lambda: late_step(2, after=2), (9, 8)),
        ("one_world", None, between, (14, 9)),
        (
            "no_overlap",
            None,
            lambda: Story().hello(1, "n1", 0, 1).hello(2, "n1", 0, 1, alive_before=(1001, 7)),
            (2, 3),
        ),
        ("workers_observed", None, lambda: Story().hello(1, "n1", 0, 2).steps(1, 1, 2), (4,)),
        (
            "workers_observed",
            None,
            lambda: Story().hello(1, "n1", 0, 3).hello(1, "n2", 1, 3).step(1, 0, 1).step(1, 1, 1),
            (5,),
        ),
        ("ranks", None, lambda: Story().end("stopped"), (2,)),
        ("job", "succeeded", lambda: ended("failed", {}, "why"), (2, 3)),
        ("job", "succeeded", lambda: swallowed("failed", "n1"), (3, 7)),
        ("job", "succeeded", dead, (15, 20)),
        ("recovered", None, dead, (15, 20)),
        ("restarts", 1, lambda: Story().round(1, ["n1"]).gone(1).round(2, ["n1"]), (4,)),
        ("progress", 3, lambda: Story().round(1, ["n1"]).steps(1, 1, 2), (2, 5)),
        ("recovery_time", "2s", lambda: same_moment(2), (7, 12)),
        ("no_strays", None, lambda: left_behind("n1", "n2"), (2,)),
        ("no_workers", None, lambda: started(started(Story(), 1, 0), 2, 0), (2,)),
    ],
)
def test_the_records_that_prove_a_verdict_are_the_right_ones(
    name: str, value: object, make: Callable[[], Story], seqs: tuple[int, ...]
) -> None:
    """A person goes to them in the timeline."""
    assert bind(name, value).run(make().history).events == seqs


def test_a_recovery_may_take_exactly_as_long_as_is_allowed() -> None:
    """`at_most` is a limit that may be reached."""
    history = crashed().history
    (fired,) = [entry for entry in history if entry.event.kind == "fault_fired"]
    took = (history.worlds.rounds[1].progressed_at or 0.0) - fired.at
    assert bind("recovery_time", took).run(history).is_valid
    assert not bind("recovery_time", took - 0.001).run(history).is_valid


def test_a_job_that_ended_the_moment_its_last_round_began_had_something_to_recover_from() -> None:
    """Only a round from before the fault may have had nothing left to do."""
    story = Story().round(1, ["n1"]).steps(1, 1, 2).fault("crash").gone(1)
    at = next(each.at for each in story.records if each.event.kind == "fault_effective")
    end, story.at = story.at, at
    story.hello(2, "n1", 0, 1)
    story.at = end
    assert bind("recovered").run(story.end().history).outcome is UNKNOWN


REFUSED: tuple[tuple[str, object], ...] = (
    ("exit_codes", -65),
    ("exit_codes", 256),
    ("exit_codes", {"n1": 256}),
    ("restarts", {"exactly": 1, "at_least": 1}),
    ("restarts", {"exactly": 1, "at_most": 1}),
    ("restarts", -1),
    ("restarts", {"at_least": -1}),
    ("restarts", {"at_most": -1}),
    ("restarts", {"at_least": 2, "at_most": 1}),
    ("world_sizes", []),
    ("world_sizes", [2, 0]),
    ("progress", 0),
)
TAKEN: tuple[tuple[str, object], ...] = (
    ("exit_codes", -64),
    ("exit_codes", 255),
    ("restarts", 0),
    ("restarts", {"at_least": 1}),
    ("restarts", {"at_most": 0}),
    ("restarts", {"at_least": 1, "at_most": 1}),
    ("restarts", {"at_least": 1, "at_most": 2}),
    ("world_sizes", [1]),
    ("progress", 1),
)


def test_no_world_at_all_is_refused_as_such() -> None:
    """With the same words as a world of nobody."""
    for sizes in ([], [0]):
        with pytest.raises(UsageError, match="one world or more is expected"):
            bind("world_sizes", sizes)


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_what_no_run_can_be_is_refused(name: str, value: object) -> None:
    """Before anything runs, and as a mistake of the clause."""
    with pytest.raises(UsageError, match=name):
        bind(name, value)


@pytest.mark.parametrize(("name", "value"), TAKEN)
def test_what_a_run_can_just_be_is_taken(name: str, value: object) -> None:
    """The other side of each bound."""
    assert bind(name, value).name == name


def test_occurrences_and_invariants_are_known_as_such() -> None:
    """`sometimes` and `never` ask for occurrences; invariants are on by default."""
    checkers = [STANDARD.find(name) for name in STANDARD.names]
    assert [c.name for c in checkers if c.is_occurrence] == ["split_brain", "rank_reassigned"]
    assert [c.name for c in checkers if c.may_be_seen] == ["log_contains"]
    once = {"job", "exit_codes", "restarts", "world_sizes"}
    assert {c.name for c in checkers if c.is_said_once} == once
    assert {c.name for c in checkers if not c.needs_workers} == {
        *("no_survivors", "faults_effective", "ends_in_time", "switch_clean", "no_workers"),
        *("job", "exit_codes", "log_contains", "consistent"),
    }
    assert {c.name for c in checkers if c.needs_end} == {
        *("no_survivors", "ends_in_time", "no_workers", "job", "exit_codes"),
        *("parameters", "optimizer", "loss"),
    }
    assert [c.name for c in checkers if c.is_default] == [
        "ranks", "agreement", "one_world", "no_overlap", "budget", "membership", "no_survivors",
        "faults_effective", "ends_in_time", "workers_observed", "switch_clean", "consistent",
    ]  # fmt: skip
