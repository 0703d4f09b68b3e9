"""One rank: a fork of the server with a process group, which does its part and ends."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
from collections.abc import Iterator
from multiprocessing.connection import Connection

from elastic_harness.ranks.lookups import without_lookups
from elastic_harness.ranks.task import RankTask, ServerLink, Work

__all__ = ["STACKS_SIGNAL", "run_rank"]

# No test sends it, and no library does.
STACKS_SIGNAL = signal.SIGRTMIN + 12
# As torchrun chooses it: ranks share the processors.
_THREADS = 1


def run_rank(
    rank: int, task: RankTask, work: Work, *, store_port: int, conn: Connection, stacks_fd: int
) -> None:
    """Do the work and send what it returned; the caller ends the process."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    stacks = os.fdopen(stacks_fd, "wb", buffering=0, closefd=False)
    faulthandler.enable(stacks)
    faulthandler.register(STACKS_SIGNAL, stacks, all_threads=True)
    os.environ.update(_environment(rank, task, store_port))
    with _process_group(task.backend):
        # A rank that ended while others still connect would break their process group.
        conn.send(("ready", None))
        conn.recv()
        done = work(rank, task, ServerLink(conn))
        # Before the peers hear of it: whose failure was the first has to be known.
        conn.send(("done", done))
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()


def _environment(rank: int, task: RankTask, store_port: int) -> dict[str, str]:
    """Return what torchrun sets on one node, with a store that is hosted for the ranks."""
    place = {"RANK": rank, "LOCAL_RANK": rank, "ROLE_RANK": rank, "GROUP_RANK": 0}
    size = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"), task.size)
    store = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": store_port}
    job = {
        "TORCHELASTIC_USE_AGENT_STORE": True,
        "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_MAX_RESTARTS": 0,
        "TORCHELASTIC_RUN_ID": f"ranks-{store_port}",
        # gloo would look the host's name up, which need not have an address.
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
    }
    return {name: str(value) for name, value in {**place, **size, **store, **job}.items()}


@contextlib.contextmanager
def _process_group(backend: str) -> Iterator[None]:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(_THREADS)
    size, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    has_devices = torch.cuda.is_available() and torch.cuda.device_count() >= size
    if has_devices:
        torch.cuda.set_device(rank)
    with without_lookups():  # a query that gets no answer would cost the test five seconds
        dist.init_process_group(backend or ("cpu:gloo,cuda:nccl" if has_devices else "gloo"))
    yield
    # The test may have ended it, and a peer that failed leaves nothing to wait for.
    if dist.is_initialized():
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()
