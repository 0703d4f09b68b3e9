"""The Python face of a run: a job that a test starts, disturbs, waits for and asks questions.

It is the same engine and the same timeline as a scenario file's. A job starts at its first wait (or
at `start()`), so that what is pinned to a step beforehand is pinned exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from elastic_harness.finding import did_you_mean
from elastic_harness.future import Future
from elastic_harness.history.checkers.library import STANDARD
from elastic_harness.history.checkers.registry import Registry
from elastic_harness.history.checkers.training import losses, why_no_step
from elastic_harness.history.history import History
from elastic_harness.history.judge import Judgement, judge_checks
from elastic_harness.history.verdict import Verdict
from elastic_harness.history.worlds import World
from elastic_harness.scenario.engine import messages as m
from elastic_harness.scenario.model import STORM_ID, Entry, Eventually, Storm
from elastic_harness.scenario.reading.loader import read_clause, read_entry, read_storm
from elastic_harness.scenario.runner import RunResult
from elastic_harness.session import OpenRun
from pytest_elastic.errors import UsageError

if TYPE_CHECKING:
    from elastic_harness.faults.registry import FaultRegistry

__all__ = ["Chaos", "CheckResult", "Injected", "Job", "JobOutcome", "NotSeen"]


# Starts the run of a job whose timeline begins with some entries.
Starter = Callable[[Sequence[Entry]], OpenRun]
# Draws the faults of a storm that is called so; raises UsageError for what cannot be drawn.
StormDrawer = Callable[[Storm, str], Sequence[Entry]]


class NotSeen(AssertionError):
    """What a test waited for did not come; the message says what was last seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Injected:
    """A fault on the timeline, to be waited for with `after=`."""

    id: str
    job: Job

    @property
    def healed(self) -> str:
        """The moment when it has been undone, for `after=`."""
        return f"{self.id}.healed"

    def heal(self) -> Injected:
        """Undo it now (twice is harmless); returns the healing, which fails if it never acted."""
        return self.job.add({"at": "0s"}, "heal", self.id)

    def __str__(self) -> str:
        return self.id


class JobOutcome:
    """How a job ended, as `RunResult` has it; true only if it succeeded.

    `results` is what a function returned, by rank. A test that looks at anything else of it has its
    own opinion of how the job should end; else the job has to succeed.
    """

    def __init__(self, result: RunResult, results: Mapping[int, Any]) -> None:
        self._result = result
        self.results = results
        self.was_looked_at = False

    def __bool__(self) -> bool:
        return self.succeeded

    def __repr__(self) -> str:
        return f"<job {self._result.outcome}: {self._result.reason}>"

    @property
    def succeeded(self) -> bool:
        """Whether every launcher that counts ended with success."""
        return self._look().outcome == "succeeded"

    @property
    def outcome(self) -> str:
        """How it ended: succeeded, failed, drained, limit ... (see `RunEnded`)."""
        return self._look().outcome

    @property
    def reason(self) -> str:
        """Why the run was over then."""
        return self._look().reason

    @property
    def exit_codes(self) -> Mapping[str, int]:
        """The exit code of each node's launcher; negative: ended by that signal."""
        return self._look().exit_codes

    def _look(self) -> RunResult:
        self.was_looked_at = True
        return self._result


class CheckResult:
    """What `Job.check` found; true only if it is valid.

    One whose result is not used is asked of the job once more when the test is over: it must hold.
    """

    def __init__(self, clause: str, expected: object, judgement: Judgement) -> None:
        self.clause = clause
        self.expected = expected
        self._judgement = judgement
        self.was_looked_at = False

    def __bool__(self) -> bool:
        return self.verdict.is_valid

    def __repr__(self) -> str:
        return repr(self._judgement)

    @property
    def verdict(self) -> Verdict:
        """The verdict: its `outcome`, its `reason`, and the records that prove it."""
        self.was_looked_at = True
        return self._judgement.verdict


