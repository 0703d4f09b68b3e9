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
that are cut heal. To draw others, register them with recipes
(`FaultRegistry.add`), or give a subclass other `recipes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from faker.providers import BaseProvider

from elastic_harness.faults.recipe import Drawn, Recipe, Sketch, known_draws, usable
from elastic_harness.faults.recipes import RECIPES
from elastic_harness.scenario.fields import format_duration
from pytest_elastic.errors import UsageError

__all__ = ["ElasticProvider"]

# Two faults of a drawn plan are at least so far apart.
_LEAST_APART_S = 0.05


class ElasticProvider(BaseProvider):
    """Faults for `faker`: `faker.add_provider(ElasticProvider)`."""

    __provider__ = "elastic"

    recipes: Sequence[Recipe] = RECIPES

    def elastic_fault(
        self,
        *,
        nodes: int = 3,
        nproc: int = 1,
        faults: Sequence[str] = ("worker", "node", "network"),
        exclude: Sequence[str] = ("n1",),
        proxies: Sequence[str] = (),
    ) -> Drawn:
        """Draw one fault, as a scenario's entry without its trigger.

        `faults` are kinds (worker, agent, node, network, proxy, store, resource, disk, clock) or
        names of faults. `nodes` is how many there are, with `nproc` workers each; those in
        `exclude` are not hit as nodes: by default the store host. `proxies` are the job's, by name.
        Raises UsageError.
        """
        recipes, sketch = self._chosen(nodes, nproc, faults, exclude, proxies)
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
        proxies: Sequence[str] = (),
        steps: int | None = None,
    ) -> list[Drawn]:
        """Draw half of `max_faults` to `max_faults` entries of a scenario's timeline, in order.

        Each has a trigger `at`: a time below `seconds`, or, with `steps`, a step of rank 0 up to
        that one. The rest is as for `elastic_fault`. Raises UsageError where nothing can be drawn.
        """
        recipes, sketch = self._chosen(nodes, nproc, faults, exclude, proxies)
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

    def _draw(self, recipes: Sequence[Recipe], sketch: Sketch) -> Drawn:
        random: Random = self.generator.random
        # First the kind, so that a kind with many recipes does not crowd out the others.
        kind = random.choice(list(dict.fromkeys(each.kind for each in recipes)))
        several = [each for each in recipes if each.kind == kind]
        (recipe,) = random.choices(several, weights=[each.weight for each in several])
        return recipe.draw(random, sketch)

    def _chosen(
        self,
        nodes: int,
        nproc: int,
        faults: Sequence[str],
        exclude: Sequence[str],
        proxies: Sequence[str],
    ) -> tuple[Sequence[Recipe], Sketch]:
        for what, number in (("nodes", nodes), ("nproc", nproc)):
            if type(number) is not int or number < 1:
                raise UsageError(f"{what}={number!r}: a whole number of at least 1 is expected")
        names = tuple(f"n{number}" for number in range(1, nodes + 1))
        known = known_draws(self.recipes)
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
            proxies=tuple(proxies),
        )
        chosen = usable(self.recipes, faults, sketch)
        if not chosen:
            raise UsageError(
                f"there is nothing to draw {', '.join(faults) or 'no faults'} from: of "
                f"{nodes} nodes {len(sketch.nodes)} may be hit, and there are "
                f"{len(sketch.proxies)} proxies"
            )
        return chosen, sketch
