"""Faults beside other causes of the same symptom, in real processes: only their own work counts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from elastic_harness.history.events import FaultEffective

from pytest_elastic.errors import UsageError
from tests.integration.fault_bench import FaultBench, Outcome

# Steps until it is told to end; what it does when an order to end comes is its argument.
SCRIPT = """
import os, signal, sys, time

probe = sys.modules["elastic_probe"]
rank, how = int(os.environ["RANK"]), sys.argv[1]
end = os.path.join(os.environ["ELASTIC_CHECKPOINT_DIR"], "end")
is_first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
step = 0
while not os.path.exists(end):
    step += 1
    if rank == 1 and how == "stands" and step == 10 and is_first:
        print("rank 1 stands", flush=True)
        time.sleep(600)
    try:
        probe.report_step(step)
    except (SystemExit, ValueError):
        if how == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if how != "catches":
            raise
        caught = step
        print("rank 1 caught it", flush=True)
    if how == "catches" and rank == 1 and is_first and step > 1000:
        sys.exit(3)
    time.sleep(0.005)
"""
ENDING = {"at": {"step": 5, "rank": 0, "round": 2}, "run": 'touch "$ELASTIC_CHECKPOINT_DIR/end"'}
AT = {"at": {"step": 5, "rank": 1}}


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultBench]:
    """One cluster for all tests of this file."""
    try:
        made = FaultBench("namespace", tmp_path_factory.mktemp("causes"))
    except UsageError as error:
        pytest.skip(error.message)
    yield made
    made.close()


def facts(outcome: Outcome, id: str) -> dict[str, Any]:
    """Return what a fault's evidence rests on."""
    return next(
        dict(each.event.facts)
        for each in outcome.result.history.of_kind(FaultEffective)
        if each.event.id == id
    )


@pytest.mark.parametrize(
    ("action", "told"),
    [
        ({"exit": {"worker": "rank 1", "code": 3}}, "exit code 3"),
        ({"raise": {"worker": "rank 1", "error": "ValueError"}}, "exit code 1"),
        ({"segfault": "rank 1"}, "SIGSEGV"),
        ({"abort": "rank 1"}, "SIGABRT"),
        ({"kill": "rank 1"}, "SIGKILL"),
    ],
)
def test_a_worker_that_ends_as_ordered_proves_it_by_its_exit_status(
    bench: FaultBench, action: dict[str, object], told: str
) -> None:
    """The one that was asked for, with the rank and the process that it is of."""
    outcome = bench.run(SCRIPT, [{"id": "it", **AT, **action}, ENDING], "goes")
    assert outcome.result.outcome == "succeeded", outcome
    assert not outcome.failed, outcome
    assert outcome.proved["it"].endswith(f"ended with {told}"), outcome
    (worker,) = facts(outcome, "it")["workers"]
    assert (worker["rank"], worker["node"]) == (1, "n2")


@pytest.mark.parametrize("action", [{"exit": "rank 1"}, {"raise": "rank 1"}, {"abort": "rank 1"}])
def test_a_worker_that_something_else_ends_before_it_obeys_proves_nothing(
    bench: FaultBench, action: dict[str, object]
) -> None:
    """The order was given; it is killed while it stands, and has not begun to obey."""
    outcome = bench.run(
        SCRIPT,
        [
            {"id": "it", "when": {"log": "rank 1 stands"}, **action, "optional": True},
            {"id": "other", "after": "it + 500ms", "kill": "rank 1"},
            ENDING,
        ],
        "stands",
    )
    assert set(outcome.proved) == {"other", "entry-3"}, outcome
    assert "ended before it could" in outcome.failed["it"], outcome


def test_a_worker_that_begins_to_exit_and_is_killed_proves_nothing(bench: FaultBench) -> None:
    """What it ended by is not what it was told."""
    action = {"exit": {"worker": "rank 1", "code": 3}}
    outcome = bench.run(SCRIPT, [{"id": "it", **AT, **action, "optional": True}, ENDING], "dies")
    assert "began to exit, but it ended with SIGKILL" in outcome.failed["it"], outcome


@pytest.mark.parametrize(
    "action",
    [
        {"exit": {"worker": "rank 1", "code": 3}},
        {"raise": {"worker": "rank 1", "error": "ValueError"}},
    ],
)
def test_a_script_that_catches_it_and_fails_later_proves_nothing(
    bench: FaultBench, action: dict[str, object]
) -> None:
    """Even with the very exit code that was asked for: it went on in between."""
    outcome = bench.run(SCRIPT, [{"id": "it", **AT, **action, "optional": True}, ENDING], "catches")
    assert "caught" in outcome.failed["it"], outcome


