"""R10: a coordinator tells its own node of the end, too, however late that one comes to it."""

from __future__ import annotations

import pytest
from elastic_simulation.granted import ETCD
from elastic_simulation.world import World, settings
from elastic_simulation.worlds import new_world

from tests.spec.test_the_end_of_successors import result, succeed

NAMES = ("n1", "n2", "n3")
KILLING_S = 20.0


def over_while_it_kills(quorum: str) -> World:
    """Return a world whose job is over while n1, which decides, still kills its workers.

    They heeded nothing, so it was evicted, and the others went on without it. Its coordinator has
    stayed for it for `linger_s`.
    """
    config = settings("2:3", quorum=quorum, linger_s=1.0)
    world = new_world(config)
    world.start(*NAMES)
    world.run_until(lambda: world.all_run(*NAMES), within_s=5.0)
    decides = world.agent("n1")
    decides.stop_s, decides.kill_s = 1000.0, KILLING_S
    world.fail("n2")
    world.reform("n2", "n3", within_s=KILLING_S)
    succeed(world, "n2", "n3")
    host = world.host
    assert host is world.processes["n1"]
    world.run_until(lambda: host.finished is not None, within_s=5.0)
    return world


@pytest.mark.parametrize("quorum", ["coordinator", "majority", "granted"])
def test_r10_a_coordinator_tells_its_own_member_long_after_all_others(quorum: str) -> None:
    """It waited for no node any more; the agent stays, and has no other node to ask."""
    world = over_while_it_kills(quorum)
    world.run_until(lambda: result(world, "n1") == "succeeded", within_s=KILLING_S)
    world.run_until(lambda: not world.processes["n1"].is_alive, within_s=5.0)


def test_r10_to_tell_the_end_needs_no_key_any_more() -> None:
    """The end was written down; etcd is out of reach since, and the key has run out."""
    world = over_while_it_kills("granted")
    world.isolate("n1", (ETCD,))
    world.run_until(lambda: result(world, "n1") == "succeeded", within_s=KILLING_S)
