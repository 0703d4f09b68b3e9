"""The smallest job that shows recovery: form a gloo group, all-reduce, again and again.

Each completed all-reduce is reported as a step, so that "back" means what it means to a user: every
rank of the new group has exchanged data with every other. With `--stuck`, a rank whose peer is gone
waits in C for ever, as in a collective of NCCL, where gloo raises an exception.
"""

from __future__ import annotations

import ctypes
import signal
import sys
import time
from typing import NoReturn

import torch
import torch.distributed as dist
from elastic_harness.observe import report_step

# Long enough that a fault falls between two steps, short enough to add nothing to what is measured.
_PAUSE_S = 0.01


def _wait_in_c() -> NoReturn:
    libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    while True:
        libc.pthread_mutex_lock(mutex)  # the second time for ever, whatever signals come


def main() -> None:
    """Run until the launcher says otherwise."""
    dist.init_process_group("gloo")
    value = torch.ones(1024)
    step = 0
    is_stuck = "--stuck" in sys.argv
    if is_stuck:
        signal.signal(signal.SIGTERM, lambda *_: None)  # never called, as the main thread is in C
    while True:
        try:
            dist.all_reduce(value)
        except RuntimeError:
            if is_stuck:
                _wait_in_c()
            raise
        value.fill_(1.0)
        step += 1
        report_step(step)
        time.sleep(_PAUSE_S)


if __name__ == "__main__":
    main()
