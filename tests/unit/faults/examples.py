"""One example or more of every fault there is: how it is asked for, and what then shows it.

Tests of the whole registry go through these; one that lacks a fault of the registry fails.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from elastic_harness.cluster.disk_policy import DiskCounters
from elastic_harness.network.link_model import DropReason, LinkCounters

from tests.unit.faults.bench import World

__all__ = ["EXAMPLES", "Example", "served"]

Act = Callable[[World], None]


def _nothing(world: World) -> None:
    del world


def served(world: World) -> None:
    """Let process 1001 serve the rendezvous's store."""
    world.endpoints["rendezvous"] = ("n1", 29400)
    world.budget.serving["n1", 29400] = (1001,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A fault with its parameters.

    `before` is what must be there for it; `show` is what the job then does, so that it is seen. One
    that `always_acts` is proven by what was done, and not by what came of it, with the reason.
    """

    action: str
    value: Any
    before: Act = _nothing
    show: Act = _nothing
    always_acts: str = ""


def _ends(world: World) -> None:
    world.end(1)


def _says(act: str, *, and_ends: bool = False, detail: str = "", phase: str = "began") -> Act:
    def show(world: World) -> None:
        world.answer(1, act, phase, detail)
        if and_ends:
            world.end(1)

    return show


def _sleeps(world: World) -> None:
    world.answer(1, "gpu_sleep", "began")
    world.pass_time(1)
    world.answer(1, "gpu_slept", "ended", "2001")


def _counts(**counted: int) -> Act:
    def show(world: World) -> None:
        world.budget.count("n2", **counted)

    return show


def _kills_for_memory(world: World) -> None:
    world.budget.count("n2", memory_kills=1)
    world.end(1)


def _meets_disk(counter: str) -> Act:
    def show(world: World) -> None:
        counts: dict[str, Any] = {counter: 1}
        world.budget.disk_counts = DiskCounters(**counts)

    return show


def _drops(reason: DropReason) -> Act:
    def show(world: World) -> None:
        world.counts["n1", "n2"] = LinkCounters(packets=1, dropped={reason: 1})

    return show


def _sends(world: World) -> None:
    world.counts["n1", "n2"] = LinkCounters(packets=1, delivered=1)


def _asks(world: World) -> None:
    world.asked["n2"] = 1


def _uses_proxy(world: World) -> None:
    world.met["db", "downstream"] = 1


_LATENCY: Final = {"proxy": "db", "type": "latency", "latency": "10ms"}

EXAMPLES: Final[Mapping[str, Example]] = {
    "kill": Example(action="kill", value="rank 1"),
    "kill SIGTERM": Example(
        action="kill",
        value={"worker": "rank 1", "signal": "SIGTERM"},
        always_acts="what a program makes of a signal that it can handle is its own business",
    ),
    "exit": Example(action="exit", value="rank 1", show=_ends),
    "raise": Example(action="raise", value="rank 1", show=_ends),
    "segfault": Example(action="segfault", value="rank 1", show=_says("segfault", and_ends=True)),
    "abort": Example(action="abort", value="rank 1", show=_says("abort", and_ends=True)),
    "hang stop": Example(action="hang", value="rank 1"),
    "hang gil": Example(
        action="hang", value={"worker": "rank 1", "how": "gil"}, show=_says("hold_gil")
    ),
    "hang collective": Example(
        action="hang", value={"worker": "rank 1", "how": "collective"}, show=_says("stand")
    ),
    "slow": Example(action="slow", value="rank 1"),
    "pause worker": Example(action="pause", value="rank 1"),
    "pause agent": Example(action="pause", value={"agent": "n2"}),
    "pause node": Example(
        action="pause",
        value={"node": "n2"},
        always_acts="the cluster answers once every process stands still, or that they do not",
    ),
    "oom": Example(action="oom", value="rank 1", show=_kills_for_memory),
    "kill_agent": Example(action="kill_agent", value="n2"),
    "leave": Example(action="leave", value="n2"),
    "crash": Example(action="crash", value="n2"),
    "power_cut": Example(action="power_cut", value="n2"),
    "preempt": Example(action="preempt", value={"node": "n2", "notice": "1s"}),
    "join": Example(action="join", value=2),
    "replace": Example(action="replace", value="n2"),
    "replace by power cut": Example(action="replace", value={"node": "n2", "by": "power_cut"}),
    "reboot": Example(action="reboot", value="n2"),
    "run": Example(action="run", value="true"),
    "partition": Example(action="partition", value="n2", show=_drops(DropReason.DOWN)),
    "partition reject": Example(
        action="partition",
        value={"isolate": "n2", "mode": "reject"},
        show=_drops(DropReason.REJECTED),
    ),
    "flap": Example(action="flap", value="n2", show=_drops(DropReason.DOWN)),
    "degrade": Example(action="degrade", value={"loss": "5%"}, show=_drops(DropReason.LOST)),
    "reset": Example(action="reset", value="n2", show=_drops(DropReason.RESET)),
    "names wrong": Example(action="names", value={"node": "n2", "of": "n1", "wrong": "10.77.0.99"}),
    "names missing": Example(action="names", value={"node": "n2", "of": "n1", "missing": True}),
    "names slow": Example(
        action="names", value={"node": "n2", "of": "n1", "slow": "2s"}, show=_asks
    ),
    "toxic": Example(action="toxic", value=_LATENCY, show=_uses_proxy),
    "disable_proxy": Example(action="disable_proxy", value="db"),
    "enable_proxy": Example(action="enable_proxy", value="late"),
    "capture": Example(action="capture", value="n2", show=_sends),
    "kill_store": Example(action="kill_store", value="rendezvous", before=served),
    "freeze_store": Example(action="freeze_store", value="rendezvous", before=served),
    "slow_store": Example(action="slow_store", value="rendezvous", before=served),
    "foreign_bytes": Example(action="foreign_bytes", value="rendezvous", before=served),
    "device_assert": Example(
        action="device_assert", value="rank 1", show=_says("device_assert", and_ends=True)
    ),
    "gpu_sleep": Example(action="gpu_sleep", value="rank 1", show=_sleeps),
    "nccl_abort": Example(
        action="nccl_abort", value="rank 1", show=_says("nccl_abort", phase="ended")
    ),
    "cpu_limit": Example(action="cpu_limit", value="n2", show=_counts(throttled=1)),
    "memory_limit": Example(
        action="memory_limit", value={"node": "n2", "size": "1MB"}, show=_counts(memory_hits=1)
    ),
    "process_limit": Example(action="process_limit", value="n2", show=_counts(processes_refused=1)),
    "file_limit": Example(action="file_limit", value="rank 1"),
    "disk_full": Example(action="disk_full", value="n2", show=_meets_disk("refused_full")),
    "disk_read_only": Example(
        action="disk_read_only", value="n2", show=_meets_disk("refused_read_only")
    ),
    "disk_error": Example(action="disk_error", value="n2", show=_meets_disk("failed")),
    "disk_slow": Example(
        action="disk_slow",
        value={"node": "n2", "latency": "10ms"},
        show=_meets_disk("delayed"),
    ),
    "corrupt": Example(action="corrupt", value="*.pt"),
    "clock_skew": Example(
        action="clock_skew",
        value={"node": "n2", "by": "20s"},
        show=_says("tell_time", detail="1020.0", phase="ended"),
    ),
}
