"""Workers that have no work in common: each ends when its own is done, some long before others.

Inference over shards of different sizes, an evaluation, a search: no rank waits for another, except
for the launcher, which must wait for all.
"""

from __future__ import annotations

import os
import sys
import time

import torch.distributed as dist
from elastic_harness.observe import report_step


def main(seconds: float) -> None:
    """Work for `seconds` times the rank, and for a moment at least."""
    dist.init_process_group("gloo")
    dist.barrier()
    until = time.monotonic() + seconds * int(os.environ["RANK"]) + 0.2
    step = 0
    while time.monotonic() < until:
        time.sleep(0.02)
        step += 1
        report_step(step)
    print(f"rank {os.environ['RANK']} is done after {step} steps", flush=True)  # noqa: T201
    os._exit(0)  # as a program does that has nothing to say to the others any more


if __name__ == "__main__":
    main(float(sys.argv[1]))
