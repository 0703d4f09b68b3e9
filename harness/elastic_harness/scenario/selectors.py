"""Selectors of targets: `rank 3`, `n2`, `store host`, `random 2`, `minority`, and lists of these.

A selector is parsed when the scenario is read and resolved when the fault fires, against the run
as it is then. Every fault asks either for nodes or for workers; a selector that names the other
kind is carried over: `kill: n2` means all workers of n2, `power_cut: rank 3` the node that rank 3
runs on. Words such as `random` and `majority` mean nodes that take part; one whose launcher has
ended is meant by its name only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeVar

from typing_extensions import assert_never

from elastic_harness.scenario.engine.situation import NodeRef, Situation, WorkerRef
from pytest_elastic.errors import ElasticError, UsageError
from pytest_elastic.rendezvous.model import natural_key

__all__ = [
    "FORMS",
    "SelectionEmpty",
    "Selector",
    "Term",
    "parse_selector",
    "resolve_nodes",
    "resolve_workers",
]

FORMS: Final = (
    "rank N, nK, store host, rank N host, random, random K, minority, majority, newest, all, others"
    " (of links also: gateway)"
)

_WORDS: Final = frozenset({
    "store host", "random", "minority", "majority", "newest", "all", "others", "gateway",
})  # fmt: skip
_NODE_NAME: Final = re.compile(r"[a-z][a-z0-9-]*\d+")

Kind = Literal[
    "rank", "rank host", "node", "store host", "random", "minority", "majority", "newest", "all",
    "others", "gateway",
]  # fmt: skip

_T = TypeVar("_T", NodeRef, WorkerRef)


class SelectionEmpty(ElasticError):
    """A selector was empty at the moment when its fault fired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One selector without its list: `number` is the rank or how many, `name` the node's."""

    kind: Kind
    number: int = 0
    name: str = ""

    def __str__(self) -> str:
        match self.kind:
            case "rank":
                return f"rank {self.number}"
            case "rank host":
                return f"rank {self.number} host"
            case "node":
                return self.name
            case "random":
                return "random" if self.number == 1 else f"random {self.number}"
            case _:
                return self.kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """One or more terms, and exclusions."""

    terms: tuple[Term, ...]
    exclude: tuple[Term, ...] = field(default=())

    def __str__(self) -> str:
        text = ", ".join(str(term) for term in self.terms)
        if self.exclude:
            text += f" except {', '.join(str(term) for term in self.exclude)}"
        return text

    def as_data(self) -> object:
        """Return the plain value that parses into this selector again."""
        terms = [str(term) for term in self.terms]
        plain: object = terms[0] if len(terms) == 1 else terms
        if not self.exclude:
            return plain
        return {"any": plain, "exclude": [str(term) for term in self.exclude]}

    @property
    def means_gateway(self) -> bool:
        """Tell whether the gateway is meant, which is no node: only links lead there."""
        return any(term.kind == "gateway" for term in self.terms)

    def without_gateway(self) -> Selector | None:
        """Return the selector of the nodes that are meant, or None."""
        terms = tuple(term for term in self.terms if term.kind != "gateway")
        return Selector(terms=terms, exclude=self.exclude) if terms else None

    def impossible(self, *, node_names: Collection[str], largest_world: int) -> str | None:
        """Say why no run of this scenario can ever resolve this selector, or return None."""
        for term in (*self.terms, *self.exclude):
            if term.kind == "node" and term.name not in node_names:
                known = ", ".join(sorted(node_names, key=natural_key))
                return f"there is no node {term.name!r}: this scenario's nodes are {known}"
            if term.kind in {"rank", "rank host"} and term.number >= largest_world:
                return (
                    f"there is no rank {term.number}: the largest world has {largest_world} ranks, "
                    f"0 to {largest_world - 1}"
                )
        return None

    def empty(
        self,
        *,
        node_names: Collection[str],
        largest_world: int,
        excluded: Sequence[Term] = (),
        are_workers: bool = False,
    ) -> str | None:
        """Say why this is empty in every run of this scenario, or return None.

        `excluded` is excluded beside the selector's own; `are_workers`: it selects workers.
        """
        for term in self.terms:
            # Workers are the more numerous, where it is not known whether nodes or workers are
            # meant.
            if term.kind == "random" and term.number > max(len(node_names), largest_world):
                return f"`{term}` asks for more than there are"
        for term in (*self.exclude, *excluded):
            if term.kind in {"others", "random", "minority", "majority"}:
                return f"`{term}` cannot be excluded: name the nodes or ranks to exclude"
        without = {str(term) for term in (*self.exclude, *excluded)}
        if "all" in without or {str(term) for term in self.terms} <= without:
            return f"`{self}` is empty: all that it names is excluded"
        ranks = {f"rank {number}" for number in range(largest_world)}
        if not self.means_gateway and set(node_names) <= without:
            return f"`{self}` is empty: all nodes are excluded"
        if are_workers and ranks <= without:
            return f"`{self}` is empty: all ranks are excluded"
        return None


