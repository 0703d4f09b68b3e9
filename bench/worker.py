"""The smallest job that shows recovery: form a gloo group, all-reduce, again and again.

Each completed all-reduce is reported as a step, so that "back" means what it means to a user: every
rank of the new group has exchanged data with every other.
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from elastic_harness.observe import report_step

# Long enough that a fault falls between two steps, short enough to add nothing to what is measured.
_PAUSE_S = 0.01


def main() -> None:
    """Run until the launcher says otherwise."""
    dist.init_process_group("gloo")
    value = torch.ones(1024)
    step = 0
    while True:
        dist.all_reduce(value)
        value.fill_(1.0)
        step += 1
        report_step(step)
        time.sleep(_PAUSE_S)


if __name__ == "__main__":
    main()
