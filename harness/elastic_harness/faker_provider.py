"""A Faker provider that draws faults: `faker.elastic_fault()`, `faker.fault_plan(nodes=3)`.

Everything comes from the generator's own random source, so that the seed of the `faker` at hand is
the seed of the plan. What is drawn is plain data, as a scenario file would say it:

    >>> from faker import Faker
    >>> from elastic_harness.faker_provider import ElasticProvider
    >>> faker = Faker()
    >>> faker.add_provider(ElasticProvider)
    >>> faker.seed_instance(7)
    >>> faker.elastic_fault(nodes=3)  # doctest: +SKIP
    {'reboot': {'node': 'n3', 'downtime': '300ms'}}

Faults are drawn so that a job with enough restarts can survive them: nodes that go come back, links
that are cut heal. To draw others, subclass the provider and add to `recipes`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar

from faker.providers import BaseProvider

from elastic_harness.scenario.fields import format_duration
from pytest_elastic.errors import UsageError

__all__ = ["ElasticProvider", "Recipe", "Sketch"]

Drawn = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sketch:
    """What a recipe may aim at: so many ranks, and these nodes by name, of `all_nodes`."""

    ranks: int
    nodes: tuple[str, ...]
    all_nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How one fault is drawn: what is added to an entry. `needs` is a capability, if it needs one.

    `weight` is how often it comes up among the recipes of its kind.
    """

    fault: str
    kind: str
    draw: Callable[[Random, Sketch], Drawn]
    needs: str | None = None
    weight: int = 1


def _duration(random: Random, low_s: float, high_s: float) -> str:
    """Return a time in whole hundredths of a second, as scenarios write it."""
    return format_duration(round(random.uniform(low_s, high_s), 2))


def _rank(random: Random, sketch: Sketch) -> str:
    return f"rank {random.randrange(sketch.ranks)}"


def _node(random: Random, sketch: Sketch) -> str:
    return random.choice(sketch.nodes)


def _kill(random: Random, sketch: Sketch) -> Drawn:
    signal = random.choice(("SIGKILL", "SIGKILL", "SIGSEGV", "SIGABRT", "SIGBUS"))
    return {"kill": {"worker": _rank(random, sketch), "signal": signal}}


def _exit(random: Random, sketch: Sketch) -> Drawn:
    return {"exit": {"worker": _rank(random, sketch), "code": random.randint(1, 255)}}


def _raise(random: Random, sketch: Sketch) -> Drawn:
    error = random.choice(("RuntimeError", "ValueError", "MemoryError", "OSError"))
    return {"raise": {"worker": _rank(random, sketch), "error": error}}


def _pause_worker(random: Random, sketch: Sketch) -> Drawn:
    return {"pause": {"worker": _rank(random, sketch)}, "for": _duration(random, 0.1, 2)}


def _pause_agent(random: Random, sketch: Sketch) -> Drawn:
    return {"pause": {"agent": _node(random, sketch)}, "for": _duration(random, 0.1, 2)}


def _pause_node(random: Random, sketch: Sketch) -> Drawn:
    return {"pause": {"node": _node(random, sketch)}, "for": _duration(random, 0.1, 3)}


def _reboot(random: Random, sketch: Sketch) -> Drawn:
    return {"reboot": {"node": _node(random, sketch), "downtime": _duration(random, 0, 2)}}


def _replace(random: Random, sketch: Sketch) -> Drawn:
    by = random.choice(("crash", "power_cut"))
    downtime = _duration(random, 0, 2)
    return {"replace": {"node": _node(random, sketch), "by": by, "downtime": downtime}}


def _isolate(random: Random, sketch: Sketch) -> Drawn:
    mode = random.choice(("drop", "drop", "reject", "hold"))
    cut = {"isolate": _node(random, sketch), "mode": mode}
    return {"partition": cut, "for": _duration(random, 0.3, 4)}


def _one_way(random: Random, sketch: Sketch) -> Drawn:
    one = _node(random, sketch)
    other = random.choice([name for name in sketch.all_nodes if name != one])
    source, to = random.sample((one, other), 2)
    return {"partition": {"from": source, "to": to}, "for": _duration(random, 0.3, 3)}


def _degrade(random: Random, sketch: Sketch) -> Drawn:
    link: Drawn = {"node": _node(random, sketch), "latency": _duration(random, 0.005, 0.1)}
    link["loss"] = f"{random.randint(0, 3)}%"
    return {"degrade": link, "for": _duration(random, 0.5, 4)}


RECIPES = (
    Recipe(fault="kill", kind="worker", draw=_kill, weight=3),
    Recipe(fault="exit", kind="worker", draw=_exit),
    Recipe(fault="raise", kind="worker", draw=_raise),
    Recipe(fault="pause", kind="worker", draw=_pause_worker),
    Recipe(fault="pause", kind="agent", draw=_pause_agent),
    Recipe(fault="pause", kind="node", draw=_pause_node, needs="pause"),
    Recipe(fault="reboot", kind="node", draw=_reboot, weight=2),
    Recipe(fault="replace", kind="node", draw=_replace, needs="network", weight=2),
    Recipe(fault="partition", kind="network", draw=_isolate, needs="network", weight=2),
    Recipe(fault="partition", kind="network", draw=_one_way, needs="network"),
    Recipe(fault="degrade", kind="network", draw=_degrade, needs="network"),
)

