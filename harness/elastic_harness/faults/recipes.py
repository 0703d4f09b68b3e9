"""How storms draw the built-in faults, and why some of them are not drawn.

What is drawn ends by itself or heals within a few seconds, so that a job with enough restarts can
survive it. Everything is plain data, as a scenario file would say it, but for functions: each
stands for the value that it draws. A new recipe, or a change of one, makes the same seed draw
something else: that is fine between versions, because `plan.json` has the entries themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import Any, Final, TypeAlias

from elastic_harness.faults.recipe import Drawn, JobShape, Recipe
from elastic_harness.network.traffic import CLASSES
from elastic_harness.scenario.fields import format_duration

__all__ = ["NOT_DRAWN", "RECIPES"]

# What stands for a value that is drawn; None: the key is left out.
Draw: TypeAlias = Callable[[Random, JobShape], object]

# Cuts of these shapes leave something to be cut only with so many nodes.
_RING_NODES: Final = 4
_BRIDGE_NODES: Final = 3


# Any: what stands in a scenario file.
def _drawn(says: Any, random: Random, job: JobShape) -> Any:  # noqa: ANN401
    """Return plain data with what its functions draw, in the order in which they stand."""
    if callable(says):
        return says(random, job)
    if isinstance(says, Mapping):
        found = {key: _drawn(value, random, job) for key, value in says.items()}
        return {key: value for key, value in found.items() if value is not None}
    return says


def _recipe(
    kind: str,
    fault: str,
    says: object,
    lasting: Draw | None = None,
    *,
    needs: str | None = None,
    weight: int = 1,
    fits: Callable[[JobShape], bool] = lambda _: True,
) -> Recipe:
    """Return a recipe; `says` is what stands behind the fault's name, `lasting` behind `for`."""

    def draw(random: Random, job: JobShape) -> Drawn:
        entry = {fault: _drawn(says, random, job)}
        return entry if lasting is None else {**entry, "for": lasting(random, job)}

    return Recipe(fault=fault, kind=kind, draw=draw, needs=needs, weight=weight, fits=fits)


# --- values


def _any_of(*choices: object) -> Draw:
    return lambda random, _: random.choice(choices)


def _duration(low_s: float, high_s: float) -> Draw:
    """Draw a time in whole hundredths of a second, as scenarios write it."""
    return lambda random, _: format_duration(round(random.uniform(low_s, high_s), 2))


def _number(low: int, high: int, unit: str = "") -> Draw:
    def draw(random: Random, _: JobShape) -> object:
        number = random.randint(low, high)
        return f"{number}{unit}" if unit else number

    return draw


def _rank(random: Random, job: JobShape) -> str:
    return f"rank {random.randrange(job.ranks)}"


def _node(random: Random, job: JobShape) -> str:
    return random.choice(job.nodes)


def _other(random: Random, job: JobShape, one: str) -> str:
    return random.choice([name for name in job.all_nodes if name != one])


def _proxy(random: Random, job: JobShape) -> str:
    return random.choice(job.proxies)


def _disk(random: Random, job: JobShape) -> str:
    """Draw whose disk: checkpoints are mostly written on the node of rank 0."""
    return random.choice(("rank 0 host", random.choice(job.all_nodes)))


def _traffic(random: Random, _: JobShape) -> str | None:
    """Draw nothing, mostly, or one class of traffic."""
    return random.choice(CLASSES) if random.random() < 0.25 else None


# --- whole faults


def _hang(random: Random, job: JobShape) -> Drawn:
    # Peers are seen to wait in a collective after a second, not before.
    how, least_s = random.choice((("stop", 0.1), ("gil", 0.1), ("collective", 1.5)))
    hang = {"worker": _rank(random, job), "how": how}
    return {"hang": hang, "for": _duration(least_s, 3)(random, job)}


def _cut(random: Random, job: JobShape, *, how: Mapping[str, Draw]) -> object:
    """Draw a cut in some shape. Most cut off one node, which all jobs have."""
    drawn = {key: draw(random, job) for key, draw in how.items()}
    shapes = ["isolate", "isolate", "one way", "between", "halves", "pairs"]
    if len(job.all_nodes) >= _BRIDGE_NODES:
        shapes.append("bridge")
    if len(job.all_nodes) >= _RING_NODES:
        shapes.append("ring")
    shape = random.choice(shapes)
    one = _node(random, job)
    source, to = random.sample((one, _other(random, job, one)), 2)
    cuts: dict[str, Drawn] = {
        "isolate": {"isolate": one},
        "one way": {"from": source, "to": to},
        "between": {"between": [source, to]},
        "halves": {"shape": "halves"},
        "pairs": {"pairs": [[source, to]]},
        "bridge": {"bridge": one},
        "ring": {"shape": "ring"},
    }
    return _drawn({**cuts[shape], **drawn, "traffic": _traffic}, random, job)