def parse_selector(value: object) -> Selector:
    """Read a selector from its YAML or Python form; raises UsageError with the forms there are."""
    if isinstance(value, Selector):
        return value
    if isinstance(value, str):
        return Selector(terms=(_parse_term(value),))
    if isinstance(value, Mapping):
        return _parse_mapping(value)
    if isinstance(value, Sequence) and value:
        terms: tuple[Term, ...] = ()
        for item in value:
            if isinstance(item, Sequence) and not isinstance(item, str):
                raise UsageError(
                    f"{item!r} is a list within a list: a selector is one group, [n1, n2]"
                )
            part = parse_selector(item)
            if part.exclude:
                raise UsageError("`exclude` belongs beside a list of selectors, not inside it")
            terms += part.terms
        return Selector(terms=terms)
    if isinstance(value, int) and not isinstance(value, bool):
        raise UsageError(f"{value} selects nothing (did you mean 'rank {value}'?)")
    raise UsageError(f"{value!r} selects nothing; a selector is one of: {FORMS}, or a list of them")


def resolve_nodes(
    selector: Selector,
    situation: Situation,
    *,
    stream: str,
    apart_from: Collection[str] | None = None,
) -> tuple[NodeRef, ...]:
    """Return the nodes meant, in natural order; raises SelectionEmpty when a term means none.

    `stream` names the random stream to draw from; `apart_from` is what `others` excludes.
    """
    excluded = {n.name for term in selector.exclude for n in _nodes_of(term, situation)}
    pool = tuple(node for node in situation.members if node.name not in excluded)
    draw = situation.seed.stream(stream).sample
    chosen: set[str] = set()
    for term in selector.terms:
        if term.kind in {"random", "minority", "majority"}:
            count = _how_many(term, len(situation.members))
            chosen |= {node.name for node in _sample(pool, count, draw, term)}
        elif term.kind == "others":
            if apart_from is None:
                raise SelectionEmpty("`others` needs another side here")
            chosen |= {node.name for node in pool if node.name not in apart_from}
        else:
            named = _nodes_of(term, situation)
            if not named and term.kind != "gateway":
                raise SelectionEmpty(_nobody(term, situation))
            chosen |= {node.name for node in named} - excluded
    nodes = tuple(node for node in situation.nodes if node.name in chosen)
    if not nodes:
        raise SelectionEmpty(_nobody(selector, situation))
    return nodes


def resolve_workers(
    selector: Selector, situation: Situation, *, stream: str
) -> tuple[WorkerRef, ...]:
    """Return the live workers meant, by rank; raises SelectionEmpty when a term means none."""
    excluded = {w.rank for term in selector.exclude for w in _workers_of(term, situation)}
    pool = tuple(worker for worker in situation.workers if worker.rank not in excluded)
    draw = situation.seed.stream(stream).sample
    chosen: set[int] = set()
    for term in selector.terms:
        if term.kind in {"random", "minority", "majority"}:
            count = _how_many(term, len(situation.workers))
            chosen |= {worker.rank for worker in _sample(pool, count, draw, term)}
        else:
            named = _workers_of(term, situation)
            if not named:
                raise SelectionEmpty(_nobody(term, situation))
            chosen |= {worker.rank for worker in named} - excluded
    workers = tuple(worker for worker in situation.workers if worker.rank in chosen)
    if not workers:
        raise SelectionEmpty(_nobody(selector, situation))
    return workers