class Job:
    """One job of a test; a `within` is text with a unit ("10s") or seconds: from now or `after`."""

    def __init__(
        self,
        start: Starter,
        catalog: FaultRegistry,
        *,
        draw: StormDrawer,
        name: str = "",
        read_results: Callable[[History], Mapping[int, Any]] = lambda _: {},
        checkers: Registry = STANDARD,
        says_how_it_ends: bool = False,
        add_reference: Callable[[], None] = lambda: None,
        check: Callable[[Sequence[Entry]], object] = lambda _: None,
    ) -> None:
        self._starter = start
        self._check = check
        self._checkers = checkers
        self._says_how_it_ends = says_how_it_ends
        self._add_reference = add_reference
        self._outcome: JobOutcome | None = None
        self._checked: list[CheckResult] = []
        self._catalog = catalog
        self._draw = draw
        self._read_results = read_results
        self._entries: list[Entry] = []
        self._open: OpenRun | None = None
        self._result: RunResult | None = None
        self._names = 0
        self._name = name

    def __repr__(self) -> str:
        parts = [f"Job {self._name}".rstrip()]
        if self._result is not None:
            parts.append(self._result.outcome)
        elif self._open is None:
            parts.append("not started")
        else:
            parts.append("running")
        if self._open is not None:
            parts.append(f"world sizes {list(self.world_sizes)}")
        return f"<{', '.join(parts)}>"

    def start(self) -> Job:
        """Start the job now; harmless when it has started."""
        if self._open is None:
            self._open = self._starter(tuple(self._entries))
        return self

    @property
    def is_started(self) -> bool:
        """Tell whether the job has been started."""
        return self._open is not None

    @property
    def result(self) -> RunResult | None:
        """The judged run, once it is over."""
        return self._result

    # Waiting

    def wait(self) -> JobOutcome:
        """Wait for the job to end and return how; faults that do not end by themselves stay."""
        run = self._started()
        if self._result is None:
            run.thread.call(lambda: run.run.tell(m.TimelineClosed()))
            self._result = run.wait()
        if self._outcome is None:
            result = self._result
            self._outcome = JobOutcome(result, self._read_results(result.history))
        return self._outcome

    def wait_for_round(
        self, round: int, *, within: str | float = "10s", after: Injected | str | None = None
    ) -> World:
        """Wait until the job's n-th round (from 1) has formed, or a later one; raises NotSeen.

        With `after`, one that had formed before that fault does not count.
        """
        self._wait_for({"round": round}, within, after)
        return self.round(round)

    def wait_for_world_size(
        self, world_size: int, *, within: str | float = "10s", after: Injected | str | None = None
    ) -> None:
        """Wait until the job makes progress with so many workers; raises NotSeen."""
        self._wait_for({"world_size": world_size}, within, after)

    def wait_for_progress(
        self, steps: int = 1, *, within: str | float = "10s", after: Injected | str | None = None
    ) -> None:
        """Wait until every rank has completed so many more steps; raises NotSeen."""
        self._wait_for({"progress": {"steps": steps}}, within, after)

    def wait_for_event(
        self,
        event: str,
        *,
        within: str | float = "10s",
        after: Injected | str | None = None,
        **fields: object,
    ) -> None:
        """Wait for an event of the history, by kind and fields; raises NotSeen."""
        self._wait_for({"event": event, **fields}, within, after)

    # Disturbing by chance

    def storm(
        self,
        *,
        faults: Sequence[str] = ("worker", "node", "network"),
        max: int = 5,
        over: str = "10s",
        steps: int | None = None,
        seed: int | None = None,
        exclude: Sequence[str] = ("store host",),
        id: str = STORM_ID,
    ) -> Sequence[Injected]:
        """Let chance disturb the job, as `storm` of a scenario file does; returns the faults drawn.

        The session's seed draws them, if none is given. They come `over` a time that begins with
        the job's first step from now on, or, with `steps`, each at a step up to that one. Where the
        storm is asked for before the job starts, the job must have recovered at the end. Raises
        UsageError.
        """
        asked = read_storm(
            {
                "faults": tuple(faults),
                "max": max,
                "over": over,
                "steps": steps,
                "seed": seed,
                "exclude": tuple(exclude),
            }
        )
        drawn = self._draw(asked, id)
        for entry in drawn:
            self._add_entry(entry)
        return [Injected(id=str(entry.id), job=self) for entry in drawn[1:]]

    # What has been seen

    @property
    def history(self) -> History:
        """Everything that happened, in one order. It may still grow while the job runs."""
        return self._result.history if self._result else self._started().run.history

    @property
    def rounds(self) -> Sequence[World]:
        """The rounds so far, as their workers showed them."""
        return tuple(self.history.worlds.rounds)

    def round(self, number: int) -> World:
        """Return the n-th round (from 1); raises NotSeen if there was none."""
        world = self.history.worlds.find(number)
        if world is None:
            raise NotSeen(f"there was no round {number}: the job had {len(self.rounds)}")
        return world

    @property
    def world_sizes(self) -> Sequence[int]:
        """The world size of each round."""
        return [world.world_size for world in self.rounds]

    @property
    def restarts(self) -> int:
        """How many restarts the newest round was told."""
        return (self.rounds[-1].restart_count or 0) if self.rounds else 0

    @property
    def steps_lost(self) -> int:
        """How many steps were done more than once, because of a resume.

        Raises NotSeen where steps are counted per process only, with what can be done about it.
        """
        found = losses(self.history)
        if found is None:
            raise NotSeen(why_no_step(self.history))
        return sum(loss.steps for loss in found)

    def check(self, clause: str, value: object = None) -> CheckResult:
        """Judge the history so far by a clause: `assert job.check("restarts", 1)`.

        Clauses are those of scenario files. A result that the test does not look at must be valid
        at the end, as if it were asserted.
        """
        check = self._checkers.bind(clause, value)
        if self._result is not None and check.checker.needs_reference(check.parameters):
            self._add_reference()
        (judgement,) = judge_checks(self.history, [check])
        self._checked.append(CheckResult(clause, value, judgement))
        return self._checked[-1]

    @property
    def asked(self) -> Sequence[tuple[str, object]]:
        """What must hold in the end, beside what holds for every run: clauses and expectations.

        Those are checks whose result was not used; and success, if the job ended by itself and the
        test did not look at how.
        """
        unseen = [each for each in self._checked if not each.was_looked_at]
        found = [(each.clause, each.expected) for each in unseen]
        is_over = self._result is not None and self._result.outcome != "stopped"
        is_seen = self._outcome is not None and self._outcome.was_looked_at
        has_said = self._says_how_it_ends or any(
            each.clause in ("job", "exit_codes") for each in self._checked
        )
        return found if is_seen or has_said or not is_over else [("job", "succeeded"), *found]

    def log(self, node: str) -> str:
        """Return what the launcher of a node and its workers have printed so far."""
        return self._started().run.stage.printed(node)

    # For `Chaos` and the fixtures

    def add(
        self, trigger: Mapping[str, object], action: str, value: object, **more: object
    ) -> Injected:
        """Put a fault on the timeline; raises UsageError for what no scenario could say."""
        entry_id = str(more.pop("id", None) or self._next_name(action))
        fields = {"id": entry_id, **trigger, action: value}
        fields.update({key: item for key, item in more.items() if item is not None})
        self._add_entry(read_entry(fields, self._catalog))
        return Injected(id=entry_id, job=self)

    def value_of(
        self, action: str, value: object, parameters: Mapping[str, object]
    ) -> Mapping[str, object]:
        """Return parameters with what a bare value beside them stands for; raises UsageError."""
        name = self._catalog.shorthand(action)
        if value is None:
            return parameters
        if name is None or name in parameters:
            raise UsageError(f"`{action}` was given {value!r} beside parameters: as which one?")
        return {name: value, **parameters}

    def finish(self) -> RunResult | None:
        """End the job if it still runs and return its judged run; None if it never started."""
        if self._open is None:
            return None
        if self._result is None:
            self._result = self._open.stop("the test ended")
        return self._result

    def _add_entry(self, entry: Entry) -> None:
        if self._open is not None:  # else all are checked together at the start
            self._check((*self._entries, entry))
            run = self._open.run
            self._open.thread.call(lambda: run.tell(m.EntryAdded(entry=entry)))
        self._entries.append(entry)

    def _started(self) -> OpenRun:
        self.start()
        assert self._open is not None, "a started job has a run"
        return self._open

    def _next_name(self, action: str) -> str:
        self._names += 1
        return f"{action}-{self._names}"

    def _wait_for(
        self, condition: Mapping[str, object], within: str | float, after: Injected | str | None
    ) -> None:
        known = [str(entry.id) for entry in self._entries]
        clause = _read_wait(condition, within, None if after is None else str(after), known)
        opened = self._started()
        self._names += 1
        key = f"wait-{self._names}"
        run = opened.run

        def begin() -> Future[Verdict | None]:
            seen: Future[Verdict | None] = Future()

            def look() -> None:
                found = next((each for each in run.engine.clauses if each.key == key), None)
                if found is not None and found.verdict is not None:
                    seen.settle(found.verdict)
                elif run.is_over:
                    seen.settle(None)

            run.listen(look)
            run.tell(m.ClauseAdded(key=key, clause=clause))
            return seen

        verdict = opened.thread.wait(begin, timeout_s=opened.limit_s + clause.within)
        if verdict is None or not verdict.is_valid:
            raise NotSeen(verdict.reason if verdict is not None else f"{clause}: the run is over")