def _damaged(random: Random, job: JobShape) -> object:
    """Draw one of the things that a bad link does beside being slow."""
    link: Drawn = {"node": _node(random, job)}
    what = random.choice(("jitter", "burst_loss", "corrupt", "duplicate", "reorder", "rate"))
    if what == "jitter":
        link["latency"] = link["jitter"] = _duration(0.005, 0.05)(random, job)
        link["distribution"] = _any_of("uniform", "normal", "pareto", "exponential")
    elif what == "burst_loss":
        link[what] = {"enter": _number(1, 2, "%"), "leave": _number(20, 50, "%")}
    elif what == "rate":
        link[what] = _number(5, 100, "mbit")
    else:
        link[what] = _number(1, 5, "%")
    return _drawn({**link, "traffic": _traffic}, random, job)


def _confused(random: Random, job: JobShape) -> object:
    one = _node(random, job)
    of = _other(random, job, one)
    how = random.choice(({"missing": True}, {"wrong": "10.77.0.250"}, {"slow": "500ms"}))
    return {"node": one, "of": of, **how}


_TOXICS: Final[Mapping[str, Mapping[str, object]]] = {
    "latency": {"latency": _duration(0.01, 0.3), "jitter": "10ms"},
    "bandwidth": {"rate": _number(1, 50, "mbit")},
    "slow_close": {"delay": _duration(0.05, 0.5)},
    "slicer": {"average_size": _number(8, 512), "size_variation": 4},
    "limit_data": {"bytes": _number(100, 10_000)},
    "reset_peer": {"timeout": _duration(0, 0.5)},
    "timeout": {"timeout": _duration(0.1, 1)},
}


def _poisoned(random: Random, job: JobShape) -> object:
    given = {kind: _drawn(says, random, job) for kind, says in _TOXICS.items()}
    says: Drawn = {"proxy": _proxy(random, job), "type": random.choice(list(given))}
    stream = random.choice(("downstream", "upstream"))
    return {**says, **given[says["type"]], "stream": stream}


# --- the recipes


def _has_nodes(job: JobShape) -> bool:
    return bool(job.nodes)


def _has_proxies(job: JobShape) -> bool:
    return bool(job.proxies)


def _has_links(job: JobShape) -> bool:
    return bool(job.nodes) and len(job.all_nodes) > 1


_of_worker = partial(_recipe, "worker")
_of_node = partial(_recipe, "node", fits=_has_nodes)
_of_links = partial(_recipe, "network", needs="network", fits=_has_links)
_of_proxy = partial(_recipe, "proxy", fits=_has_proxies)
_of_store = partial(_recipe, "store", needs="listeners")
_of_disk = partial(_recipe, "disk", needs="disk_faults")

_SIGNAL: Final = _any_of("SIGKILL", "SIGKILL", "SIGSEGV", "SIGABRT", "SIGBUS")
_ERROR: Final = _any_of("RuntimeError", "ValueError", "MemoryError", "OSError")
_STORE: Final = _any_of("rendezvous", "workers")
_WORDS: Final = _any_of("random", "http", "torn", "huge", "stale", "silence")
_SHARE: Final = _number(10, 60, "%")
_OFFSET: Final = _any_of("2s", "-2s", "20s", "-20s", "1h", "-1h")
_SPOTTY: Final = {"down": _duration(0.1, 0.6), "up": _duration(0.1, 1)}
_LONG: Final = {"node": _node, "latency": _duration(0.005, 0.1), "loss": _number(0, 3, "%")}
_STRANGERS: Final = {"which": _STORE, "send": _WORDS, "connections": _number(1, 20)}

