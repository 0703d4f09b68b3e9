"""A program that talks through the store of its group, and must never hear of an older round.

Each rank leaves a key there and counts. A rank that finds one that an earlier round has left would
take a dead peer for a living one, so it gives up with exit code 7.
"""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist
from elastic_harness.observe import report_step

STALE = 7


def main(steps: int) -> None:
    """Look for what is there already, leave a key, and all-reduce so often."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True",
    )
    mine = dist.PrefixStore("mine", store)
    if mine.add(f"seen-{rank}", 1) != 1:
        print(f"rank {rank} found a key of an earlier round", flush=True)  # noqa: T201
        sys.exit(STALE)
    dist.init_process_group(
        "gloo", store=dist.PrefixStore("group", store), rank=rank, world_size=size
    )
    value = torch.ones(1)
    for step in range(1, steps + 1):
        dist.all_reduce(value)
        report_step(step)
        time.sleep(0.02)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]))
