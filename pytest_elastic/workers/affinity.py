"""Which processors each worker is bound to (`--numa-binding`): arithmetic on a described machine.

The four modes are those of torch.numa.binding: worker i uses GPU i, and memory near a GPU is
reached fastest from the processors of the GPU's NUMA node. `workers.sysfs` describes the machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pytest_elastic.errors import UsageError

__all__ = ["MODES", "Topology", "choose_cpus"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The processors of one machine, and the NUMA node of each GPU by its index.

    `nodes` are the processors of each NUMA node. `cores`, `caches` and `sockets` say for each
    processor what it shares with others: a physical core, the largest cache, the package; the
    numbers mean nothing but that they are equal. `allowed` are the processors this process may use.
    """

    nodes: Mapping[int, frozenset[int]]
    cores: Mapping[int, int]
    caches: Mapping[int, int]
    sockets: Mapping[int, int]
    allowed: frozenset[int]
    gpu_nodes: Sequence[int]


def choose_cpus(mode: str, topology: Topology, workers: int) -> tuple[tuple[int, ...], ...]:
    """Return the processors of each worker, by local rank; raises UsageError where it has none."""
    if workers > len(topology.gpu_nodes):
        raise UsageError(
            f"--numa-binding={mode} binds each worker near the GPU of its local rank: there are "
            f"{workers} workers and {len(topology.gpu_nodes)} GPUs on this machine"
        )
    chosen = []
    for gpu in range(workers):
        cpus = MODES[mode](topology, gpu)
        if not cpus:
            raise UsageError(
                f"--numa-binding={mode}: this process may use no processor near GPU {gpu} "
                f"(NUMA node {topology.gpu_nodes[gpu]})"
            )
        chosen.append(tuple(sorted(cpus)))
    return tuple(chosen)


def _of_node(topology: Topology, gpu: int) -> frozenset[int]:
    return _allowed(topology, topology.gpu_nodes[gpu])


def _of_socket(topology: Topology, gpu: int) -> frozenset[int]:
    near = _of_node(topology, gpu)
    if not near:
        return near
    socket = topology.sockets[min(near)]
    cpus: frozenset[int] = frozenset()
    for node in topology.nodes:
        its = _allowed(topology, node)
        # A NUMA node without processors (memory only) belongs to no socket.
        if its and topology.sockets[min(its)] == socket:
            cpus |= its
    return cpus


def _exclusive(topology: Topology, gpu: int) -> frozenset[int]:
    cores = _grouped(_of_node(topology, gpu), topology.cores)
    place, gpus = _place(topology, gpu)
    share, rest = divmod(len(cores), gpus)
    if share < 1:
        raise UsageError(
            f"--numa-binding=exclusive: NUMA node {topology.gpu_nodes[gpu]} has {len(cores)} "
            f"physical cores that this process may use, and {gpus} GPUs"
        )
    # What does not divide evenly goes to the first GPUs.
    first = place * share + min(place, rest)
    mine = [cores[core] for core in sorted(cores)]
    return frozenset().union(*mine[first : first + share + (place < rest)])


def _core_complex(topology: Topology, gpu: int) -> frozenset[int]:
    complexes = _grouped(_of_node(topology, gpu), topology.caches)
    if not complexes:
        return frozenset()
    # The largest first: what this process may use of each can differ.
    ordered = sorted(complexes.values(), key=lambda cpus: (-len(cpus), min(cpus)))
    place, _ = _place(topology, gpu)
    return ordered[place % len(ordered)]


MODES = {
    "node": _of_node,
    "socket": _of_socket,
    "exclusive": _exclusive,
    "core-complex": _core_complex,
}


def _allowed(topology: Topology, node: int) -> frozenset[int]:
    return topology.nodes.get(node, frozenset()) & topology.allowed


def _place(topology: Topology, gpu: int) -> tuple[int, int]:
    """Return which of the GPUs of its NUMA node this one is, and how many there are."""
    node = topology.gpu_nodes[gpu]
    same = [index for index, of in enumerate(topology.gpu_nodes) if of == node]
    return same.index(gpu), len(same)


def _grouped(cpus: Iterable[int], shared: Mapping[int, int]) -> dict[int, frozenset[int]]:
    """Return the groups of processors that share something."""
    groups: dict[int, frozenset[int]] = {}
    for cpu in sorted(cpus):
        groups[shared[cpu]] = groups.get(shared[cpu], frozenset()) | {cpu}
    return groups