# The kinds are the layers, but for what asks more than the rest of its layer: of the machine (FUSE,
# libfaketime), or of the job (that a checkpoint which cannot be written or read does not end it).
RECIPES: Final = (
    _of_worker("kill", {"signal": _SIGNAL, "worker": _rank}, weight=3),
    _of_worker("exit", {"worker": _rank, "code": _number(1, 255)}),
    _of_worker("raise", {"error": _ERROR, "worker": _rank}),
    _of_worker("segfault", {"worker": _rank}),
    _of_worker("abort", {"worker": _rank}),
    Recipe(fault="hang", kind="worker", draw=_hang),
    _of_worker("slow", {"worker": _rank, "share": _SHARE}, _duration(0.5, 4)),
    _of_worker("pause", {"worker": _rank}, _duration(0.1, 2)),
    _recipe("agent", "pause", {"agent": _node}, _duration(0.1, 2), fits=_has_nodes),
    _of_node("pause", {"node": _node}, _duration(0.1, 3), needs="pause"),
    _of_node("reboot", {"node": _node, "downtime": _duration(0, 2)}, weight=2),
    _of_node(
        "replace",
        {"by": _any_of("crash", "power_cut"), "downtime": _duration(0, 2), "node": _node},
        needs="network",
        weight=2,
    ),
    _of_links(
        "partition",
        partial(_cut, how={"mode": _any_of("drop", "drop", "reject", "hold")}),
        _duration(0.3, 4),
        weight=3,
    ),
    _of_links("flap", partial(_cut, how=_SPOTTY), _duration(1, 4)),
    _of_links("degrade", {**_LONG, "traffic": _traffic}, _duration(0.5, 4)),
    _of_links("degrade", _damaged, _duration(0.5, 4)),
    _of_links("reset", {"node": _node, "traffic": _traffic}, _duration(0.2, 2)),
    _of_links("names", _confused, _duration(0.5, 3), needs="names"),
    _of_proxy("toxic", _poisoned, _duration(0.5, 3), weight=3),
    _of_proxy("disable_proxy", {"proxy": _proxy}, _duration(0.2, 2)),
    _of_store("freeze_store", {"which": _STORE}, _duration(0.1, 2)),
    _of_store("slow_store", {"which": _STORE, "share": _SHARE}, _duration(0.7, 3)),
    _of_store("kill_store", {"which": "workers"}),
    _of_store("foreign_bytes", _STRANGERS, _duration(0.1, 3), needs="node_sockets"),
    _recipe(
        "resource",
        "cpu_limit",
        {"node": _node, "share": _SHARE},
        _duration(0.5, 4),
        needs="cpu_limit",
        fits=_has_nodes,
    ),
    _recipe(
        "resource",
        "memory_limit",
        {"node": _node, "size": _number(16, 128, "MiB")},
        _duration(0.5, 3),
        needs="memory_limit",
        fits=_has_nodes,
    ),
    _recipe("resource", "oom", {"worker": _rank, "headroom": "64MiB"}, needs="memory_limit"),
    _recipe(
        "resource",
        "process_limit",
        {"node": _node, "free": _number(4, 32)},
        _duration(0.3, 2),
        needs="process_limit",
        fits=_has_nodes,
    ),
    _recipe("resource", "file_limit", {"worker": _rank, "free": _number(0, 16)}, _duration(0.3, 3)),
    _of_disk("disk_full", {"node": _disk, "free": _number(0, 64, "KiB")}, _duration(0.3, 3)),
    _of_disk("disk_read_only", {"node": _disk}, _duration(0.3, 3)),
    _of_disk(
        "disk_error",
        {"on": _any_of(["write"], ["sync"], ["write", "sync"]), "node": _disk},
        _duration(0.3, 3),
    ),
    _of_disk("disk_slow", {"node": _disk, "latency": _duration(0.01, 0.05)}, _duration(0.5, 4)),
    _recipe(
        "disk",
        "corrupt",
        {"file": "*", "how": _any_of("torn", "truncate", "flip")},
        needs="shared_files",
    ),
    _recipe(
        "clock",
        "clock_skew",
        {"by": _OFFSET, "node": _node},
        _duration(2, 5),
        needs="clock_skew",
        fits=_has_nodes,
    ),
)

# Why a fault is not drawn, by its name.
NOT_DRAWN: Final[Mapping[str, str]] = {
    "kill_agent": "nothing starts a launcher again on a node that stays up",
    "crash": "the node would not come back: `reboot` and `replace` are drawn instead",
    "power_cut": "the node would not come back: `replace` is drawn, by a power cut too",
    "preempt": "the node would not come back",
    "leave": "the node would not come back",
    "join": "where no node leaves for good, there is no room below `max_nodes`",
    "enable_proxy": "a proxy that is to be off at first has its reason",
    "run": "only you know which command",
    "device_assert": "not on a device yet: what storms draw was seen to be survived",
    "gpu_sleep": "not on a device yet: what storms draw was seen to be survived",
    "nccl_abort": "not on a device yet: what storms draw was seen to be survived",
    "capture": "it looks, and disturbs nothing",
}