def _read_wait(
    condition: Mapping[str, object],
    within: str | float,
    after: str | None,
    entries: Collection[str],
) -> Eventually:
    """Return the clause; raises UsageError, also for an `after` that is none of `entries`.

    `within` is text with a unit, or a number of seconds.
    """
    seconds = float(within) if type(within) is int else within
    moment = {} if after is None else {"after": after}
    clause = read_clause({**condition, "within": seconds, **moment})
    if clause.after is not None and clause.after.id not in entries:
        name = clause.after.id
        raise UsageError(
            f"after={after!r}: this job has no fault {name!r}", hint=did_you_mean(name, entries)
        )
    return clause


class _Trigger:
    """A trigger that waits for its fault: `chaos.at(step=22, rank=1).kill("rank 1")`."""

    def __init__(self, job: Callable[[], Job], trigger: Mapping[str, object]) -> None:
        self._job = job
        self._trigger = trigger

    def inject(
        self,
        action: str,
        value: object = None,
        *,
        id: str | None = None,
        lasting: str | None = None,
        optional: bool = False,
        **parameters: object,
    ) -> Injected:
        """Put a fault there by name, with its shorthand value, its parameters, or both.

        `lasting` is how long it is in force before it is healed (`for` in scenario files).
        """
        extra: dict[str, object] = {"id": id, "for": lasting}
        if optional:
            extra["optional"] = True
        job = self._job()
        chosen = {} if value is None else value  # without any value, each has its default
        if parameters:
            chosen = job.value_of(action, value, parameters)
        return job.add(self._trigger, action, chosen, **extra)

    def __getattr__(self, action: str) -> Callable[..., Injected]:
        """Return the fault of that name as a method; `raise_` is the fault `raise`."""
        if action.startswith("_"):
            raise AttributeError(action)
        name = action.removesuffix("_")
        return lambda value=None, **more: self.inject(name, value, **more)


