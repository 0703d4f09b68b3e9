"""Faults of the process that serves a store, which is found by the port."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

from elastic_harness.cluster.local_processes import listening_inodes, listens_at

from tests.unit.faults.bench import World

TABLE = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:72D8 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1
   1: 0100007F:72D8 0100007F:8000 01 00000000:00000000 00:00000000 00000000     0        0 4712 1
   2: 00000000:0050 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4713 1
"""


def served() -> World:
    """Return a world in which process 1001 serves the rendezvous's store."""
    world = World()
    world.endpoints["rendezvous"] = ("n1", 29400)
    world.cluster.sockets.serving["n1", 29400] = (1001,)
    return world


def test_only_sockets_that_listen_at_the_port_count(tmp_path: Path) -> None:
    """A recorded table: connections of that port, and listeners of others, do not."""
    table = tmp_path / "tcp"
    assert listening_inodes(str(table), 29400) == set()
    table.write_text(TABLE)
    assert listening_inodes(str(table), 29400) == {"4711"}


def test_a_process_that_listens_is_found() -> None:
    """This one; and not a process that is gone."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        port = sock.getsockname()[1]
        assert listens_at(os.getpid(), port)
        assert not listens_at(2**22 - 3, port)
    assert not listens_at(os.getpid(), port)


def test_a_killed_store_is_proven_by_the_end_of_who_served_it() -> None:
    """And by nothing less."""
    world = served()
    world.fire("kill_store", "rendezvous")
    world.pass_time(1)
    assert world.log == ["SIGKILL 1001"]
    assert world.story[-1] == "proved: gone: 1001 at n1:29400"


def test_a_frozen_store_goes_on_when_it_is_healed() -> None:
    """Those that were stopped, wherever the store is by then."""
    world = served()
    world.fire("freeze_store", "rendezvous")
    world.pass_time(0.1)
    assert world.story[-1] == "proved: state T: 1001 at n1:29400"
    # A later round has its store elsewhere, and one that is killed is started again.
    world.endpoints["rendezvous"] = ("n2", 29401)
    world.cluster.sockets.serving = {("n2", 29401): (1002,)}
    world.heal()
    world.heal()
    world.pass_time(0.1)
    assert world.log == ["SIGSTOP 1001", "SIGCONT 1001"]


def test_a_store_that_does_not_stand_still_is_continued_when_that_is_known() -> None:
    """Not proven, and not left half stopped."""
    world = served()
    world.processes[1001].ignores.add(signal.SIGSTOP)
    world.fire("freeze_store", "rendezvous")
    world.pass_time(10)
    assert world.story[-1] == "failed: not stopped: one of 1001"
    assert world.log[-1] == "SIGCONT 1001"


def test_a_slow_store_runs_by_turns() -> None:
    """Until it is healed."""
    world = served()
    world.fire("slow_store", {"which": "rendezvous", "share": "50%"})
    world.pass_time(1.05)
    assert world.story[-1] == "proved: 1001 at n1:29400 stopped for 50% of the time"
    world.endpoints.clear()
    world.heal()
    world.pass_time(1)
    assert world.processes[1001].state == "S"


def test_a_store_that_is_not_there_cannot_be_hit() -> None:
    """Not seen yet, its node gone, nobody at its port: each is said."""
    world = World()
    world.fire("kill_store", "workers")
    assert world.story == ["failed: no store of the workers has been seen yet"]
    world = served()
    world.endpoints["rendezvous"] = ("n9", 29400)
    world.fire("freeze_store", "rendezvous")
    assert world.story == ["failed: n9, which has the store of the rendezvous, is not up"]
    world = served()
    world.cluster.sockets.serving.clear()
    world.fire("slow_store", "rendezvous")
    assert world.story == ["failed: no process listens at n1:29400"]
