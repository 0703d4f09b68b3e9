"""Faults of a worker's GPU: what the worker is told, what it answers, what is concluded."""

from __future__ import annotations

from pathlib import Path

import pytest
from elastic_harness.cluster.choose import find_cuda_devices

from tests.unit.faults.bench import World


@pytest.mark.parametrize("action", ["device_assert", "gpu_sleep", "nccl_abort"])
def test_a_worker_without_a_device_says_so_and_the_fault_has_failed(action: str) -> None:
    """With its words, at once, and the worker lives."""
    world = World()
    world.fire(action, "rank 1")
    world.answer(1, action, "refused", "its torch has no CUDA device")
    world.pass_time(0.1)
    assert world.story == [
        "in force, needs job",
        f"failed: rank 1 (n2, pid 1002) cannot {action}: its torch has no CUDA device",
    ]


def test_a_sleep_is_proven_by_the_time_that_the_device_took() -> None:
    """It is told so many milliseconds, and asked afterwards."""
    world = World()
    world.fire("gpu_sleep", {"worker": "rank 1", "lasts": "3s"})
    world.answer(1, "gpu_sleep")
    world.pass_time(0.1)
    assert world.processes[1002].orders == [
        {"do": "act", "act": "gpu_sleep", "argument": 3000, "by": "x"},
        {"do": "act", "act": "gpu_slept", "by": "x"},
    ]
    world.answer(1, "gpu_slept", "ended", "2987")
    world.pass_time(0.1)
    assert world.story[-1] == "proved: rank 1 (n2, pid 1002): 2987 ms"


def test_a_sleep_that_was_too_short_proves_nothing() -> None:
    """The device was not in the way."""
    world = World()
    world.fire("gpu_sleep", {"worker": "rank 1", "lasts": "3s"})
    world.answer(1, "gpu_sleep")
    world.pass_time(0.1)
    world.answer(1, "gpu_slept", "ended", "12")
    world.pass_time(0.1)
    assert world.story[-1].endswith("the kernel took 12 ms of 3000 ms")


def test_an_aborted_communicator_is_proven_by_the_worker_that_has_done_it() -> None:
    """That it began to is not enough."""
    world = World()
    world.fire("nccl_abort", "rank 1")
    world.answer(1, "nccl_abort", "began")
    world.pass_time(1)
    assert world.story == ["in force, needs job"]
    world.answer(1, "nccl_abort", "ended")
    world.pass_time(0.1)
    assert world.story[-1] == "proved: rank 1 (n2, pid 1002) has no communicator any more"


def test_a_device_is_what_the_driver_has_put_there(tmp_path: Path) -> None:
    """Not the control node alone."""
    (tmp_path / "nvidiactl").touch()
    assert find_cuda_devices(str(tmp_path)) == (
        False,
        f"there is no NVIDIA device ({tmp_path}/nvidia0)",
    )
    (tmp_path / "nvidia1").touch()
    has, why = find_cuda_devices(str(tmp_path))
    assert has
    assert f"{tmp_path}/nvidia1" in why
