"""Tests that need a GPU: how many there are, and the reason where there is none."""

from __future__ import annotations

import pytest

MOST_WORKERS = 4


@pytest.fixture
def gpus() -> int:
    """Return how many GPUs there are to use; skip with the reason where there is none."""
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no CUDA device: torch.cuda.is_available() is False")
    if not torch.distributed.is_nccl_available():
        pytest.skip("this torch was built without NCCL")
    return min(MOST_WORKERS, torch.cuda.device_count())
