"""What runs on each node of `bench.scale`: a gloo group that goes on until it is told to stop.

It imports nothing but torch, so that its memory is that of the group.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

__all__ = ["main"]


def main(arguments: list[str]) -> int:
    """Join the group and all-reduce until rank 0 finds that it is enough (called on a node)."""
    import torch
    import torch.distributed as dist

    folder = Path(arguments[0])
    dist.init_process_group("gloo")
    value = torch.ones(1)
    dist.all_reduce(value)
    (folder / os.environ["RANK"]).touch()
    while True:
        stop = torch.tensor([float((folder / "stop").exists())])
        dist.broadcast(stop, 0)
        if stop.item():
            return 0
        time.sleep(0.05)