class Chaos:
    """Puts faults on the timeline of a test's job."""

    def __init__(self, job: Callable[[], Job]) -> None:
        self._job = job

    def at(
        self,
        time: str | None = None,
        *,
        step: int | None = None,
        rank: int = 0,
        round: int | None = None,
    ) -> _Trigger:
        """Choose a time from the start ("3s"), or when a rank has done a step (of a round)."""
        if (time is None) == (step is None):
            raise UsageError("at() takes either a time, at('3s'), or a step, at(step=20, rank=1)")
        if step is None:
            return _Trigger(self._job, {"at": time})
        place = {"step": step, "rank": rank, **({"round": round} if round is not None else {})}
        return _Trigger(self._job, {"at": place})

    def when(self, **condition: object) -> _Trigger:
        """Choose when a condition holds: `when(stable={"world_size": 4, "steps": 5})`."""
        return _Trigger(self._job, {"when": condition})

    def after(self, other: Injected | str, delay: str = "0s") -> _Trigger:
        """Choose the time ("500ms") after another fault has taken effect (or `other.healed`)."""
        return _Trigger(self._job, {"after": f"{other} + {delay}"})

    def storm(self, **settings: Any) -> Sequence[Injected]:  # noqa: ANN401 (those of Job.storm)
        """Let chance disturb the job: see `Job.storm`."""
        return self._job().storm(**settings)

    def now(self) -> _Trigger:
        """Choose this moment."""
        return _Trigger(self._job, {"at": "0s"})
