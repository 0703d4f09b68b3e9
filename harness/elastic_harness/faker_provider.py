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

from faker.providers import BaseProvider

from elastic_harness.faults.recipe import Drawn, JobShape, Recipe, choose, draw_fault, draw_plan
from elastic_harness.faults.recipes import RECIPES

__all__ = ["ElasticProvider"]


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
        job = JobShape.of(nodes, nproc, exclude=exclude, proxies=proxies)
        recipes = choose(self.recipes, faults, job, exclude=exclude)
        return draw_fault(self.generator.random, recipes, job)

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
        job = JobShape.of(nodes, nproc, exclude=exclude, proxies=proxies)
        return draw_plan(
            self.generator.random,
            choose(self.recipes, faults, job, exclude=exclude),
            job,
            seconds=seconds,
            steps=steps,
            max_faults=max_faults,
        )
