"""The verdict on a run: what was planned, what was found, and whether the harness did its part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from elastic_harness.history.checkers import Check, Checker, NoParameters, Registry, checker
from elastic_harness.history.checkers.registry import as_text
from elastic_harness.history.events import (
    ClauseJudged,
    ClausePlanned,
    FaultIneffective,
    FaultPlanned,
    HarnessFailed,
    PythonTestFailed,
    RunClosed,
    RunEnded,
)
from elastic_harness.history.history import History
from elastic_harness.history.judge import judge, overall, unmet
from elastic_harness.history.verdict import Outcome, Verdict, invalid, unknown, valid

from pytest_elastic.errors import UsageError
from tests.unit.history.story import Story


def run(*, ends: bool = True, closes: bool = True, planned: int | None = None) -> Story:
    """A run of which one clause is asked, which nobody judges while it runs."""
    story = Story()
    story.tell(
        "engine", "", ClausePlanned(key="a", bucket="finally", text="a", checker="switch_clean")
    )
    if ends:
        story.tell("engine", "", RunEnded(outcome="succeeded", planned=planned))
    if closes:
        story.tell("engine", "", RunClosed(digest=""))
    return story


def asked(
    *found: str, optional: bool = False, reason: str = "", proof: tuple[int, ...] = ()
) -> Story:
    """A run of which a clause is asked that is judged while it runs, and what was found."""
    story = Story()
    clause = ClausePlanned(key="a", bucket="eventually", text="a", is_optional=optional)
    story.tell("engine", "", clause)
    for outcome in found:
        judged = ClauseJudged(key="a", text="a", outcome=outcome, reason=outcome, proof=proof)
        story.tell("engine", "", judged)
    story.tell("engine", "", RunEnded(outcome="limit", reason=reason))
    return story.tell("engine", "", RunClosed(digest=""))


def with_damage() -> History:
    """A file whose last line is torn."""
    history = run().history
    history.damage = "line 9 is torn"
    return history


def before_the_end(story: Story, event: ClausePlanned | FaultPlanned | HarnessFailed) -> Story:
    """Tell something before the run ends."""
    place = next(n for n, each in enumerate(story.records) if isinstance(each.event, RunEnded))
    Story.tell(story, "engine", "", event)
    story.records.insert(place, story.records.pop())
    return story


SECOND = ClausePlanned(key="b", bucket="finally", text="b", checker="switch_clean")
TURNED = ClausePlanned(key="b", bucket="never", text="b", is_negated=True, is_optional=True)
AGAIN = ClausePlanned(key="a", bucket="", text="a", checker="ranks")
FAULT = FaultPlanned(id="crash", fault="kill")


@pytest.mark.parametrize(
    ("history", "outcome", "reason"),
    [
        (run().history, Outcome.VALID, "nothing failed, and all is undone"),
        (run(planned=1).history, Outcome.VALID, "nothing failed, and all is undone"),
        (
            before_the_end(before_the_end(run(planned=3), SECOND), FAULT).history,
            Outcome.VALID,
            "nothing failed, and all is undone",
        ),
        (
            run(planned=2).tell("engine", "", SECOND).history,
            Outcome.UNKNOWN,
            "2 clauses and faults were planned, and 1 are known",
        ),
        (
            before_the_end(run(planned=1), FAULT).history,
            Outcome.UNKNOWN,
            "1 clauses and faults were planned, and 2 are known",
        ),
        (
            before_the_end(run(), AGAIN).history,
            Outcome.UNKNOWN,
            "a was planned 2 times",
        ),
        (asked("valid", "valid").history, Outcome.UNKNOWN, "a was judged 2 times"),
        (
            before_the_end(run(), TURNED).history,
            Outcome.UNKNOWN,
            "b is turned round, and no checker judges it",
        ),
        (
            before_the_end(run(), HarnessFailed(what="it broke")).history,
            Outcome.UNKNOWN,
            "it broke",
        ),
        (with_damage(), Outcome.UNKNOWN, "the history is damaged: line 9 is torn"),
        (
            Story().tell("engine", "", RunEnded(outcome="succeeded"))
            .tell("engine", "", RunClosed(digest="")).history,
            Outcome.UNKNOWN,
            "the history does not say what was to hold",
        ),
        (
            run(ends=False).history,
            Outcome.UNKNOWN,
            "the history has no end: the harness was stopped before",
        ),
        (
            run(closes=False).history,
            Outcome.UNKNOWN,
            "the history ends before everything was undone",
        ),
    ],
)  # fmt: skip
def test_the_harness_did_its_part_or_the_run_is_unknown(
    history: History, outcome: Outcome, reason: str
) -> None:
    """Whatever the clauses say."""
    found = judge(history)[-1]
    assert (found.key, found.verdict.outcome, found.verdict.reason) == ("harness", outcome, reason)
    assert overall(judge(history)).outcome is outcome


@pytest.mark.parametrize(
    ("story", "outcome", "reason", "events"),
    [
        (asked("valid"), Outcome.VALID, "valid", (3,)),
        (asked("invalid"), Outcome.INVALID, "invalid", (3,)),
        (asked("unknown"), Outcome.UNKNOWN, "unknown", (3,)),
        (asked("invalid", optional=True), Outcome.INVALID, "invalid", (3,)),
        (asked("invalid", proof=(1, 2)), Outcome.INVALID, "invalid", (1, 2)),
        (asked(optional=True), Outcome.VALID, "it was optional, and never reached", ()),
        (asked(), Outcome.UNKNOWN, "it was never reached: the run ended first (limit)", ()),
        (
            asked(reason="n1 hung"),
            Outcome.UNKNOWN,
            "it was never reached: the run ended first (n1 hung)",
            (),
        ),
    ],
)
def test_a_clause_is_what_was_found_of_it_while_the_job_ran(
    story: Story, outcome: Outcome, reason: str, events: tuple[int, ...]
) -> None:
    """One that was never reached proves nothing, save that nobody needs it."""
    verdict = judge(story.history)[0].verdict
    assert (verdict.outcome, verdict.reason, verdict.events) == (outcome, reason, events)


def test_a_clause_that_is_turned_round_is_the_checkers_business_where_one_judges_it() -> None:
    """The harness did its part."""
    turned = ClausePlanned(key="b", bucket="never", text="b", checker="ranks", is_negated=True)
    assert judge(before_the_end(run(), turned).history)[-1]


def test_a_clause_without_an_end_of_the_run_was_never_reached() -> None:
    """The history says why, as far as it knows."""
    story = asked()
    del story.records[-2:]
    found = judge(story.history)[0].verdict
    assert found.reason == "it was never reached: the history has no end"


def _planned(name: str, *, is_negated: bool = False) -> History:
    story = Story()
    planned = ClausePlanned(key="a", bucket="never", text="a", checker=name, is_negated=is_negated)
    story.tell("engine", "", planned)
    return story.history


def test_a_clause_that_a_checker_judges_is_judged_by_the_whole_history() -> None:
    """What the checker says, or the opposite; a checker that is not known says nothing."""
    assert judge(_planned("switch_clean"))[0].verdict.outcome is Outcome.VALID
    turned = judge(_planned("switch_clean", is_negated=True))[0].verdict
    assert turned.outcome is Outcome.INVALID
    strange = judge(_planned("strange"))[0].verdict
    assert strange.outcome is Outcome.UNKNOWN
    assert strange.reason.startswith("no checker is called 'strange'")


def test_a_test_that_failed_by_itself_makes_its_run_invalid() -> None:
    """With the reason that it gave."""
    story = run().tell("engine", "", PythonTestFailed(test="test_a", reason="1 != 2"))
    (found,) = [each for each in judge(story.history) if each.key == "test"]
    assert (found.verdict.outcome, found.verdict.reason) == (Outcome.INVALID, "1 != 2")


def test_the_invalid_judgements_are_shown_first_and_with_their_bucket_where_that_says_more() -> (
    None
):
    """`never: a` asks for the opposite of `a`; `finally: a` asks for `a`."""
    story = asked("unknown")
    story.tell("engine", "", ClausePlanned(key="b", bucket="finally", text="b"))
    story.tell("engine", "", ClauseJudged(key="b", text="b", outcome="invalid", reason="no"))
    found = unmet(judge(story.history))
    assert [each.title for each in found] == ["b", "eventually: a"]
    assert overall(judge(story.history)).reason == "b: no"


# --- checkers of one's own -----------------------------------------------------------------------


@checker("mine", NoParameters)
def mine(history: History, _: NoParameters) -> Verdict:
    """First line.

    Last line.
    """
    return valid("yes")


def test_a_checker_of_ones_own_is_on_request_and_says_what_its_first_line_says() -> None:
    """Defaults and occurrences are declared."""
    assert mine.summary == "First line."
    assert (mine.is_default, mine.is_occurrence, mine.shorthand) == (False, False, None)
    plain = checker("plain", NoParameters)(lambda *_: unknown("nothing"))
    assert plain.summary == "plain"
    bare = Checker(name="bare", summary="", parameters=NoParameters, check=mine.check)
    for each in (plain, bare):
        flags = (each.is_default, each.is_occurrence, each.may_be_seen, each.is_said_once)
        assert (flags, each.needs_workers) == ((False,) * 4, True)
    check = Check(name="bare", text="", checker=bare, parameters=NoParameters())
    assert check.run(History()).is_valid
    registry = Registry((mine, plain))
    assert registry.default_checks() == ()
    assert registry.bind("mine").run(History()).is_valid
    with pytest.raises(UsageError):
        registry.default_checks(without=("mine",))


def test_a_dataclass_of_parameters_is_taken_with_a_warning() -> None:
    """As in release 0.1: with its own checks of values, its methods, and lists for tuples."""

    @dataclass(frozen=True, kw_only=True)
    class Old:
        sizes: tuple[int, ...]
        most: int = 3

        def __post_init__(self) -> None:
            if len(self.sizes) > self.most:
                raise ValueError("too many")

        def total(self) -> int:
            return sum(self.sizes)

    match = "the parameters of the checker 'old' are a dataclass"
    with pytest.warns(DeprecationWarning, match=match) as told:
        old = checker("old", Old, shorthand="sizes")(  # type: ignore[type-var]
            lambda _, asked: valid(str(asked.total()))
        )
    assert told[0].filename == __file__
    registry = Registry((old,))
    assert registry.bind("old", [1, 2]).run(History()).reason == "3"
    with pytest.raises(UsageError, match="old: too many"):
        registry.bind("old", {"sizes": [1, 2], "most": 1})
    with pytest.raises(UsageError, match=r"unknown key 'mast' \(did you mean 'most'"):
        registry.bind("old", {"sizes": [1], "mast": 1})


def test_a_checker_that_returns_something_else_says_unknown() -> None:
    """A user's may return anything."""
    wrong: Callable[..., Verdict] = lambda *_: True  # type: ignore[assignment] # noqa: E731
    verdict = Registry((checker("wrong", NoParameters)(wrong),)).bind("wrong").run(History())
    assert verdict.outcome is Outcome.UNKNOWN
    assert verdict.reason == "the checker wrong returned True: a Verdict is expected"