# Rank 1 looks up the name that it is told, opens files or not, and sends to a node all the time;
# with another argument, once there is the file `talk`.
TALKING = """
import os, socket, sys, threading, time

probe = sys.modules["elastic_probe"]
rank, (name, opens, peer, *waits) = int(os.environ["RANK"]), sys.argv[1:]
end, talk = (os.path.join(os.environ["ELASTIC_CHECKPOINT_DIR"], each) for each in ("end", "talk"))
talking = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
step = 0
while not os.path.exists(end):
    step += 1
    if rank == 1:
        if not waits or os.path.exists(talk):
            talking.sendto(b"hello", (f"10.77.0.{peer}", 9))
        try:
            socket.getaddrinfo(name, 80)
        except OSError:
            pass
        try:
            if opens == "opens":
                open("/dev/null").close()
        except OSError:
            pass
    probe.report_step(step)
    time.sleep(0.01)
"""
END: dict[str, Any] = {"run": 'touch "$ELASTIC_CHECKPOINT_DIR/end"'}
LINK = {"from": "n2", "to": "n1"}
QUIET = {"from": "n2", "to": "n3"}  # no launcher sends anything here: none leads the others
OF_N1 = {"node": "n2", "of": "n1"}


@pytest.mark.parametrize(
    ("this", "other"),
    [
        ({"degrade": {**QUIET, "loss": "0.0001%"}}, {"degrade": {**QUIET, "latency": "2ms"}}),
        (
            {"flap": {**QUIET, "mode": "hold", "down": "1ms", "up": "1h"}},
            {"degrade": {**QUIET, "latency": "2ms"}},
        ),
        (
            {"names": {**OF_N1, "missing": True}},
            {"names": {"node": "n2", "of": "n3", "wrong": "10.77.0.99"}},
        ),
    ],
    ids=["loss beside a delay", "flap beside a delay", "a name beside another"],
)
def test_what_another_fault_does_on_the_same_link_proves_nothing(
    bench: FaultBench, this: dict[str, Any], other: dict[str, Any]
) -> None:
    """Packets are delayed, a name is asked for: by the other one, and that one is proven."""
    if not bench.session.choice.capabilities.has("network"):
        pytest.skip(bench.session.choice.capabilities["network"].reason)
    outcome = bench.run(
        TALKING,
        [
            {"id": "this", **AT, **this, "optional": True},
            {"id": "other", "after": "this + 100ms", **other},
            {"after": "other", "run": 'touch "$ELASTIC_CHECKPOINT_DIR/talk"'},
            {"after": "other + 3s", **END},
        ],
        "n3",
        "opens",
        "3",
        "when it may",
        nodes=3,
    )
    assert outcome.result.outcome == "succeeded", outcome
    assert "other" in outcome.proved, outcome
    assert "this" not in outcome.proved, outcome
    assert "this" in outcome.failed, outcome


def test_faults_of_links_and_names_are_proven_by_what_they_did_themselves(
    bench: FaultBench,
) -> None:
    """Each beside the others, with its own numbers."""
    if not bench.session.choice.capabilities.has("network"):
        pytest.skip(bench.session.choice.capabilities["network"].reason)
    outcome = bench.run(
        TALKING,
        [
            {"id": "late", **AT, "degrade": {**LINK, "latency": "2ms"}},
            {"id": "lossy", "after": "late", "degrade": {**LINK, "loss": "50%"}},
            {
                "id": "held",
                "after": "late",
                "flap": {**LINK, "mode": "hold", "down": "100ms", "up": "100ms"},
            },
            {"id": "astray", "after": "late", "names": {**OF_N1, "wrong": "1.2.3.4"}},
            {"after": "late + 3s", **END},
        ],
        "n1",
        "opens",
        "1",
    )
    assert outcome.result.outcome == "succeeded", outcome
    assert not outcome.failed, outcome
    assert set(facts(outcome, "late")["packets"]) == {"delayed"}
    assert set(facts(outcome, "lossy")["packets"]) == {"lost"}
    assert set(facts(outcome, "held")["packets"]) == {"held"}
    assert facts(outcome, "astray")["asked"]["n2"]["n1"] >= 1


@pytest.mark.parametrize("opens", ["opens", "does not"])
def test_a_limit_on_files_is_proven_by_a_file_that_was_refused(
    bench: FaultBench, opens: str
) -> None:
    """And not by the limit alone: a script that wants no file has not met it."""
    outcome = bench.run(
        TALKING,
        [
            {"id": "it", **AT, "file_limit": "rank 1", "for": "2s", "optional": True},
            {"after": "it.healed", **END},
        ],
        "10.77.0.1",  # an address: nothing is opened for it
        opens,
        "1",
    )
    assert outcome.result.outcome == "succeeded", outcome
    if opens == "opens":
        assert "wanted `open '/dev/null'`" in outcome.proved["it"], outcome
        assert facts(outcome, "it")["errno"] == "EMFILE"
    else:
        assert "but nothing was refused" in outcome.failed["it"], outcome
