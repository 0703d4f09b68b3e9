"""Scenario files: what is read, and how each mistake is shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from elastic_harness.faults.recipe import known_draws
from elastic_harness.faults.recipes import RECIPES
from elastic_harness.faults.registry import built_in_faults
from elastic_harness.scenario.reading.loader import LoadedScenario, load_file, load_text
from elastic_harness.scenario.reading.problems import ScenarioError
from elastic_harness.scenario.triggers import AtStep, RoundCondition

GOOD = """\
version: 1
id: crash-resume
title: A worker is killed
job:
  command: [python, train.py]
  nproc_per_node: 2
nodes: 2
timeline:
  - at: {step: 22, rank: 1}
    id: crash
    kill: rank 1
expect:
  eventually:
    - {round: 2, within: 10s, after: crash}
  finally:
    - job: succeeded
"""


def load(text: str) -> list[LoadedScenario]:
    """Read a text as if it stood in some/file.elastic.yaml."""
    return load_text(
        text,
        "some/file.elastic.yaml",
        built_in_faults(),
    )


def refuse(text: str) -> ScenarioError:
    """Return what is said about a text that is no scenario."""
    with pytest.raises(ScenarioError) as caught:
        load(text)
    return caught.value


def test_a_scenario_is_read_into_the_tree() -> None:
    """Durations are seconds, and triggers and conditions are values."""
    scenario = load(GOOD)[0].scenario
    assert (scenario.id, scenario.nodes.initial, scenario.limit) == ("crash-resume", 2, 60.0)
    entry = scenario.timeline[0]
    assert entry.at == AtStep(step=22, rank=1)
    assert (entry.action.name, entry.action.value) == ("kill", "rank 1")
    clause = scenario.expect.eventually[0]
    assert (clause.condition, clause.within) == (RoundCondition(round=2), 10.0)
    assert str(clause) == "round 2 within 10s after crash"


def test_every_part_of_a_scenario_knows_where_it_stands() -> None:
    """Reports point at the clause."""
    loaded = load(GOOD)[0]
    at = loaded.locate(("expect", "eventually", 0))
    assert str(at) == "some/file.elastic.yaml:14:7"
    assert at.excerpt() == ("        - {round: 2, within: 10s, after: crash}\n          ^")


# What is changed in the good file, and the whole message that must come of it.
MISTAKES = {
    "an unknown top-level key": (
        ("nodes: 2", "nods: 2"),
        "7:1: unknown key 'nods' (did you mean 'nodes'?)\n    nods: 2\n    ^",
    ),
    "an unknown key of the job": (
        ("nproc_per_node", "nproc_per_nod"),
        (
            "6:3: unknown key 'nproc_per_nod' (did you mean 'nproc_per_node'?)\n"
            "      nproc_per_nod: 2\n      ^"
        ),
    ),
    "an unknown action": (
        ("kill: rank 1", "kil: rank 1"),
        "11:5: unknown key or action 'kil' (did you mean 'kill'?)\n        kil: rank 1\n        ^",
    ),
    "an unknown parameter of a fault": (
        ("kill: rank 1", "kill: {worker: rank 1, signl: SIGTERM}"),
        (
            "11:28: unknown key 'signl' (did you mean 'signal'?)\n"
            "        kill: {worker: rank 1, signl: SIGTERM}\n                               ^"
        ),
    ),
    "a wrong type": (
        ("step: 22", "step: many"),
        (
            "9:16: a whole number is expected, found 'many'\n"
            "      - at: {step: many, rank: 1}\n                   ^"
        ),
    ),
    "a duration without a unit": (
        ("within: 10s", "within: 10"),
        (
            "14:26: 10 has no unit (did you mean '10s'?)\n"
            "        - {round: 2, within: 10, after: crash}\n                             ^"
        ),
    ),
    "a rank that cannot be": (
        ("kill: rank 1", "kill: rank 9"),
        (
            "11:11: there is no rank 9: the largest world has 4 ranks, 0 to 3\n"
            "        kill: rank 9\n              ^"
        ),
    ),
    "a node that cannot be": (
        ("kill: rank 1", "crash: n3"),
        (
            "11:12: there is no node 'n3': this scenario's nodes are n1, n2\n"
            "        crash: n3\n               ^"
        ),
    ),
    "a node in pairs that cannot be": (
        ("kill: rank 1", "partition: {pairs: [[n1, n9]]}"),
        (
            "11:24: there is no node 'n9': the nodes are n1, n2\n"
            "        partition: {pairs: [[n1, n9]]}\n                           ^"
        ),
    ),
    "a node cut off from itself": (
        ("kill: rank 1", "partition: {between: [n1, n1]}"),
        (
            "11:16: n1 is on both sides: nobody has a link to itself\n"
            "        partition: {between: [n1, n1]}\n                   ^"
        ),
    ),
    "a loss of more than all": (
        ("kill: rank 1", "degrade: {loss: 120%}"),
        (
            "11:21: '120%' is not a percentage: write for example 2% (0% to 100%)\n"
            "        degrade: {loss: 120%}\n                        ^"
        ),
    ),
    "a negative latency": (
        ("kill: rank 1", "degrade: {latency: -20ms}"),
        (
            "11:24: '-20ms' is not a duration: write for example 10s, 500ms or 2m\n"
            "        degrade: {latency: -20ms}\n                           ^"
        ),
    ),
    "a file outside of the job's": (
        ("kill: rank 1", "corrupt: ../../etc/passwd"),
        (
            "11:14: '../../etc/passwd' is no pattern for files of the job: write for example *.pt "
            "(in the checkpoint directory) or /tmp/disk/*.pt (on a node's own disk)\n"
            "        corrupt: ../../etc/passwd\n                 ^"
        ),
    ),
    "a gateway where none is": (
        ("kill: rank 1", "partition: {between: [n1, gateway]}"),
        (
            "11:26: nothing lives at the gateway of this scenario: it has no `proxies`\n"
            "        partition: {between: [n1, gateway]}\n                             ^"
        ),
    ),
    "a gateway that is no node": (
        ("kill: rank 1", "crash: gateway"),
        (
            "11:12: the gateway is no node: only what is done to links can mean it\n"
            "        crash: gateway\n               ^"
        ),
    ),
    "a selector that is none": (
        ("kill: rank 1", "kill: rnk 1"),
        (
            "11:11: 'rnk 1' selects nothing; a selector is one of: rank N, nK, store host, "
            "rank N host, random, random K, minority, majority, newest, all, others "
            "(of links also: gateway)\n"
            "        kill: rnk 1\n              ^"
        ),
    ),
    "an entry nobody has": (
        ("after: crash", "after: crush"),
        (
            "14:38: no entry of the timeline has the id 'crush' (did you mean 'crash'?)\n"
            "        - {round: 2, within: 10s, after: crush}\n"
            "                                         ^"
        ),
    ),
    "a condition nobody knows": (
        ("{round: 2,", "{rond: 2,"),
        (
            "14:7: a condition has one of the keys event, stable, log, round, world_size, progress "
            "(did you mean 'round'?)\n        - {rond: 2, within: 10s, after: crash}\n          ^"
        ),
    ),
    "an event nobody emits": (
        ("at: {step: 22, rank: 1}", "when: {event: round_seald}"),
        (
            "9:19: there is no event 'round_seald' (did you mean 'round_sealed'?)\n"
            "      - when: {event: round_seald}\n                      ^"
        ),
    ),
    "a field that the event has not": (
        ("at: {step: 22, rank: 1}", "when: {event: round_sealed, rond: 1}"),
        (
            "9:33: the event round_sealed has no field 'rond' (did you mean 'round'?)\n"
            "      - when: {event: round_sealed, rond: 1}\n                                    ^"
        ),
    ),
    "a fault that cannot be undone": (
        ("    kill: rank 1", "    kill: rank 1\n    for: 3s"),
        "12:5: `kill` cannot be undone, so it cannot have `for`\n        for: 3s\n        ^",
    ),
    "a heal that never comes": (
        ("after: crash", "after: crash.healed"),
        (
            "14:38: `kill` cannot be undone, so `crash.healed` never comes\n"
            "        - {round: 2, within: 10s, after: crash.healed}\n"
            "                                         ^"
        ),
    ),
    "a clause that no checker knows": (
        ("- job: succeeded", "- jop: succeeded"),
        (
            "16:7: no checker is called 'jop': did you mean 'job'?\n"
            "        - jop: succeeded\n          ^"
        ),
    ),
    "a missing key": (
        ("title: A worker is killed\n", ""),
        "1:1: `title` is missing here\n    version: 1\n    ^",
    ),
    "a script that is not there": (
        ("command: [python, train.py]", "script: nowhere.py"),
        (
            f"5:11: there is no script at {Path('some/nowhere.py').absolute()}\n"
            "      script: nowhere.py\n              ^"
        ),
    ),
    "a storm of something unknown": (
        (
            "nproc_per_node: 2\nnodes: 2",
            "max_restarts: 1\nnodes: 2\nstorm: {faults: [gpu], max: 1}",
        ),
        (
            "8:18: nobody knows how to draw 'gpu' (known: "
            f"{', '.join(sorted(known_draws(RECIPES)))})\n"
            "    storm: {faults: [gpu], max: 1}\n                     ^"
        ),
    ),
    "a storm that uses up the budget": (
        ("nodes: 2", "nodes: 2\nstorm: {max: 6}"),
        (
            "8:8: a storm of up to 6 faults can use up the 0 restarts of this job: give it "
            "`max_restarts: 6` or more\n    storm: {max: 6}\n           ^"
        ),
    ),
    "a check of something unknown": (
        ("kill: rank 1", "check: [ranks, {restart: 0}]"),
        (
            "11:5: no checker is called 'restart': did you mean 'restarts'?\n"
            "        check: [ranks, {restart: 0}]\n        ^"
        ),
    ),
    "an empty file": ((GOOD, ""), "1:1: there is no scenario here: the file is empty"),
    "a file of comments": (
        (GOOD, "# later\n"),
        "1:1: there is no scenario here: the file is empty\n    # later\n    ^",
    ),
    "broken YAML": (
        (GOOD, "a: [\n"),
        (
            "1:5: this is not YAML: did not find expected node content (while parsing a flow "
            "node)\n"
            "    a: [\n        ^"
        ),
    ),
    "a list": (
        (GOOD, "- a\n"),
        "1:1: a scenario is keys with values: version, id, title, job, nodes …\n    - a\n    ^",
    ),
    "a key twice": ((GOOD, "a: 1\na: 2\n"), "2:1: the key 'a' stands here twice\n    a: 2\n    ^"),
    "a tag": (
        (GOOD, "a: !!python/name:os.system x\n"),
        (
            "1:4: the tag tag:yaml.org,2002:python/name:os.system is not known here (leave "
            "it out)\n"
            "    a: !!python/name:os.system x\n       ^"
        ),
    ),
    "an id twice": (
        (GOOD, f"{GOOD}---\n{GOOD}"),
        (
            "19:5: the id 'crash-resume' is taken by the scenario in line 2\n"
            "    id: crash-resume\n        ^"
        ),
    ),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_shown_where_it_stands(case: str) -> None:
    """file:line:column, the line, a caret, and what was probably meant."""
    (old, new), message = MISTAKES[case]
    assert old in GOOD
    error = refuse(GOOD.replace(old, new))
    assert str(error) == f"some/file.elastic.yaml:{message}"
    line, column = message.split(":")[:2]
    assert (error.path, error.line, error.column) == (
        "some/file.elastic.yaml",
        int(line),
        int(column),
    )


def test_all_mistakes_are_shown_in_the_order_of_the_file() -> None:
    """Nobody likes to fix one after the other."""
    text = GOOD.replace("step: 22", "step: x").replace("within: 10s", "within: 10")
    error = refuse(text)
    assert [problem.at.line for problem in error.problems] == [9, 14]


def test_several_documents_are_several_scenarios() -> None:
    """Positions in the second one count from the top of the file."""
    second = GOOD.replace("id: crash-resume", "id: other")
    loaded = load(f"{GOOD}---\n{second}")
    assert [each.scenario.id for each in loaded] == ["crash-resume", "other"]
    assert loaded[1].locate(("id",)).line == 19


def test_a_matrix_makes_a_scenario_of_each_combination() -> None:
    """Paths into the scenario are its axes."""
    loaded = load(GOOD + "matrix: {seed: [1, 2], job.max_restarts: [0, 3]}\n")
    assert [each.scenario.id for each in loaded] == [
        "crash-resume[seed=1,job.max_restarts=0]",
        "crash-resume[seed=1,job.max_restarts=3]",
        "crash-resume[seed=2,job.max_restarts=0]",
        "crash-resume[seed=2,job.max_restarts=3]",
    ]
    assert [(s.scenario.seed, s.scenario.job.max_restarts) for s in loaded] == [
        (1, 0),
        (1, 3),
        (2, 0),
        (2, 3),
    ]


def test_yaml_is_version_1_2() -> None:
    """`on` and `12:30` are text, `0o10` is eight."""
    text = GOOD.replace("  nproc", "  env: {A: on, B: 12:30, C: 0o10, D: 1e3}\n  nproc")
    assert load(text)[0].scenario.job.env == {"A": "on", "B": "12:30", "C": "8", "D": "1000.0"}


def test_keys_that_begin_with_x_are_the_authors_own() -> None:
    """They may hold anchors, for example."""
    text = "x-common: &c {A: '1'}\n" + GOOD.replace("  nproc", "  env: *c\n  nproc")
    assert load(text)[0].scenario.job.env == {"A": "1"}


def test_aliases_that_grow_without_end_are_refused() -> None:
    """A small file stays a small tree."""
    lines = ["x-0: &a0 [1, 2, 3, 4, 5, 6, 7, 8, 9]"]
    lines += [f"x-{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9)]
    assert "grows without end" in str(refuse("\n".join(lines) + "\n" + GOOD))


def test_a_default_invariant_can_be_named_off() -> None:
    """`- one_world: off`."""
    text = GOOD.replace("expect:\n", "expect:\n  always:\n    - one_world: off\n")
    clause = load(text)[0].scenario.expect.always[0]
    assert (clause.name, clause.is_off) == ("one_world", True)


def test_nodes_that_join_may_be_named() -> None:
    """Those that an entry starts exist."""
    text = GOOD.replace("nodes: 2", "nodes: {initial: 2, min: 2, max: 3}").replace(
        "timeline:\n",
        "timeline:\n  - {at: 1s, id: more, join: 1}\n  - {after: more + 1s, crash: n3}\n",
    )
    assert load(text)[0].scenario.timeline[1].action.value == "n3"


def test_a_script_is_relative_to_the_scenario_file(tmp_path: Path) -> None:
    """And absolute once it is read."""
    (tmp_path / "train.py").write_text("")
    (tmp_path / "scenarios").mkdir()
    file = tmp_path / "scenarios" / "a.elastic.yaml"
    file.write_text(GOOD.replace("command: [python, train.py]", "script: ../train.py"))
    loaded = load_file(str(file), built_in_faults())
    assert loaded[0].scenario.job.script == str(tmp_path / "train.py")


def test_a_file_that_cannot_be_read_is_a_scenario_error(tmp_path: Path) -> None:
    """With its path, as any other."""
    with pytest.raises(ScenarioError, match="cannot be read"):
        load_file(str(tmp_path / "none.elastic.yaml"), built_in_faults())
