"""A descriptor of a process tells whether it is there, on every kernel alike."""

from __future__ import annotations

import os

import pytest

from pytest_elastic.boot.descriptors import open_pidfd


def test_a_leader_that_its_group_has_outlived_is_gone() -> None:
    """Kernels differ in what they say of it."""
    reading, writing = os.pipe()
    leader = os.fork()
    if leader == 0:
        os.setpgid(0, 0)
        if os.fork() == 0:
            os.close(writing)
            os.read(reading, 1)
        os._exit(0)
    os.close(reading)
    try:
        os.waitpid(leader, 0)
        os.killpg(leader, 0)  # somebody is in its group
        with pytest.raises(ProcessLookupError):
            open_pidfd(leader)
    finally:
        os.close(writing)