def test_a_check_that_is_turned_round_says_the_opposite() -> None:
    """Unknown stays unknown."""
    for made, expected in (
        (valid, Outcome.INVALID),
        (invalid, Outcome.VALID),
        (unknown, Outcome.UNKNOWN),
    ):
        each = checker("each", NoParameters)(lambda *_, made=made: made("so"))
        assert Registry((each,)).bind("each", is_negated=True).run(History()).outcome is expected
        assert Registry((each,)).bind("each").run(History()).outcome is made("so").outcome


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "mine"),
        (True, "mine"),
        ({}, "mine: {}"),
    ],
)
def test_a_clause_is_shown_as_a_person_writes_it(value: object, text: str) -> None:
    """A bare name is a bare name."""
    assert Registry((mine,)).bind("mine", value).text == text
    assert (
        as_text({"a": True, "b": [1, (2, "x")], "c": False})
        == "{a: true, b: [1, [2, x]], c: false}"
    )


def test_what_is_not_met_where_a_run_is_broken_off_is_unknown() -> None:
    """What the fault's crash has prevented is not the job's doing; the fault is shown first."""
    story = Story()
    for name, expected in (("ends_in_time", True), ("restarts", 1), ("faults_effective", True)):
        planned = ClausePlanned(
            key=f"finally.{name}", bucket="finally", text=name, checker=name, expected=expected
        )
        story.tell("engine", "", planned)
    story.hello(1, "n1", 0, 1)
    story.tell("fault", "", FaultIneffective(id="x", reason="it crashed"))
    story.tell("engine", "", RunEnded(outcome="aborted", reason="x: it crashed"))
    story.tell("engine", "", RunClosed(digest=""))
    found = unmet(judge(story.history))
    assert [(each.text, each.verdict.outcome) for each in found] == [
        ("faults_effective", Outcome.UNKNOWN),
        ("ends_in_time", Outcome.UNKNOWN),
        ("restarts", Outcome.UNKNOWN),
    ]
    assert found[0].verdict.reason == "x: it crashed"
