"""A worker that joins a gloo group, adds up all ranks, and writes what it got."""

from __future__ import annotations

import os
import sys
import time


def main(arguments: list[str]) -> int:
    """Join, all-reduce, write "world_size sum seconds" to the file named by the argument."""
    import torch
    import torch.distributed as dist

    started = time.monotonic()
    dist.init_process_group("gloo")
    total = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(total)
    took = time.monotonic() - started
    with open(f"{arguments[0]}/{os.environ['RANK']}", "w") as file:
        file.write(f"{dist.get_world_size()} {int(total.item())} {took:.3f}")
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
