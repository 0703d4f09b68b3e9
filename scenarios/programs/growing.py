"""A worker that takes 2 MiB more with each step, and is the one to be killed for it."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from elastic_harness.observe import report_step

MORE = 2 << 20


def main(steps: int) -> None:
    """All-reduce so often, and let go of nothing."""
    Path("/proc/self/oom_score_adj").write_text("1000")
    dist.init_process_group("gloo")
    value = torch.ones(1)
    kept = []
    for step in range(1, steps + 1):
        dist.all_reduce(value)
        kept.append(b"x" * MORE)
        report_step(step)
        time.sleep(0.04)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]))
