"""Scenarios that can never be: one clear finding each, where it stands.

`wrong_scenarios.txt` has a row for each kind of message; `test_every_key.py` goes through all keys
with garbage.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from elastic_harness.finding import ScenarioError

from tests.unit.scenario.test_loader import GOOD, load

JOB_LINE, NODES_LINE = "  nproc_per_node: 2\n", "nodes: 2\n"
# A job that could weather a storm.
STORMY = GOOD.replace(JOB_LINE, "  max_restarts: 9\n").replace(
    NODES_LINE, "nodes: {initial: 3, min: 1, max: 3}\nstorm: {max: 2}\n"
)
# For each part of the table what is replaced, and by what.
PARTS = {
    "a line of `job`": (JOB_LINE, "  {}\n"),
    "a line at the top": (NODES_LINE, "nodes: 2\n{}\n"),
    "what `nodes` is": (NODES_LINE, "nodes: {}\n"),
    "a clause of `eventually`": ("- {round: 2, within: 10s, after: crash}", "- {}"),
    "a clause of `finally`": ("- job: succeeded", "- {}"),
    "a bucket, and a clause of it": ("expect:\n", "expect:\n  {}:\n    - {}\n"),
    "the trigger of an entry": ("at: {step: 22, rank: 1}", "{}"),
    "the action of an entry": ("kill: rank 1", "{}"),
    "what `storm` is": ("{max: 2}", "{}"),
    "something in place of something": ("", "{}"),
}


def rows() -> Iterator[tuple[str, str, str, str]]:
    """Yield the good scenario, what is replaced in it, by what, and what is said then."""
    text = Path(__file__).with_name("wrong_scenarios.txt").read_text()
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    old, new, good, piece = "", "", GOOD, ""
    for line in lines:
        if line.startswith("== "):
            old, new = PARTS[line.removeprefix("== ")]
            good = STORMY if "storm" in line else GOOD
        elif not line.startswith("    "):
            piece = line.replace("\\n", "\n")
        else:
            before, arrow, after = piece.partition(" => ")
            filled = new.format(*(piece.split(" | ")))
            yield good, before if arrow else old, after if arrow else filled, line.strip()


def said_otherwise(places: Iterator[tuple[str, str, str, str]]) -> dict[str, str]:
    """Put each piece into a scenario; return what is said where something else was expected."""
    found: dict[str, str] = {}
    for good, old, new, said in places:
        assert old in good
        try:
            load(good.replace(old, new))
        except ScenarioError as error:
            line = str(error).splitlines()[0].removeprefix("some/file.elastic.yaml:")
            is_it = line.startswith(said[:-1]) if said.endswith("…") else line == said
            if len(error.findings) != 1 or not is_it:
                found[new] = str(error)
        else:
            found[new] = "nothing"
    return found


def test_what_can_never_be_is_one_clear_finding() -> None:
    """Where it stands, what was found, and what was expected."""
    assert len(list(rows())) > 150
    assert said_otherwise(rows()) == {}


def test_what_could_come_about_is_accepted() -> None:
    """Places that the job is told, nodes that a fault has taken away, sides that differ."""
    words = "  env: {OUT: /srv/out/a.pt}\n  args: [--log=/srv/l]\n"
    told = GOOD.replace("  nproc_per_node: 2\n", f"  nproc_per_node: 2\n{words}")
    assert said_otherwise((told, "kill: rank 1", text, "") for text in COULD_BE) == dict.fromkeys(
        COULD_BE, "nothing"
    )


COULD_BE = [
    "disk_full: {node: n1, path: /tmp/disk}",
    "disk_full: {node: n1, path: /dev/shm/x}",
    "disk_full: {node: n1, path: /srv/out}",
    "disk_full: {node: n1, path: /srv/l/deeper/}",
    "corrupt: {file: '/srv/out/*.pt', node: n1}",
    "corrupt: {file: 'n1/*.pt'}",
    "crash: n1\n  - at: 5s\n    join: [n1]",
    "crash: random\n  - at: 5s\n    join: [n2]",
    "join: [n1]\n    optional: true",
    "kill_agent: n1\n  - at: 5s\n    reboot: n1",
    "kill: {worker: rank 1, signal: 15}",
    "kill: {worker: rank 1, signal: '9'}",
    "pause: rank 1\n    for: 1s\n  - after: crash.healed\n    kill: rank 0",
    "pause: rank 1\n    until: {round: 2}\n  - after: crash.healed\n    kill: rank 0",
    "pause: rank 1\n  - at: 5s\n    heal: crash\n  - after: crash.healed\n    kill: rank 0",
    "pause: rank 1\n  - at: 5s\n    heal: all\n  - after: crash.healed\n    kill: rank 0",
    "join: [n7]",
    "partition: {between: [{any: all, exclude: n1}, n1]}",
    "partition: {between: [n1, others]}",
    "partition: {between: [minority, majority]}",
    "degrade: {from: all, to: all, loss: 1%}",
]
