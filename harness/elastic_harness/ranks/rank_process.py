"""What the server forks: ranks with a process group, and the host of their stores.

A rank does its part and ends. Stores have a process of their own: it has threads, and what forks
ranks must not.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import socket
import sys
from collections.abc import Iterator
from datetime import timedelta
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from elastic_harness.cluster.node.namespace import die_with_parent
from elastic_harness.ranks.task import RankTask, ServerLink, Work
from pytest_elastic.errors import Unavailable
from pytest_elastic.name_servers import without_name_servers

__all__ = ["STACKS_SIGNAL", "StoreHost", "run_rank", "without_lookups"]

# No test sends it, and no library does.
STACKS_SIGNAL = signal.SIGRTMIN + 12
_LOOPBACK = "127.0.0.1"
# As long as torch waits in a process group: the server ends ranks at their limit, which stands
# still while a debugger is open.
_WAIT_S = 1800.0
# What a test has left may be nothing.
_LEAST_S = 1.0
# As torchrun chooses it: ranks share the processors.
_THREADS = 1
_REMARK = b"The hostname of the client socket cannot be retrieved"


def run_rank(
    rank: int, task: RankTask, work: Work, *, store_port: int, conn: Connection, stacks_fd: int
) -> None:
    """Do the work and send what it returned; the caller ends the process."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    stacks = os.fdopen(stacks_fd, "wb", buffering=0, closefd=False)
    faulthandler.enable(stacks)
    faulthandler.register(STACKS_SIGNAL, stacks, all_threads=True)
    os.environ.update(_environment(rank, task, store_port))
    with _process_group(task):
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
    store = {"MASTER_ADDR": _LOOPBACK, "MASTER_PORT": store_port}
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
def _process_group(task: RankTask) -> Iterator[None]:
    """Make the process group by other keys of the store than those of the variables.

    One that the test makes by these, when it has ended this one, would else find where the ranks
    were before.
    """
    import torch
    import torch.distributed as dist

    torch.set_num_threads(_THREADS)
    size, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    has_devices = torch.cuda.is_available() and torch.cuda.device_count() >= size
    if has_devices:
        torch.cuda.set_device(rank)
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    with without_lookups():  # a query that gets no answer would cost the test five seconds
        store = _store(address, port, is_master=False, limit_s=_WAIT_S)
        dist.init_process_group(
            task.backend or ("cpu:gloo,cuda:nccl" if has_devices else "gloo"),
            store=dist.PrefixStore("ranks", store),  # type: ignore[attr-defined]
            rank=rank,
            world_size=size,
        )
    yield
    # The test may have ended it, and a peer that failed leaves nothing to wait for.
    if dist.is_initialized():
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()


class StoreHost:
    """Hosts one store at a time, on a port of the kernel's choice."""

    def __init__(self) -> None:
        self._conn, other = Pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                die_with_parent(signal.SIGKILL)
                self._conn.close()
                _host(other)
            finally:
                os._exit(1)
        other.close()

    def renew(self, limit_s: float) -> int:
        """Let the present store go and host an empty one; return its port.

        Raises Unavailable where no rank could connect to it.
        """
        self._conn.send(max(limit_s, _LEAST_S))
        port: int | str = self._conn.recv()
        if isinstance(port, str):
            raise Unavailable(port)
        return port


def _host(conn: Connection) -> None:
    store = None
    while True:
        limit_s = conn.recv()
        store = None
        try:
            # torch goes on trying until its limit, whatever the reason is.
            with socket.create_server((_LOOPBACK, 0)) as server:
                socket.create_connection(server.getsockname(), limit_s).close()
            with without_lookups():
                store = _store(_LOOPBACK, 0, is_master=True, limit_s=limit_s)
        except (OSError, RuntimeError) as error:
            conn.send(
                f"ranks reach each other by {_LOOPBACK}, to which no connection can be made here "
                f"({error}): is the loopback interface up? `ip link set lo up`"
            )
        else:
            conn.send(store.port)


def _store(address: str, port: int, *, is_master: bool, limit_s: float) -> Any:  # noqa: ANN401 (torch's)
    import torch.distributed as dist

    return dist.TCPStore(  # type: ignore[attr-defined]
        address,
        port,
        is_master=is_master,
        wait_for_workers=False,
        timeout=timedelta(seconds=limit_s),
    )


@contextlib.contextmanager
def without_lookups() -> Iterator[None]:
    """Let this thread ask no DNS server, whose answer may take seconds, and torch not remark on it.

    torch wants names for its log lines alone. All else that is written to standard error meanwhile
    is written there at the end.
    """
    sys.stderr.flush()
    real, held = os.dup(2), os.memfd_create("remarks")
    os.dup2(held, 2)
    try:
        with without_name_servers():
            yield
    finally:
        os.dup2(real, 2)
        os.close(real)
        lines = os.pread(held, os.fstat(held).st_size, 0).splitlines(keepends=True)
        os.close(held)
        if said := b"".join(line for line in lines if _REMARK not in line):
            os.write(2, said)