# Two faults of a drawn plan are at least so far apart.
_LEAST_APART_S = 0.05


class ElasticProvider(BaseProvider):
    """Faults for `faker`: `faker.add_provider(ElasticProvider)`."""

    __provider__ = "elastic"

    recipes: ClassVar[Sequence[Recipe]] = RECIPES

    def elastic_fault(
        self,
        *,
        nodes: int = 3,
        nproc: int = 1,
        faults: Sequence[str] = ("worker", "node", "network"),
        exclude: Sequence[str] = ("n1",),
    ) -> Drawn:
        """Draw one fault, as a scenario's entry without its trigger.

        `faults` are kinds (worker, agent, node, network) or names of faults. `nodes` is how many
        there are, with `nproc` workers each; those in `exclude` are hit by faults of workers only:
        by default the store host, without which a job cannot go on. Raises UsageError.
        """
        recipes, sketch = self._chosen(nodes, nproc, faults, exclude)
        return self._draw(recipes, sketch)

    def fault_plan(
        self,
        nodes: int = 3,
        seconds: float = 10.0,
        *,
        nproc: int = 1,
        max_faults: int = 5,
        faults: Sequence[str] = ("worker", "node", "network"),
        exclude: Sequence[str] = ("n1",),
        steps: int | None = None,
    ) -> list[Drawn]:
        """Draw 1 to `max_faults` faults, as entries of a scenario's timeline in their order.

        Each has a trigger `at`: a time below `seconds`, or, with `steps`, a step of rank 0 up to
        that one. The rest is as for `elastic_fault`.
        """
        recipes, sketch = self._chosen(nodes, nproc, faults, exclude)
        if seconds <= 0 or max_faults < 1:
            raise UsageError(
                f"a plan of {max_faults} faults in {seconds:g} s cannot be drawn: both must be "
                "more than nothing"
            )
        random = self.generator.random
        # Rather many than few: who asks for a storm of six does not mean a drizzle of one.
        count = random.randint((max_faults + 1) // 2, max_faults)
        if steps is not None:
            moments = sorted(random.randint(1, steps) for _ in range(count))
            triggers: list[object] = [{"step": step, "rank": 0} for step in moments]
        else:
            times = sorted(random.uniform(0, seconds) for _ in range(count))
            apart = [t + number * _LEAST_APART_S for number, t in enumerate(times)]
            triggers = [format_duration(round(time, 2)) for time in apart]
        return [{"at": trigger, **self._draw(recipes, sketch)} for trigger in triggers]

    @classmethod
    def needs(cls, faults: Sequence[str]) -> tuple[str, ...]:
        """Return the capabilities that a cluster must have for whatever may be drawn."""
        chosen = [each for each in cls.recipes if each.kind in faults or each.fault in faults]
        return tuple(dict.fromkeys(each.needs for each in chosen if each.needs is not None))

    @classmethod
    def known(cls) -> tuple[str, ...]:
        """Return everything that `faults` may name: kinds first."""
        kinds = [each.kind for each in cls.recipes]
        return tuple(dict.fromkeys([*kinds, *(each.fault for each in cls.recipes)]))

    def _draw(self, recipes: Sequence[Recipe], sketch: Sketch) -> Drawn:
        random: Random = self.generator.random
        # First the kind, so that a kind with many recipes does not crowd out the others.
        kind = random.choice(list(dict.fromkeys(each.kind for each in recipes)))
        several = [each for each in recipes if each.kind == kind]
        (recipe,) = random.choices(several, weights=[each.weight for each in several])
        return recipe.draw(random, sketch)

    def _chosen(
        self, nodes: int, nproc: int, faults: Sequence[str], exclude: Sequence[str]
    ) -> tuple[Sequence[Recipe], Sketch]:
        names = tuple(f"n{number}" for number in range(1, nodes + 1))
        known = self.known()
        for each in faults:
            if each not in known:
                raise UsageError(
                    f"nobody knows how to draw {each!r}: expected one of {', '.join(known)}"
                )
        for each in exclude:
            if each not in names:
                raise UsageError(
                    f"{each!r} cannot be left out of what is drawn: the nodes are "
                    f"{', '.join(names) or 'none'}"
                )
        sketch = Sketch(
            ranks=nodes * nproc,
            nodes=tuple(name for name in names if name not in exclude),
            all_nodes=names,
        )
        chosen = [each for each in self.recipes if each.kind in faults or each.fault in faults]
        if not sketch.nodes:
            chosen = [each for each in chosen if each.kind == "worker"]
        if not chosen or sketch.ranks < 1:
            raise UsageError(
                f"there is nothing to draw {', '.join(faults) or 'no faults'} from: of "
                f"{nodes} nodes {len(sketch.nodes)} may be hit"
            )
        return chosen, sketch
