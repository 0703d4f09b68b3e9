"""How storms draw the built-in faults, and why some of them are not drawn.

What is drawn ends by itself or heals within a few seconds, so that a job with enough restarts can
survive it. Everything is plain data, as a scenario file would say it. A new recipe, or a change of
one, makes the same seed draw something else: that is fine between versions, because `plan.json`
has the entries themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Final

from elastic_harness.faults.recipe import Drawn, Recipe, Sketch
from elastic_harness.network.traffic import CLASSES
from elastic_harness.scenario.fields import format_duration

__all__ = ["NOT_DRAWN", "RECIPES"]

# Cuts of these shapes leave something to be cut only with so many nodes.
_RING_NODES: Final = 4
_BRIDGE_NODES: Final = 3


def _duration(random: Random, low_s: float, high_s: float) -> str:
    """Return a time in whole hundredths of a second, as scenarios write it."""
    return format_duration(round(random.uniform(low_s, high_s), 2))


def _percent(random: Random, low: int, high: int) -> str:
    return f"{random.randint(low, high)}%"


def _rank(random: Random, sketch: Sketch) -> str:
    return f"rank {random.randrange(sketch.ranks)}"


def _node(random: Random, sketch: Sketch) -> str:
    return random.choice(sketch.nodes)


def _has_nodes(sketch: Sketch) -> bool:
    return bool(sketch.nodes)


def _has_proxies(sketch: Sketch) -> bool:
    return bool(sketch.proxies)


def _has_links(sketch: Sketch) -> bool:
    return bool(sketch.nodes) and len(sketch.all_nodes) > 1


# --- workers


def _kill(random: Random, sketch: Sketch) -> Drawn:
    signal = random.choice(("SIGKILL", "SIGKILL", "SIGSEGV", "SIGABRT", "SIGBUS"))
    return {"kill": {"worker": _rank(random, sketch), "signal": signal}}


def _exit(random: Random, sketch: Sketch) -> Drawn:
    return {"exit": {"worker": _rank(random, sketch), "code": random.randint(1, 255)}}


def _raise(random: Random, sketch: Sketch) -> Drawn:
    error = random.choice(("RuntimeError", "ValueError", "MemoryError", "OSError"))
    return {"raise": {"worker": _rank(random, sketch), "error": error}}


def _segfault(random: Random, sketch: Sketch) -> Drawn:
    return {"segfault": {"worker": _rank(random, sketch)}}


def _abort(random: Random, sketch: Sketch) -> Drawn:
    return {"abort": {"worker": _rank(random, sketch)}}


def _hang(random: Random, sketch: Sketch) -> Drawn:
    # Peers are seen to wait in a collective after a second, not before.
    how, least_s = random.choice((("stop", 0.1), ("gil", 0.1), ("collective", 1.5)))
    hang = {"worker": _rank(random, sketch), "how": how}
    return {"hang": hang, "for": _duration(random, least_s, 3)}


def _slow(random: Random, sketch: Sketch) -> Drawn:
    slow = {"worker": _rank(random, sketch), "share": _percent(random, 10, 60)}
    return {"slow": slow, "for": _duration(random, 0.5, 4)}


def _pause_worker(random: Random, sketch: Sketch) -> Drawn:
    return {"pause": {"worker": _rank(random, sketch)}, "for": _duration(random, 0.1, 2)}


# --- agents and nodes


def _pause_agent(random: Random, sketch: Sketch) -> Drawn:
    return {"pause": {"agent": _node(random, sketch)}, "for": _duration(random, 0.1, 2)}


def _pause_node(random: Random, sketch: Sketch) -> Drawn:
    return {"pause": {"node": _node(random, sketch)}, "for": _duration(random, 0.1, 3)}


def _reboot(random: Random, sketch: Sketch) -> Drawn:
    return {"reboot": {"node": _node(random, sketch), "downtime": _duration(random, 0, 2)}}


def _replace(random: Random, sketch: Sketch) -> Drawn:
    by = random.choice(("crash", "power_cut"))
    downtime = _duration(random, 0, 2)
    return {"replace": {"node": _node(random, sketch), "by": by, "downtime": downtime}}


# --- the network


def _traffic(random: Random) -> Drawn:
    """Return nothing, mostly, or one class of traffic."""
    return {"traffic": random.choice(CLASSES)} if random.random() < 0.25 else {}


def _shape(random: Random, sketch: Sketch) -> Drawn:
    """Return a shape of a cut. Most cut off one node, which all jobs have."""
    shapes = ["isolate", "isolate", "one way", "between", "halves", "pairs"]
    if len(sketch.all_nodes) >= _BRIDGE_NODES:
        shapes.append("bridge")
    if len(sketch.all_nodes) >= _RING_NODES:
        shapes.append("ring")
    shape = random.choice(shapes)
    one = _node(random, sketch)
    other = random.choice([name for name in sketch.all_nodes if name != one])
    source, to = random.sample((one, other), 2)
    cuts: dict[str, Drawn] = {
        "isolate": {"isolate": one},
        "one way": {"from": source, "to": to},
        "between": {"between": [source, to]},
        "halves": {"shape": "halves"},
        "pairs": {"pairs": [[source, to]]},
        "bridge": {"bridge": one},
        "ring": {"shape": "ring"},
    }
    return cuts[shape]


def _partition(random: Random, sketch: Sketch) -> Drawn:
    mode = random.choice(("drop", "drop", "reject", "hold"))
    cut = {**_shape(random, sketch), "mode": mode, **_traffic(random)}
    return {"partition": cut, "for": _duration(random, 0.3, 4)}


def _flap(random: Random, sketch: Sketch) -> Drawn:
    times = {"down": _duration(random, 0.1, 0.6), "up": _duration(random, 0.1, 1)}
    cut = {**_shape(random, sketch), **times, **_traffic(random)}
    return {"flap": cut, "for": _duration(random, 1, 4)}


def _degrade(random: Random, sketch: Sketch) -> Drawn:
    link: Drawn = {"node": _node(random, sketch), "latency": _duration(random, 0.005, 0.1)}
    link["loss"] = _percent(random, 0, 3)
    return {"degrade": {**link, **_traffic(random)}, "for": _duration(random, 0.5, 4)}


def _damage(random: Random, sketch: Sketch) -> Drawn:
    """Everything that a bad link does beside being slow."""
    link: Drawn = {"node": _node(random, sketch)}
    what = random.choice(("jitter", "burst_loss", "corrupt", "duplicate", "reorder", "rate"))
    if what == "jitter":
        link["latency"] = link["jitter"] = _duration(random, 0.005, 0.05)
        link["distribution"] = random.choice(("uniform", "normal", "pareto", "exponential"))
    elif what == "burst_loss":
        enter, leave = _percent(random, 1, 2), _percent(random, 20, 50)
        link[what] = {"enter": enter, "leave": leave}
    elif what == "rate":
        link[what] = f"{random.randint(5, 100)}mbit"
    else:
        link[what] = _percent(random, 1, 5)
    return {"degrade": {**link, **_traffic(random)}, "for": _duration(random, 0.5, 4)}


def _reset(random: Random, sketch: Sketch) -> Drawn:
    reset = {"node": _node(random, sketch), **_traffic(random)}
    return {"reset": reset, "for": _duration(random, 0.2, 2)}


def _names(random: Random, sketch: Sketch) -> Drawn:
    one = _node(random, sketch)
    of = random.choice([name for name in sketch.all_nodes if name != one])
    how: Drawn = random.choice(({"missing": True}, {"wrong": "10.77.0.250"}, {"slow": "500ms"}))
    return {"names": {"node": one, "of": of, **how}, "for": _duration(random, 0.5, 3)}


def _toxic(random: Random, sketch: Sketch) -> Drawn:
    given: dict[str, Drawn] = {
        "latency": {"latency": _duration(random, 0.01, 0.3), "jitter": "10ms"},
        "bandwidth": {"rate": f"{random.randint(1, 50)}mbit"},
        "slow_close": {"delay": _duration(random, 0.05, 0.5)},
        "slicer": {"average_size": random.randint(8, 512), "size_variation": 4},
        "limit_data": {"bytes": random.randint(100, 10_000)},
        "reset_peer": {"timeout": _duration(random, 0, 0.5)},
        "timeout": {"timeout": _duration(random, 0.1, 1)},
    }
    toxic: Drawn = {"proxy": random.choice(sketch.proxies), "type": random.choice(list(given))}
    toxic |= given[toxic["type"]]
    toxic["stream"] = random.choice(("downstream", "upstream"))
    return {"toxic": toxic, "for": _duration(random, 0.5, 3)}


def _disable_proxy(random: Random, sketch: Sketch) -> Drawn:
    proxy = random.choice(sketch.proxies)
    return {"disable_proxy": {"proxy": proxy}, "for": _duration(random, 0.2, 2)}


# --- stores


def _freeze_store(random: Random, _: Sketch) -> Drawn:
    which = random.choice(("rendezvous", "workers"))
    return {"freeze_store": {"which": which}, "for": _duration(random, 0.1, 2)}


def _slow_store(random: Random, _: Sketch) -> Drawn:
    which = random.choice(("rendezvous", "workers"))
    slow = {"which": which, "share": _percent(random, 10, 60)}
    return {"slow_store": slow, "for": _duration(random, 0.7, 3)}


def _kill_store(_random: Random, _sketch: Sketch) -> Drawn:
    return {"kill_store": {"which": "workers"}}


def _foreign_bytes(random: Random, _: Sketch) -> Drawn:
    which = random.choice(("rendezvous", "workers"))
    send = random.choice(("random", "http", "torn", "huge", "stale", "silence"))
    strangers = {"which": which, "send": send, "connections": random.randint(1, 20)}
    return {"foreign_bytes": strangers, "for": _duration(random, 0.1, 3)}


# --- resources


def _cpu_limit(random: Random, sketch: Sketch) -> Drawn:
    limit = {"node": _node(random, sketch), "share": _percent(random, 10, 60)}
    return {"cpu_limit": limit, "for": _duration(random, 0.5, 4)}


def _memory_limit(random: Random, sketch: Sketch) -> Drawn:
    limit = {"node": _node(random, sketch), "size": f"{random.randint(16, 128)}MiB"}
    return {"memory_limit": limit, "for": _duration(random, 0.5, 3)}


def _oom(random: Random, sketch: Sketch) -> Drawn:
    return {"oom": {"worker": _rank(random, sketch), "headroom": "64MiB"}}


def _process_limit(random: Random, sketch: Sketch) -> Drawn:
    limit = {"node": _node(random, sketch), "free": random.randint(4, 32)}
    return {"process_limit": limit, "for": _duration(random, 0.3, 2)}


def _file_limit(random: Random, sketch: Sketch) -> Drawn:
    limit = {"worker": _rank(random, sketch), "free": random.randint(0, 16)}
    return {"file_limit": limit, "for": _duration(random, 0.3, 3)}


# --- disks and clocks


def _disk(random: Random, sketch: Sketch) -> str:
    """Return whose disk: checkpoints are mostly written on the node of rank 0."""
    return random.choice(("rank 0 host", random.choice(sketch.all_nodes)))


def _disk_full(random: Random, sketch: Sketch) -> Drawn:
    full = {"node": _disk(random, sketch), "free": f"{random.randint(0, 64)}KiB"}
    return {"disk_full": full, "for": _duration(random, 0.3, 3)}


def _disk_read_only(random: Random, sketch: Sketch) -> Drawn:
    only = {"node": _disk(random, sketch)}
    return {"disk_read_only": only, "for": _duration(random, 0.3, 3)}


def _disk_error(random: Random, sketch: Sketch) -> Drawn:
    on = random.choice((["write"], ["sync"], ["write", "sync"]))
    error = {"node": _disk(random, sketch), "on": on}
    return {"disk_error": error, "for": _duration(random, 0.3, 3)}


def _disk_slow(random: Random, sketch: Sketch) -> Drawn:
    slow = {"node": _disk(random, sketch), "latency": _duration(random, 0.01, 0.05)}
    return {"disk_slow": slow, "for": _duration(random, 0.5, 4)}


def _corrupt(random: Random, _: Sketch) -> Drawn:
    return {"corrupt": {"file": "*", "how": random.choice(("torn", "truncate", "flip"))}}


def _clock_skew(random: Random, sketch: Sketch) -> Drawn:
    by = random.choice(("2s", "-2s", "20s", "-20s", "1h", "-1h"))
    skew = {"node": _node(random, sketch), "by": by}
    return {"clock_skew": skew, "for": _duration(random, 2, 5)}


def _network(fault: str, draw: Callable[[Random, Sketch], Drawn], weight: int = 1) -> Recipe:
    return Recipe(
        fault=fault, kind="network", draw=draw, needs="network", weight=weight, fits=_has_links
    )


# The kinds are the layers, but for what asks more than the rest of its layer: of the machine (FUSE,
# libfaketime), or of the job (that a checkpoint which cannot be written or read does not end it).
RECIPES: Final = (
    Recipe(fault="kill", kind="worker", draw=_kill, weight=3),
    Recipe(fault="exit", kind="worker", draw=_exit),
    Recipe(fault="raise", kind="worker", draw=_raise),
    Recipe(fault="segfault", kind="worker", draw=_segfault),
    Recipe(fault="abort", kind="worker", draw=_abort),
    Recipe(fault="hang", kind="worker", draw=_hang),
    Recipe(fault="slow", kind="worker", draw=_slow),
    Recipe(fault="pause", kind="worker", draw=_pause_worker),
    Recipe(fault="pause", kind="agent", draw=_pause_agent, fits=_has_nodes),
    Recipe(fault="pause", kind="node", draw=_pause_node, needs="pause", fits=_has_nodes),
    Recipe(fault="reboot", kind="node", draw=_reboot, weight=2, fits=_has_nodes),
    Recipe(fault="replace", kind="node", draw=_replace, needs="network", weight=2, fits=_has_nodes),
    _network("partition", _partition, weight=3),
    _network("flap", _flap),
    _network("degrade", _degrade),
    _network("degrade", _damage),
    _network("reset", _reset),
    Recipe(fault="names", kind="network", draw=_names, needs="names", fits=_has_links),
    Recipe(fault="toxic", kind="proxy", draw=_toxic, fits=_has_proxies, weight=3),
    Recipe(fault="disable_proxy", kind="proxy", draw=_disable_proxy, fits=_has_proxies),
    Recipe(fault="freeze_store", kind="store", draw=_freeze_store),
    Recipe(fault="slow_store", kind="store", draw=_slow_store),
    Recipe(fault="kill_store", kind="store", draw=_kill_store),
    Recipe(fault="foreign_bytes", kind="store", draw=_foreign_bytes),
    Recipe(fault="cpu_limit", kind="resource", draw=_cpu_limit, needs="cpu_limit", fits=_has_nodes),
    Recipe(
        fault="memory_limit",
        kind="resource",
        draw=_memory_limit,
        needs="memory_limit",
        fits=_has_nodes,
    ),
    Recipe(fault="oom", kind="resource", draw=_oom, needs="memory_limit"),
    Recipe(
        fault="process_limit",
        kind="resource",
        draw=_process_limit,
        needs="process_limit",
        fits=_has_nodes,
    ),
    Recipe(fault="file_limit", kind="resource", draw=_file_limit),
    Recipe(fault="disk_full", kind="disk", draw=_disk_full, needs="disk_faults"),
    Recipe(fault="disk_read_only", kind="disk", draw=_disk_read_only, needs="disk_faults"),
    Recipe(fault="disk_error", kind="disk", draw=_disk_error, needs="disk_faults"),
    Recipe(fault="disk_slow", kind="disk", draw=_disk_slow, needs="disk_faults"),
    Recipe(fault="corrupt", kind="disk", draw=_corrupt),
    Recipe(fault="clock_skew", kind="clock", draw=_clock_skew, needs="clock_skew", fits=_has_nodes),
)

# Why a fault is not drawn, by its name.
NOT_DRAWN: Final[Mapping[str, str]] = {
    "kill_agent": "nobody starts a launcher again on a node that stays up",
    "crash": "the node would not come back: `reboot` and `replace` are drawn instead",
    "power_cut": "the node would not come back: `replace` is drawn, by a power cut too",
    "preempt": "the node would not come back",
    "leave": "the node would not come back",
    "join": "where nobody leaves for good, there is no room below `max_nodes`",
    "enable_proxy": "a proxy that is to be off at first has its reason",
    "run": "only you know which command",
    "device_assert": "not on a device yet: what storms draw was seen to be survived",
    "gpu_sleep": "not on a device yet: what storms draw was seen to be survived",
    "nccl_abort": "not on a device yet: what storms draw was seen to be survived",
    "capture": "it looks, and disturbs nothing",
}