def _parse_term(text: str) -> Term:
    words = " ".join(text.split()).removeprefix("node: ").removeprefix("node ")
    if words == "random":
        return Term(kind="random", number=1)
    if words in _WORDS:
        return Term(kind=words)  # type: ignore[arg-type]  # checked against the list just above
    if found := re.fullmatch(r"rank (\d+)( host)?", words):
        return Term(kind="rank host" if found[2] else "rank", number=int(found[1]))
    if found := re.fullmatch(r"random (\d+)", words):
        if found[1] == "0":
            raise UsageError("`random 0` is empty: ask for one or more")
        return Term(kind="random", number=int(found[1]))
    if _NODE_NAME.fullmatch(words):
        return Term(kind="node", name=words)
    raise UsageError(f"{text!r} selects nothing; a selector is one of: {FORMS}")


def _parse_mapping(value: Mapping[object, object]) -> Selector:
    keys = sorted(str(key) for key in value)
    heads = [key for key in keys if key != "exclude"]
    if len(heads) != 1 or heads[0] not in {"any", "node", "rank"}:
        raise UsageError(
            f"a selector with keys {', '.join(keys)} is not known; write one of `node`, `rank` or "
            "`any`, and `exclude` beside it if need be"
        )
    head = value[heads[0]]
    chosen = parse_selector(f"rank {head}" if heads[0] == "rank" else head)
    if chosen.exclude:
        raise UsageError("one `exclude` is enough: write it once, as a list")
    exclude = parse_selector(value["exclude"]).terms if "exclude" in value else ()
    return Selector(terms=chosen.terms, exclude=exclude)


def _nodes_of(term: Term, situation: Situation) -> tuple[NodeRef, ...]:
    """Return the nodes a term without chance in it means, possibly none."""
    match term.kind:
        case "node":
            names = {term.name}
        case "rank" | "rank host":
            names = {worker.node for worker in situation.workers if worker.rank == term.number}
        case "store host":
            names = {situation.store_host or ""}
        case "newest":
            newest = max(
                situation.members, key=lambda n: (n.started_at, natural_key(n.name)), default=None
            )
            names = {newest.name} if newest else set()
        case "all":
            names = {node.name for node in situation.members}
        case "gateway":
            names = set()  # it is no node: see `link_fault.ends_of`
        case "others" | "random" | "minority" | "majority":
            raise SelectionEmpty(f"`{term}` cannot be excluded: name the nodes or ranks to exclude")
        case _:
            assert_never(term.kind)
    return tuple(node for node in situation.nodes if node.name in names)


def _workers_of(term: Term, situation: Situation) -> tuple[WorkerRef, ...]:
    if term.kind == "rank":
        return tuple(worker for worker in situation.workers if worker.rank == term.number)
    if term.kind == "all":
        return situation.workers
    if term.kind == "others":
        raise SelectionEmpty("`others` means nodes: it has no meaning for workers")
    names = {node.name for node in _nodes_of(term, situation)}
    return tuple(worker for worker in situation.workers if worker.node in names)


def _how_many(term: Term, total: int) -> int:
    if term.kind == "minority":
        return (total - 1) // 2
    if term.kind == "majority":
        return total // 2 + 1
    return term.number


def _sample(
    pool: tuple[_T, ...], count: int, draw: Callable[[Sequence[_T], int], list[_T]], term: Term
) -> list[_T]:
    if not 0 < count <= len(pool):
        raise SelectionEmpty(f"`{term}` asks for {count} out of {len(pool)}")
    return draw(pool, count)


def _nobody(selector: Selector | Term, situation: Situation) -> str:
    nodes = ", ".join(node.name for node in situation.nodes) or "none"
    ranks = ", ".join(str(worker.rank) for worker in situation.workers) or "none"
    return f"`{selector}` is empty now: nodes up are {nodes}; live ranks are {ranks}"
