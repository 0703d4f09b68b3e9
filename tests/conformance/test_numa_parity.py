"""`--numa-binding` chooses what torch would choose, on machines that are drawn into folders."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_elastic.errors import UsageError
from pytest_elastic.workers.affinity import MODES, Topology, choose_cpus
from pytest_elastic.workers.sysfs import find_gpus, read_topology

binding = pytest.importorskip("torch.numa.binding")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Sockets of NUMA nodes of caches of cores of threads, and the node of each GPU."""

    sockets: int
    nodes_per_socket: int
    caches_per_node: int
    cores_per_cache: int
    threads: int
    gpu_nodes: Sequence[int]
    allowed: frozenset[int]

    @property
    def nodes(self) -> int:
        return self.sockets * self.nodes_per_socket

    @property
    def cores(self) -> int:
        return self.nodes * self.caches_per_node * self.cores_per_cache

    def cpus(self, is_one: Callable[[int], bool]) -> list[int]:
        """Return the processors of those cores; threads are numbered as Linux does."""
        return [
            core + thread * self.cores
            for thread in range(self.threads)
            for core in range(self.cores)
            if is_one(core)
        ]

    def draw(self, root: Path) -> Sequence[str]:
        """Write the files that Linux would show; return the addresses of the GPUs."""
        per_node = self.caches_per_node * self.cores_per_cache
        put(root, "devices/system/node/online", listed(range(self.nodes)))
        put(root, "devices/system/node/possible", listed(range(self.nodes)))
        for node in range(self.nodes):
            cpus = self.cpus(lambda core, node=node: core // per_node == node)  # type: ignore[misc]
            put(root, f"devices/system/node/node{node}/cpulist", listed(cpus))
        for cpu in self.cpus(lambda _: True):
            core = cpu % self.cores
            folder = f"devices/system/cpu/cpu{cpu}"
            siblings = self.cpus(lambda other, core=core: other == core)  # type: ignore[misc]
            put(root, f"{folder}/topology/thread_siblings_list", listed(siblings))
            socket = core // (per_node * self.nodes_per_socket)
            put(root, f"{folder}/topology/physical_package_id", str(socket))
            group = core // self.cores_per_cache
            sharing = self.cpus(
                lambda other, group=group: other // self.cores_per_cache == group  # type: ignore[misc]
            )
            for index, (level, kind, cpus) in enumerate(
                [("1", "Data", siblings), ("3", "Unified", sharing), ("4", "Instruction", [cpu])]
            ):
                put(root, f"{folder}/cache/index{index}/level", level)
                put(root, f"{folder}/cache/index{index}/type", kind)
                put(root, f"{folder}/cache/index{index}/shared_cpu_list", listed(cpus))
        for gpu, node in enumerate(self.gpu_nodes):
            put(root, f"bus/pci/devices/{address(gpu)}/numa_node", str(node))
        return [address(gpu) for gpu in range(len(self.gpu_nodes))]


def put(root: Path, path: str, text: str) -> None:
    """Write one file of the tree."""
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text + "\n")


def listed(numbers: Iterable[int]) -> str:
    """Write numbers as the kernel does: "0-3,8"."""
    return str(binding._get_ranges_str_from_ints(set(numbers)))


def address(gpu: int) -> str:
    """Return the PCI address of a drawn GPU."""
    return f"0000:{0x18 + gpu:02x}:00.0"


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    """Draw a machine with one to five GPUs, of which this process may use a part."""
    shape = {
        name: draw(st.integers(min_value=1, max_value=most))
        for name, most in (
            ("sockets", 2),
            ("nodes_per_socket", 2),
            ("caches_per_node", 2),
            ("cores_per_cache", 3),
        )
    }
    threads = draw(st.sampled_from([1, 2]))
    nodes = shape["sockets"] * shape["nodes_per_socket"]
    cpus = nodes * shape["caches_per_node"] * shape["cores_per_cache"] * threads
    gpu_nodes = draw(
        st.lists(st.integers(-1 if nodes == 1 else 0, nodes - 1), min_size=1, max_size=5)
    )
    share = draw(st.sets(st.integers(0, cpus - 1), min_size=1))
    allowed = frozenset(range(cpus) if draw(st.booleans()) else share)
    return Machine(**shape, threads=threads, gpu_nodes=gpu_nodes, allowed=allowed)


