"""Who is meant by a selector, on hand-made situations."""

from __future__ import annotations

import pytest
from elastic_harness.cluster.process import ProcessRef
from elastic_harness.scenario.engine.situation import (
    NodeRef,
    Situation,
    WorkerRef,
)
from elastic_harness.scenario.planning.seed import Seed
from elastic_harness.scenario.selectors import (
    SelectionEmpty,
    parse_selector,
    resolve_nodes,
    resolve_workers,
)

from pytest_elastic.errors import UsageError


def situation(nodes: int = 5, nproc: int = 2, *, seed: int = 1, gone: str = "") -> Situation:
    """Return nodes n1, n2 … of which n1 started last, with `nproc` ranks each in natural order."""
    names = [f"n{i}" for i in range(1, nodes + 1)]
    return Situation(
        nodes=tuple(
            NodeRef(
                name=name,
                address=f"10.77.0.{i}",
                incarnation=1,
                started_at=float(100 - i),
                launcher=None if name == gone else ProcessRef(node=name, pid=i),
            )
            for i, name in enumerate(names, start=1)
        ),
        workers=tuple(
            WorkerRef(
                rank=rank,
                local_rank=rank % nproc,
                node=names[rank // nproc],
                process=ProcessRef(node=names[rank // nproc], pid=1000 + rank),
            )
            for rank in range(nodes * nproc)
        ),
        store_host="n2",
        seed=Seed(value=seed),
    )


def nodes_of(value: object, given: Situation | None = None, stream: str = "x") -> list[str]:
    """Return the nodes that a selector means."""
    found = resolve_nodes(parse_selector(value), given or situation(), stream=stream)
    return [node.name for node in found]


def ranks_of(value: object, given: Situation | None = None, stream: str = "x") -> list[int]:
    """Return the ranks that a selector means."""
    found = resolve_workers(parse_selector(value), given or situation(), stream=stream)
    return [worker.rank for worker in found]


@pytest.mark.parametrize(
    ("value", "nodes", "ranks"),
    [
        ("rank 3", ["n2"], [3]),
        ({"rank": 3}, ["n2"], [3]),
        ("n4", ["n4"], [6, 7]),
        ("node: n4", ["n4"], [6, 7]),
        ({"node": "n4"}, ["n4"], [6, 7]),
        ("store host", ["n2"], [2, 3]),
        ("rank 0 host", ["n1"], [0, 1]),
        ("newest", ["n1"], [0, 1]),
        ("all", ["n1", "n2", "n3", "n4", "n5"], list(range(10))),
        (["rank 9", "n1"], ["n1", "n5"], [0, 1, 9]),
        (["n3", "n3"], ["n3"], [4, 5]),
        ({"any": "all", "exclude": ["store host", "n4"]}, ["n1", "n3", "n5"], [0, 1, 4, 5, 8, 9]),
    ],
)
def test_a_selector_means_nodes_where_nodes_are_asked_for_and_workers_where_workers_are(
    value: object, nodes: list[str], ranks: list[int]
) -> None:
    """One language, two kinds of answer."""
    assert nodes_of(value) == nodes
    assert ranks_of(value) == ranks


def test_minority_and_majority_are_of_all_that_take_part() -> None:
    """Of five, two and three; of four, one and three."""
    assert len(nodes_of("minority")) == 2
    assert len(nodes_of("majority")) == 3
    assert len(nodes_of("minority", situation(4))) == 1
    assert len(nodes_of("majority", situation(4))) == 3


def test_two_nodes_have_no_minority() -> None:
    """Half is none."""
    with pytest.raises(SelectionEmpty, match="`minority` asks for 0 out of 2"):
        nodes_of("minority", situation(2))


def test_chance_depends_on_seed_and_stream_and_on_nothing_else() -> None:
    """A draw in another place moves nothing here."""
    assert nodes_of("random 2") == nodes_of("random 2")
    assert len({tuple(nodes_of("random 2", situation(seed=seed))) for seed in range(30)}) > 5
    assert len({tuple(nodes_of("random 2", stream=str(i))) for i in range(30)}) > 5


def test_chance_never_chooses_who_is_excluded() -> None:
    """Rank 0 is spared, whatever the seed."""
    chosen = {
        rank
        for seed in range(60)
        for rank in ranks_of({"any": "random", "exclude": "rank 0"}, situation(2, seed=seed))
    }
    assert chosen == {1, 2, 3}


def test_more_than_there_are_cannot_be_chosen() -> None:
    """The message says how many there are."""
    with pytest.raises(SelectionEmpty, match="`random 6` asks for 6 out of 5"):
        nodes_of("random 6")


def test_a_node_without_a_launcher_is_meant_by_its_name_only() -> None:
    """It has left the job, but its machine is still there."""
    given = situation(3, gone="n3")
    assert nodes_of("all", given) == ["n1", "n2"]
    assert nodes_of("n3", given) == ["n3"]


def test_others_are_other_than_the_other_side() -> None:
    """And without another side they are nobody."""
    others = parse_selector("others")
    found = resolve_nodes(others, situation(3), stream="x", apart_from=("n2",))
    assert [node.name for node in found] == ["n1", "n3"]
    with pytest.raises(SelectionEmpty, match="needs another side here"):
        nodes_of("others")


@pytest.mark.parametrize("value", ["rank 10", "n9", {"any": "n1", "exclude": "n1"}])
def test_a_selector_that_means_nobody_says_who_there_is(value: object) -> None:
    """Names and ranks that are up stand in the message."""
    with pytest.raises(SelectionEmpty, match=r"is empty now: nodes up are n1, .*ranks are 0, 1"):
        nodes_of(value)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "rank",
        "rank x",
        "ranks 1",
        "random 0",
        "host",
        3,
        None,
        [],
        {"nod": "n1"},
        {"exclude": "n1"},
    ],
)
def test_what_is_no_selector_is_refused(value: object) -> None:
    """The message lists what there is."""
    with pytest.raises(UsageError):
        parse_selector(value)


@pytest.mark.parametrize(
    "value",
    [
        "rank 3",
        "n10",
        "random 2",
        ["n1", "rank 2"],
        {"any": ["all"], "exclude": ["n1", "store host"]},
    ],
)
def test_a_selector_survives_being_written_down(value: object) -> None:
    """`as_data` parses into the same selector."""
    selector = parse_selector(value)
    assert parse_selector(selector.as_data()) == selector


def test_what_can_never_be_is_known_without_a_run() -> None:
    """Rank 4 of 4, and a node that no entry starts."""
    names = ("n1", "n2")
    for value, message in (("rank 4", "no rank 4"), (["n1", "n3"], "no node 'n3'")):
        why = parse_selector(value).impossible(node_names=names, largest_world=4)
        assert why is not None
        assert message in why
    assert parse_selector("rank 3").impossible(node_names=names, largest_world=4) is None


@pytest.mark.parametrize(
    ("value", "missing"), [(["n1", "n9"], "n9"), (["n1", "rank 10"], "rank 10")]
)
def test_of_several_that_are_named_none_may_be_missing(value: object, missing: str) -> None:
    """A fault that hits one of two has not done what was asked for."""
    with pytest.raises(SelectionEmpty, match=f"`{missing}` is empty now"):
        nodes_of(value)
    with pytest.raises(SelectionEmpty, match="`rank 10` is empty now"):
        ranks_of(["rank 0", "rank 10"])
    assert nodes_of({"any": ["n1", "n2"], "exclude": ["n2", "n9"]}) == ["n1"]
