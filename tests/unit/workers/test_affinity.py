"""Which processors workers are bound to, on machines that are drawn here."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pytest_elastic.errors import UsageError
from pytest_elastic.workers.affinity import Topology, choose_cpus


def machine(
    gpu_nodes: Sequence[int], *, nodes: int = 2, cores: int = 4, allowed: Sequence[int] = ()
) -> Topology:
    """Return a machine of two threads per core, two nodes per socket, two cores per cache.

    Processors are numbered as Linux does: first one thread of every core, then the others.
    """
    all_cores = nodes * cores
    cpus = range(2 * all_cores)
    core_of = {cpu: cpu % all_cores for cpu in cpus}
    return Topology(
        nodes={
            node: frozenset(cpu for cpu in cpus if core_of[cpu] // cores == node)
            for node in range(nodes)
        },
        cores=core_of,
        caches={cpu: core // 2 for cpu, core in core_of.items()},
        sockets={cpu: core // (2 * cores) for cpu, core in core_of.items()},
        allowed=frozenset(allowed or cpus),
        gpu_nodes=gpu_nodes,
    )


def test_node_is_all_of_the_gpus_numa_node() -> None:
    """Workers of one node share it."""
    assert choose_cpus("node", machine([1, 0, 1]), 3) == (
        (4, 5, 6, 7, 12, 13, 14, 15),
        (0, 1, 2, 3, 8, 9, 10, 11),
        (4, 5, 6, 7, 12, 13, 14, 15),
    )


def test_socket_is_all_nodes_of_the_gpus_package() -> None:
    """Here two nodes make a socket, and a third node is the other one."""
    drawn = machine([0, 2], nodes=4, cores=2)
    assert choose_cpus("socket", drawn, 2) == (
        (0, 1, 2, 3, 8, 9, 10, 11),
        (4, 5, 6, 7, 12, 13, 14, 15),
    )


def test_a_node_without_processors_belongs_to_no_socket() -> None:
    """Memory alone, as on a CXL device, is no place for a worker and harms none."""
    drawn = machine([0])
    with_memory = Topology(
        nodes={**drawn.nodes, 2: frozenset()},
        cores=drawn.cores,
        caches=drawn.caches,
        sockets=drawn.sockets,
        allowed=drawn.allowed,
        gpu_nodes=drawn.gpu_nodes,
    )
    assert choose_cpus("socket", with_memory, 1) == (tuple(range(16)),)


def test_exclusive_parts_the_cores_of_a_node_between_its_gpus() -> None:
    """Both threads of a core go to one worker; what does not divide goes to the first ones."""
    assert choose_cpus("exclusive", machine([0, 0, 0, 1]), 4) == (
        (0, 1, 8, 9),
        (2, 10),
        (3, 11),
        (4, 5, 6, 7, 12, 13, 14, 15),
    )


def test_core_complex_is_one_cache_for_each_worker_in_turn() -> None:
    """The third GPU of a node with two caches shares with the first."""
    assert choose_cpus("core-complex", machine([0, 0, 0]), 3) == (
        (0, 1, 8, 9),
        (2, 3, 10, 11),
        (0, 1, 8, 9),
    )


def test_the_cache_with_most_processors_left_comes_first() -> None:
    """Of a cache that this process may hardly use, little is to be had."""
    drawn = machine([0], allowed=[0, 2, 3, 10, 11])
    assert choose_cpus("core-complex", drawn, 1) == ((2, 3, 10, 11),)


def test_only_processors_that_this_process_may_use_are_chosen() -> None:
    """A container's share stays a share."""
    drawn = machine([0, 1], allowed=[1, 2, 9, 4])
    assert choose_cpus("node", drawn, 2) == ((1, 2, 9), (4,))
    assert choose_cpus("exclusive", drawn, 2) == ((1, 2, 9), (4,))


@pytest.mark.parametrize(
    ("mode", "drawn", "message"),
    [
        ("node", machine([]), "there are 2 workers and 0 GPUs"),
        ("node", machine([0]), "there are 2 workers and 1 GPUs"),
        ("node", machine([0, 1], allowed=[0]), "no processor near GPU 1"),
        ("socket", machine([0, 1], allowed=[0]), "no processor near GPU 1"),
        ("core-complex", machine([0, 1], allowed=[0]), "no processor near GPU 1"),
        ("exclusive", machine([0, 0, 0, 0, 0]), "has 4 physical cores that this process may"),
    ],
)
def test_what_cannot_be_bound_is_refused(mode: str, drawn: Topology, message: str) -> None:
    """One sentence with the numbers."""
    with pytest.raises(UsageError) as caught:
        choose_cpus(mode, drawn, 2)
    assert message in str(caught.value)
