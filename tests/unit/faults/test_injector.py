"""Giving back what was borrowed, and which faults there are."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest
from elastic_harness.cluster.cluster import CAPABILITIES
from elastic_harness.faults.built_in import BUILT_IN
from elastic_harness.faults.context import IN_FORCE, FaultContext, Steps, Until
from elastic_harness.faults.fault import LAYERS, Fault
from elastic_harness.faults.registry import FaultRegistry, built_in_faults
from elastic_harness.faults.workers.worker import KillWorker, WorkerFault
from elastic_harness.scenario.engine.messages import FaultFailed
from elastic_harness.scenario.engine.situation import Targets

from pytest_elastic.errors import UsageError
from tests.unit.faults.bench import World


def test_everything_is_given_back_in_reverse_order() -> None:
    """What was broken last is mended first, and problems are collected."""
    world = World()
    world.fire("pause", {"node": "n3"}, entry_id="first")
    world.fire("partition", "n2", entry_id="second")
    world.pass_time(0.5)
    world.broken.add("lift")
    healed = world.injector.heal_all()
    world.pass_time(5)
    assert world.log[-2:] == ["lift second", "resume n3"]
    assert healed.result() == {"second": "cannot lift second"}


def test_a_fault_that_could_not_be_undone_is_not_said_to_be_and_is_tried_again() -> None:
    """The teardown has another try."""
    world = World()
    world.fire("partition", "n2")
    world.pass_time(0.5)
    world.send("n1", "n2")
    world.pass_time(0.5)
    world.broken.add("lift")
    world.heal()
    world.pass_time(1)
    assert "undone" not in world.story
    world.broken.clear()
    world.injector.heal_all()
    world.pass_time(1)
    assert world.story[-1] == "undone"


def test_giving_back_ends_even_while_a_fault_is_still_being_injected() -> None:
    """A preemption whose notice runs is not waited for."""
    world = World()
    world.fire("preempt", {"node": "n2", "notice": "60s"})
    healed = world.injector.heal_all()
    world.pass_time(0.1)
    assert healed.result() == {}
    # What cannot be undone is not said to be: the node was told to go.
    assert world.story[-1] == (
        "failed: it was healed 0.0 s after it fired, before it was seen to act (shown by: SIGTERM "
        "was delivered, and the launcher has left before the notice was over; or the node was up "
        "until then, and the cluster ended it by this order): give it longer"
    )
    world.pass_time(120)
    assert "power_cut n2" not in world.log


def test_giving_back_nothing_is_done_at_once() -> None:
    """A run without faults has nothing to wait for."""
    assert World().injector.heal_all().result() == {}


# --- the registry -----------------------------------------------------------------------


@pytest.mark.parametrize("fault", BUILT_IN, ids=lambda fault: fault.name)
def test_every_fault_says_what_it_is_and_what_it_needs(fault: type[Fault]) -> None:
    """A name, a layer, a docstring that says what it stands for, a capability that exists."""
    assert fault.layer in LAYERS
    assert fault.__doc__ is not None
    assert "Stands for" in fault.__doc__
    assert built_in_faults().schema(fault.name)["description"]


@pytest.mark.parametrize(
    ("action", "value"),
    [
        ("kill", "rank 1"),
        ("power_cut", "n1"),
        ("preempt", "n1"),
        ("pause", {"node": "n1"}),
        ("partition", "n1"),
        ("degrade", {"loss": "1%"}),
    ],
)
def test_what_a_fault_needs_is_a_capability_that_clusters_know(action: str, value: object) -> None:
    """Or nothing."""
    needs = built_in_faults().parse(action, value).needs
    assert needs is None or needs in CAPABILITIES


@pytest.mark.parametrize(
    ("value", "needs"), [("*.pt", "shared_files"), ({"file": "*.pt", "node": "n1"}, None)]
)
def test_where_a_file_is_to_be_damaged_has_to_be_known(value: object, needs: str | None) -> None:
    """Where machines do not share files, a scenario that names no node is skipped."""
    assert built_in_faults().parse("corrupt", value).needs == needs


@pytest.mark.parametrize(
    ("action", "value"),
    [
        ("disk_full", {"node": "n1", "free": "5MB"}),
        ("disk_full", {"node": "n1", "free": 0}),
        ("disk_error", {"node": "n1", "on": ["read", "sync"]}),
        ("disk_slow", {"node": "n1", "latency": "20ms", "rate": "1MiB"}),
        ("oom", "rank 1"),
        ("memory_limit", {"node": "n1", "size": "1500B"}),
        ("cpu_limit", {"node": "n1", "share": "50%"}),
        ("clock_skew", {"node": "n1", "by": "-90s"}),
        ("hang", {"worker": "rank 1", "how": "gil"}),
        ("slow", {"worker": "rank 1", "share": "12.5%"}),
        ("corrupt", {"file": "/tmp/disk/*.pt", "node": "n1", "how": "flip"}),
        ("slow_store", {"which": "workers", "period": "1s"}),
    ],
)
def test_what_the_history_says_of_a_fault_reads_as_that_fault(action: str, value: object) -> None:
    """Parameters survive the way through plain data."""
    fault = built_in_faults().parse(action, value)
    assert built_in_faults().parse(action, fault.describe()) == fault


def test_a_fault_from_outside_is_known_by_its_name() -> None:
    """And cannot take the name of another."""

    class Nudge(KillWorker):
        """A worker gets SIGUSR1. Stands for a nudge."""

        name = "nudge"

    registry = built_in_faults()
    registry.add(Nudge)
    assert isinstance(registry.parse("nudge", "rank 1"), Nudge)
    with pytest.raises(UsageError, match="'nudge' already"):
        registry.add(Nudge)
    with pytest.raises(UsageError, match="no fault is called 'nugde': did you mean 'nudge'"):
        registry.parse("nugde", "rank 1")


class _Nameless(KillWorker):
    """Stands for a mistake."""

    name = "Kill Me"


class _Homeless(KillWorker):
    """Stands for a mistake."""

    name = "homeless"
    layer = "cloud"


class _Unfinished(WorkerFault):
    """Stands for a mistake."""

    name = "unfinished"


class _Misled(KillWorker):
    """Stands for a mistake."""

    name = "misled"
    shorthand = "wroker"


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (_Nameless, "its `name` is 'Kill Me'"),
        (_Homeless, "its `layer` is one of worker, agent"),
        (_Unfinished, "it does not say how to inject"),
        (_Misled, "its `shorthand` 'wroker' is none of its fields"),
        (int, "a subclass of elastic_harness.faults.fault.Fault is expected"),
        ("kill", "a subclass of elastic_harness.faults.fault.Fault is expected"),
    ],
)
def test_what_is_no_fault_is_not_registered(
    fault: Any,  # noqa: ANN401 (mistakes have no type)
    message: str,
) -> None:
    """And the message says what is missing."""
    with pytest.raises(UsageError, match="cannot register") as refused:
        FaultRegistry().add(fault)
    assert message in str(refused.value)


class _Buggy(KillWorker):
    """Stands for a user's first try."""

    name = "buggy"

    def inject(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        yield IN_FORCE
        raise ZeroDivisionError("oh")


class _BuggyAtOnce(KillWorker):
    """Stands for a user's who forgot to yield; a library raises it."""

    name = "buggy"

    def inject(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        raise AssertionError(json.loads("{"))


@pytest.mark.parametrize(
    ("buggy", "said"),
    [
        (_Buggy, ["in force", "failed: it crashed with ZeroDivisionError: oh ("]),
        (_BuggyAtOnce, ["failed: it crashed with JSONDecodeError: Expecting property name"]),
    ],
)
def test_a_bug_in_a_fault_is_that_faults_failure(buggy: type[Fault], said: list[str]) -> None:
    """It ends the fault, with its place in the fault's file, and not the harness."""
    world = World()
    world.registry.add(buggy)
    world.fire("buggy", "rank 1")
    assert world.story[:-1] == said[:-1]
    assert world.story[-1].startswith(said[-1])
    assert f" ({__file__}:" in world.story[-1]
    (failed,) = [each for each in world.told if isinstance(each, FaultFailed)]
    assert failed.is_crash


def test_a_fault_of_before_still_works_and_is_warned_of() -> None:
    """What docs/faults.md showed until now: signals and states that are answered at once."""

    class Old(KillWorker):
        """Stands for a user's."""

        name = "old"

        def inject(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
            (worker,) = targets.workers
            assert context.signal(worker.process, signal.SIGTERM)
            yield IN_FORCE
            yield Until(
                condition=lambda: not context.is_alive(worker.process),
                within_s=10,
                otherwise="somebody ignores SIGTERM",
            )
            return "all gone"

    world = World()
    world.registry.add(Old)

    def go_through() -> None:
        world.fire("old", "rank 1")
        world.pass_time(1)

    with pytest.warns(DeprecationWarning, match="goes with the next release") as warned:
        go_through()
    said = {str(each.message).partition(":")[0] for each in warned}
    assert said == {
        "`context.signal(...)` goes with the next release",
        "`context.is_alive(...)` goes with the next release",
    }
    assert world.story == ["in force", "proved: all gone"]


def test_the_number_of_a_signal_is_read_as_its_name() -> None:
    """Numbers differ between machines: a plan that is repeated elsewhere has the name."""
    fault = built_in_faults().parse("kill", {"worker": "rank 1", "signal": 9})
    assert fault.describe()["signal"] == "SIGKILL"