def torchs_choice(
    machine: Machine, root: Path, mode: str, gpu: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[int, ...] | None:
    """Return what torch chooses on the drawn machine, or None where it raises or finds nothing."""

    def there(path: str) -> str:
        return str(root / path.removeprefix("/sys/"))

    def properties(index: int) -> SimpleNamespace:
        return SimpleNamespace(pci_domain_id=0, pci_bus_id=0x18 + index, pci_device_id=0)

    names: dict[str, Any] = {
        "open": lambda path: io.StringIO(Path(there(path)).read_text()),
        "os": SimpleNamespace(listdir=lambda path: os.listdir(there(path)), path=os.path),
        "_get_gpu_count": lambda: len(machine.gpu_nodes),
        "_get_allowed_cpu_indices_for_current_thread": lambda: set(machine.allowed),
    }
    with monkeypatch.context() as patch:
        for name, value in names.items():
            patch.setattr(binding, name, value, raising=False)
        patch.setattr(binding.torch.cuda, "get_device_properties", properties)
        options = binding.NumaOptions(affinity_mode=binding.AffinityMode(mode))
        try:
            cpus = binding._get_logical_cpus_to_bind_to(gpu_index=gpu, numa_options=options)
        except (RuntimeError, ValueError, ZeroDivisionError):
            return None
    return tuple(sorted(cpus)) or None


def our_choice(topology: Topology, mode: str, gpu: int) -> tuple[int, ...] | None:
    """Return what is chosen here, or None where it is refused."""
    try:
        return tuple(sorted(MODES[mode](topology, gpu))) or None
    except UsageError:
        return None


@given(machine=machines())
def test_torch_would_choose_the_same(
    machine: Machine, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """In every mode, for every GPU; where torch fails for want of processors, it is refused."""
    root = tmp_path_factory.mktemp("sys")
    drawn = read_topology(machine.draw(root), sys_path=str(root))
    topology = Topology(
        nodes=drawn.nodes,
        cores=drawn.cores,
        caches=drawn.caches,
        sockets=drawn.sockets,
        allowed=machine.allowed,
        gpu_nodes=drawn.gpu_nodes,
    )
    with pytest.MonkeyPatch.context() as monkeypatch:
        for mode in (member.value for member in binding.AffinityMode):
            for gpu in range(len(machine.gpu_nodes)):
                theirs = torchs_choice(machine, root, mode, gpu, monkeypatch)
                ours = our_choice(topology, mode, gpu)
                # torch fails where some node of the machine has no processor for this process.
                is_torchs_fault = mode == "socket" and theirs is None
                assert ours == theirs or is_torchs_fault, (mode, gpu)


def test_this_machine_can_be_read() -> None:
    """Its processors are those of its nodes, and one on node 0 may be bound to."""
    if not os.path.exists("/sys/devices/system/node/online"):
        pytest.skip("this kernel shows no NUMA nodes")
    topology = read_topology(())
    assert topology.allowed == os.sched_getaffinity(0)
    assert topology.allowed <= frozenset().union(*topology.nodes.values())
    assert topology.cores.keys() == topology.caches.keys() == topology.sockets.keys()


def test_what_the_kernel_hides_is_named(tmp_path: Path) -> None:
    """A container without these files is refused, with the file that is not there."""
    with pytest.raises(UsageError, match=r"does not tell enough: .*node/online"):
        read_topology((), sys_path=str(tmp_path))


@pytest.mark.slow
def test_gpus_are_those_that_torch_has() -> None:
    """One address for each, in torch's order; none where there is none."""
    import torch

    gpus = find_gpus()
    assert len(gpus) == torch.cuda.device_count()
    assert all(Path(f"/sys/bus/pci/devices/{gpu}").exists() for gpu in gpus)
    if not gpus:
        with pytest.raises(UsageError, match="and 0 GPUs"):
            choose_cpus("node", read_topology(gpus), 1)
