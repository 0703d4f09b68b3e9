"""Scenario files: what is read, and how each mistake is shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from elastic_harness.faults.registry import built_in_faults
from elastic_harness.finding import ScenarioError
from elastic_harness.scenario.reading.loader import LoadedScenario, load_file, load_text
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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            GOOD.replace("within: 10s", "within: 10"),
            (
                "14:26: 10 has no unit (did you mean '10s'?)\n"
                "        - {round: 2, within: 10, after: crash}\n"
                "                             ^"
            ),
        ),
        ("", "1:1: there is no scenario here: the file is empty"),
        ("# later", "1:1: there is no scenario here: the file is empty\n    # later\n    ^"),
        ("- a", "1:1: a scenario is keys with values: version, id, title, job, nodes …"),
        ("a: 1\na: 2", "2:1: the key 'a' stands here twice"),
        ("a: [", "1:5: this is not YAML: did not find expected node content (while parsing a flow"),
        (
            "a: !!python/name:os x",
            "1:4: the tag tag:yaml.org,2002:python/name:os is not known here",
        ),
        (f"{GOOD}---\n{GOOD}", "19:5: the id 'crash-resume' is taken by the scenario in line 2"),
    ],
)
def test_a_mistake_is_shown_where_it_stands(text: str, message: str) -> None:
    """file:line:column, the line, a caret, and what was probably meant."""
    error = refuse(text)
    assert str(error).startswith(f"some/file.elastic.yaml:{message}")
    line, column, _ = message.split(":", 2)
    path = "some/file.elastic.yaml"
    assert (error.path, error.line, error.column) == (path, int(line), int(column))


def test_all_mistakes_are_shown_in_the_order_of_the_file() -> None:
    """Nobody likes to fix one after the other."""
    text = GOOD.replace("step: 22", "step: x").replace("within: 10s", "within: 10")
    error = refuse(text)
    assert [each.at and each.at.line for each in error.findings] == [9, 14]


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
