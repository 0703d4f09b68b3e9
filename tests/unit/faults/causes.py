"""What happens in a played world: by a fault, and the same by another cause."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

from elastic_harness.cluster.disks.policy import DiskCounters
from elastic_harness.cluster.facets import Limited
from elastic_harness.cluster.process import ProcessRef

from tests.unit.faults.bench import World

__all__ = [
    "Act",
    "breaks",
    "counts",
    "counts_for_another",
    "ends",
    "ends_instead",
    "freezes_otherwise",
    "has_a_file",
    "is_damaged_already",
    "is_lied_to_by_another",
    "is_refused_a_file",
    "is_skewed_by_another",
    "is_stopped",
    "is_stopped_by_another",
    "kills_for_memory",
    "launcher_ends_instead",
    "launcher_is_stopped",
    "looks_up",
    "meets",
    "meets_a_lower_limit",
    "meets_disk",
    "meets_toxic",
    "node_goes",
    "nothing",
    "others_are_taken",
    "others_come",
    "peers_are_stopped",
    "proxy_is",
    "says",
    "sends",
    "sends_elsewhere",
    "served",
    "sleeps",
]

Act = Callable[[World], None]


def nothing(world: World) -> None:
    """Do nothing."""
    del world


def served(world: World) -> None:
    """Let process 1001 serve the rendezvous's store."""
    world.endpoints["rendezvous"] = ("n1", 29400)
    world.cluster.sockets.serving["n1", 29400] = (1001,)


def ends(code: int = 1) -> Act:
    """End the worker with an exit code, negative: by that signal."""

    def end(world: World) -> None:
        world.end(1, code)

    return end


def says(
    act: str,
    *,
    ends: int | None = None,
    detail: str = "",
    phase: str = "began",
    by: str = "x",
) -> Act:
    """Say how far the worker is with an order, and perhaps end it."""

    def show(world: World) -> None:
        world.answer(1, act, phase, detail, by=by)
        if ends is not None:
            world.end(1, ends)

    return show


def sleeps(took: str) -> Act:
    """Say how long its GPU was busy, in milliseconds."""

    def show(world: World) -> None:
        world.answer(1, "gpu_sleep", "began")
        world.pass_time(1)
        world.answer(1, "gpu_slept", "ended", took)

    return show


def counts(**counted: int) -> Act:
    """Count something in the kernel."""

    def show(world: World) -> None:
        world.budget.count("n2", **counted)

    return show


def counts_for_another(of: Limited, narrower: float, **counted: int) -> Act:
    """The kernel counts, under the narrower limit of another fault."""

    def show(world: World) -> None:
        world.context.limits.limit("another", "n2", of, narrower)
        world.pass_time(1)
        world.budget.count("n2", **counted)

    return show


def kills_for_memory(code: int) -> Act:
    """Count a kill for lack of memory, and end the worker so."""

    def show(world: World) -> None:
        world.answer(1, "eat")
        world.pass_time(0.1)
        world.budget.count("n2", memory_kills=1)
        world.end(1, code)

    return show


def meets_disk(counter: str, *, by: str = "x") -> Act:
    """Count an operation that the policy of an owner has acted on."""

    def show(world: World) -> None:
        world.cluster.disks.counts = DiskCounters(by_owner={by: {counter: 1}})

    return show


def sends(world: World) -> None:
    """Send packets that most links of the examples are for."""
    world.send("n1", "n2", packets=500)


def meets(action: str, value: Any) -> Act:  # noqa: ANN401 (what a scenario may say)
    """Another fault is on the same links, and it is the one that acts."""

    def show(world: World) -> None:
        world.fire(action, value, entry_id="another")
        world.pass_time(0.5)
        sends(world)

    return show


def sends_elsewhere(world: World) -> None:
    """Send a packet over a link that is not meant."""
    world.send("n1", "n3")


def looks_up(world: World) -> None:
    """Look up a name."""
    world.look_up("n2", "n1")


def is_lied_to_by_another(world: World) -> None:
    """Look up a name that another fault has changed."""
    world.fire("names", {"node": "n2", "of": "n1", "missing": True}, entry_id="another")
    looks_up(world)


def is_refused_a_file(world: World) -> None:
    """Say that the script was refused a file."""
    world.answer(1, "watch_files", "ended", "open '/tmp/x'")


def meets_a_lower_limit(world: World) -> None:
    """Say so, where the limit of another fault is lower."""
    world.context.limits.limit_files("another", world.worker(1), free=-1)
    is_refused_a_file(world)


def meets_toxic(name: str) -> Act:
    """Let connections meet a toxic."""

    def show(world: World) -> None:
        world.proxies.met["db", name, "downstream"] = 1

    return show


def is_stopped(*pids: int) -> Act:
    """Stop processes, by no fault."""

    def stop(world: World) -> None:
        for pid in pids:
            world.processes[pid].state = "T"

    return stop


def launcher_is_stopped(world: World) -> None:
    """Stop a launcher, by no fault."""
    world.processes[world.launchers["n2"]].state = "T"


def peers_are_stopped(world: World) -> None:
    """Let the worker stand, and its peers be stopped."""
    world.answer(1, "stand")
    is_stopped(1001, 1003)(world)


def is_stopped_by_another(node: str, pid: int) -> Act:
    """Stop a process by another fault."""

    def stop(world: World) -> None:
        world.context.stops.stop("another", ProcessRef(node=node, pid=pid))

    return stop


def ends_instead(pid: int, code: int) -> Act:
    """It ends otherwise, in the moment in which the signal comes."""

    def before(world: World) -> None:
        world.cluster.ends_instead[pid] = code

    return before


def launcher_stays(world: World) -> None:
    """Let the launcher ignore that it is to leave."""
    world.processes[world.launchers["n2"]].ignores = {signal.SIGTERM}


def launcher_ends_instead(code: int) -> Act:
    """End the launcher otherwise, in the moment in which the signal comes."""

    def before(world: World) -> None:
        world.cluster.ends_instead[world.launchers["n2"]] = code

    return before


def breaks(operation: str) -> Act:
    """Have the cluster refuse an operation."""

    def refuse(world: World) -> None:
        world.broken.add(operation)

    return refuse


def freezes_otherwise(world: World) -> None:
    """Freeze a node, while the cluster refuses to."""
    world.broken.add("pause")
    world.cluster.frozen.add("n2")


def node_goes(world: World) -> None:
    """Let the node end by itself."""
    world.lose("n2")


def others_come(world: World) -> None:
    """Let nodes of these names come, while the cluster refuses to start any."""
    world.broken.add("start")
    world.come("n4", "n5")


def proxy_is(proxy: str, *, on: bool) -> Act:
    """Let another fault have switched a proxy."""

    def before(world: World) -> None:
        world.proxies.switched["another"] = (proxy, on)

    return before


def others_are_taken(world: World) -> None:
    """Let a store take the connections of others only."""
    world.strangers.refuses = "connection refused"
    world.strangers.send("another", "n2", ("n1", 29400), b"", connections=3)


def is_damaged_already(world: World) -> None:
    """Let the file be as it would be damaged."""
    world.write("model.pt", bytes(200))


def has_a_file(world: World) -> None:
    """Let the job have saved something."""
    world.write("model.pt")


def is_skewed_by_another(world: World) -> None:
    """Let another fault have skewed the clock by as much."""
    world.context.clocks.set("another", "n2", 20.0)
    world.answer(1, "tell_time", "ended", "1020.0")
