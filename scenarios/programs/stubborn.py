"""A worker that ignores SIGTERM, and that the loss of a peer does not end either.

Native code that retries for ever behaves so, and so does Python that never gets back to its main
thread: only SIGKILL helps.
"""

from __future__ import annotations

import signal
import sys
import time

import torch
import torch.distributed as dist
from elastic_harness.observe import report_step


def main(steps: int) -> None:
    """All-reduce so often, and stand still for good once a peer is gone."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    dist.init_process_group("gloo")
    value = torch.ones(1)
    for step in range(1, steps + 1):
        try:
            dist.all_reduce(value)
        except RuntimeError:
            while True:
                time.sleep(60)
        report_step(step)
        time.sleep(0.02)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]))
