"""The variables of a worker that depend on more than its ranks."""

from __future__ import annotations

import signal
from collections.abc import Mapping

import pytest

from pytest_elastic.agent.environ import visible_device, worker_environ
from pytest_elastic.agent.ranks import worker_ranks
from pytest_elastic.errors import UsageError
from pytest_elastic.rendezvous.model import Assignment, Node


def environ_of(
    local_rank: int,
    base: Mapping[str, str],
    *,
    slots: int = 2,
    error_file: str | None = None,
    virtual_local_rank: bool = False,
) -> dict[str, str]:
    """Return the environment of a worker of the only node of a round."""
    assignment = Assignment(
        round=1,
        term=1,
        roster=(Node(name="n1", incarnation="a", address="10.0.0.1", slots=slots),),
        group_rank=0,
        restart_count=0,
        max_restarts=3,
        store_address="10.0.0.1",
        store_port=4000,
    )
    return worker_environ(
        base,
        assignment,
        worker_ranks(assignment)[local_rank],
        run_id="run7",
        error_file=error_file,
        signals=(signal.SIGTERM, signal.SIGUSR1),
        virtual_local_rank=virtual_local_rank,
    )


def test_a_worker_sees_all_devices_unless_it_asks_for_one() -> None:
    """Without --virtual-local-rank, CUDA_VISIBLE_DEVICES is as it was, or not there."""
    assert environ_of(1, {"CUDA_VISIBLE_DEVICES": "5,7"})["CUDA_VISIBLE_DEVICES"] == "5,7"
    plain = environ_of(1, {})
    assert "CUDA_VISIBLE_DEVICES" not in plain
    assert plain["LOCAL_RANK"] == "1"


@pytest.mark.parametrize(
    ("base", "device"),
    [
        ({}, "1"),
        ({"CUDA_VISIBLE_DEVICES": "5, 7"}, "7"),
        ({"CUDA_VISIBLE_DEVICES": "a,GPU-3"}, "GPU-3"),
    ],
)
def test_a_virtual_local_rank_is_0_on_the_workers_own_device(
    base: Mapping[str, str], device: str
) -> None:
    """The device is the one that its real local rank would have chosen; the rank stays."""
    seen = environ_of(1, base, virtual_local_rank=True)
    assert (seen["LOCAL_RANK"], seen["CUDA_VISIBLE_DEVICES"]) == ("0", device)
    assert (seen["RANK"], seen["LOCAL_WORLD_SIZE"]) == ("1", "2")


def test_no_device_is_left_for_a_worker_beyond_them() -> None:
    """An empty list names one device that is none, as torchrun reads it."""
    assert visible_device({"CUDA_VISIBLE_DEVICES": ""}, 0) == ""
    with pytest.raises(UsageError, match="local rank 1 has no device"):
        visible_device({"CUDA_VISIBLE_DEVICES": ""}, 1)


def test_threads_are_counted_where_workers_share_a_node() -> None:
    """One thread each, unless somebody said otherwise; a worker alone may take them all."""
    assert environ_of(0, {})["OMP_NUM_THREADS"] == "1"
    assert environ_of(0, {"OMP_NUM_THREADS": "6"})["OMP_NUM_THREADS"] == "6"
    assert "OMP_NUM_THREADS" not in environ_of(0, {}, slots=1)


def test_what_torchrun_says_of_itself_is_said() -> None:
    """The signals that the agent handles, and an error file that is empty where there is none."""
    seen = environ_of(0, {"TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGHUP"})
    assert seen["TORCHELASTIC_SIGNALS_TO_HANDLE"] == "SIGTERM,SIGUSR1"
    assert seen["TORCHELASTIC_ERROR_FILE"] == ""
    assert environ_of(0, {}, error_file="/e")["TORCHELASTIC_ERROR_FILE"] == "/e"
