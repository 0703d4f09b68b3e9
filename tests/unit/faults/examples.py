"""One example or more of every fault there is: how it is asked for, and what (else) shows it.

Tests of the whole registry go through these; one that lacks a fault of the registry fails. Each has
the pair that keeps evidence honest: a world in which it is not obeyed, and one in which something
else has the same symptom.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tests.unit.faults import causes as c

__all__ = ["EXAMPLES", "Example"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A fault with its parameters.

    `before` is what must be there for it; `show` is what the job then does, so that it is seen.
    `same` is the symptom from another cause, in place of `show`; where it `comes_first`, after the
    fault was aimed and before it is injected. `refuse` comes there too, if nothing of what is
    answered coming true (a numb world) is not enough for it to be not obeyed.
    """

    action: str
    value: Any
    same: c.Act
    before: c.Act = c.nothing
    show: c.Act = c.nothing
    refuse: c.Act = c.nothing
    comes_first: bool = False


_LATENCY: Final = {"proxy": "db", "type": "latency", "latency": "10ms"}

EXAMPLES: Final[Mapping[str, Example]] = {
    "kill": Example(action="kill", value="rank 1", same=c.ends_instead(1002, 0), comes_first=True),
    "kill SIGTERM": Example(
        action="kill",
        value={"worker": "rank 1", "signal": "SIGTERM"},
        refuse=c.ends(0),
        same=c.ends(-15),
        comes_first=True,
    ),
    "exit": Example(
        action="exit",
        value={"worker": "rank 1", "code": 3},
        show=c.says("exit", ends=3),
        same=c.ends(3),
    ),
    "raise": Example(
        action="raise",
        value="rank 1",
        show=c.says("raise", phase="ended", ends=1),
        same=c.ends(1),
    ),
    "segfault": Example(
        action="segfault",
        value="rank 1",
        show=c.says("segfault", ends=-11),
        same=c.ends(-11),
    ),
    "abort": Example(
        action="abort", value="rank 1", show=c.says("abort", ends=-6), same=c.ends(-6)
    ),
    "hang stop": Example(action="hang", value="rank 1", same=c.is_stopped(1002), comes_first=True),
    "hang gil": Example(
        action="hang",
        value={"worker": "rank 1", "how": "gil"},
        show=c.says("hold_gil"),
        same=c.says("hold_gil", by="another"),
    ),
    "hang collective": Example(
        action="hang",
        value={"worker": "rank 1", "how": "collective"},
        show=c.says("stand"),
        same=c.peers_are_stopped,
    ),
    "slow": Example(
        action="slow",
        value="rank 1",
        same=c.is_stopped_by_another("n2", 1002),
        comes_first=True,
    ),
    "pause worker": Example(
        action="pause", value="rank 1", same=c.is_stopped(1002), comes_first=True
    ),
    "pause agent": Example(
        action="pause", value={"agent": "n2"}, same=c.launcher_is_stopped, comes_first=True
    ),
    "pause node": Example(
        action="pause",
        value={"node": "n2"},
        refuse=c.breaks("pause"),
        same=c.freezes_otherwise,
        comes_first=True,
    ),
    "oom": Example(
        action="oom",
        value="rank 1",
        show=c.kills_for_memory(-9),
        same=c.kills_for_memory(1),
    ),
    "kill_agent": Example(
        action="kill_agent", value="n2", same=c.launcher_ends_instead(0), comes_first=True
    ),
    "leave": Example(
        action="leave", value="n2", same=c.launcher_ends_instead(-9), comes_first=True
    ),
    "crash": Example(action="crash", value="n2", same=c.node_goes, comes_first=True),
    "power_cut": Example(action="power_cut", value="n2", same=c.node_goes, comes_first=True),
    "preempt": Example(
        action="preempt",
        value={"node": "n2", "notice": "3s"},
        same=c.launcher_ends_instead(-9),
        comes_first=True,
    ),
    "preempt of one that stays": Example(
        action="preempt",
        value={"node": "n2", "notice": "3s"},
        before=c.launcher_stays,
        same=c.node_goes,
    ),
    "join": Example(action="join", value=2, same=c.others_come, comes_first=True),
    "replace": Example(action="replace", value="n2", same=c.node_goes, comes_first=True),
    "replace by power cut": Example(
        action="replace",
        value={"node": "n2", "by": "power_cut"},
        same=c.node_goes,
        comes_first=True,
    ),
    "reboot": Example(action="reboot", value="n2", same=c.node_goes, comes_first=True),
    "run": Example(action="run", value="true", same=c.breaks("run"), comes_first=True),
    "partition": Example(
        action="partition", value="n2", show=c.sends, same=c.meets("partition", "n2")
    ),
    "partition reject": Example(
        action="partition",
        value={"isolate": "n2", "mode": "reject"},
        show=c.sends,
        same=c.meets("partition", {"isolate": "n2", "mode": "reject"}),
    ),
    "partition hold": Example(
        action="partition",
        value={"isolate": "n2", "mode": "hold"},
        show=c.sends,
        same=c.meets("flap", {"isolate": "n2", "mode": "hold"}),
    ),
    "flap": Example(
        action="flap",
        value={"isolate": "n2", "down": "3s"},
        show=c.sends,
        same=c.meets("flap", "n2"),
    ),
    "flap hold": Example(
        action="flap",
        value={"isolate": "n2", "mode": "hold", "down": "3s"},
        show=c.sends,
        same=c.meets("degrade", {"latency": "5ms"}),
    ),
    "degrade": Example(
        action="degrade",
        value={"loss": "5%"},
        show=c.sends,
        same=c.meets("degrade", {"latency": "5ms", "corrupt": "50%", "duplicate": "50%"}),
    ),
    "degrade late": Example(
        action="degrade",
        value={"latency": "5ms"},
        show=c.sends,
        same=c.meets("degrade", {"latency": "5ms", "loss": "50%"}),
    ),
    "reset": Example(action="reset", value="n2", show=c.sends, same=c.meets("reset", "n2")),
    "names wrong": Example(
        action="names",
        value={"node": "n2", "of": "n1", "wrong": "10.77.0.99"},
        show=c.looks_up,
        same=c.is_lied_to_by_another,
    ),
    "names missing": Example(
        action="names",
        value={"node": "n2", "of": "n1", "missing": True},
        show=c.looks_up,
        same=c.is_lied_to_by_another,
    ),
    "names slow": Example(
        action="names",
        value={"node": "n2", "of": "n1", "slow": "2s"},
        show=c.looks_up,
        same=c.is_lied_to_by_another,
    ),
    "toxic": Example(
        action="toxic",
        value=_LATENCY,
        show=c.meets_toxic("x"),
        same=c.meets_toxic("another"),
    ),
    "disable_proxy": Example(
        action="disable_proxy", value="db", same=c.proxy_is("db", on=False), comes_first=True
    ),
    "enable_proxy": Example(
        action="enable_proxy", value="late", same=c.proxy_is("late", on=True), comes_first=True
    ),
    "capture": Example(action="capture", value="n2", show=c.sends, same=c.sends_elsewhere),
    "kill_store": Example(
        action="kill_store",
        value="rendezvous",
        before=c.served,
        same=c.ends_instead(1001, 0),
        comes_first=True,
    ),
    "freeze_store": Example(
        action="freeze_store",
        value="rendezvous",
        before=c.served,
        same=c.is_stopped(1001),
        comes_first=True,
    ),
    "slow_store": Example(
        action="slow_store",
        value="rendezvous",
        before=c.served,
        same=c.is_stopped_by_another("n1", 1001),
        comes_first=True,
    ),
    "foreign_bytes": Example(
        action="foreign_bytes",
        value="rendezvous",
        before=c.served,
        same=c.others_are_taken,
        comes_first=True,
    ),
    "device_assert": Example(
        action="device_assert",
        value="rank 1",
        show=c.says("device_assert", ends=1),
        same=c.says("device_assert", ends=-9),
    ),
    "gpu_sleep": Example(
        action="gpu_sleep", value="rank 1", show=c.sleeps("2001"), same=c.sleeps("900")
    ),
    "nccl_abort": Example(
        action="nccl_abort",
        value="rank 1",
        show=c.says("nccl_abort", phase="ended"),
        same=c.says("nccl_abort", phase="ended", by="another"),
    ),
    "cpu_limit": Example(
        action="cpu_limit",
        value="n2",
        show=c.counts(throttled=1),
        same=c.counts_for_another("cpu", 0.1, throttled=1),
    ),
    "memory_limit": Example(
        action="memory_limit",
        value={"node": "n2", "size": "1MB"},
        show=c.counts(memory_hits=1),
        same=c.counts_for_another("memory", 1, memory_hits=1),
    ),
    "process_limit": Example(
        action="process_limit",
        value="n2",
        show=c.counts(processes_refused=1),
        same=c.counts_for_another("process", -1, processes_refused=1),
    ),
    "file_limit": Example(
        action="file_limit",
        value="rank 1",
        show=c.is_refused_a_file,
        same=c.meets_a_lower_limit,
    ),
    "disk_full": Example(
        action="disk_full",
        value="n2",
        show=c.meets_disk("refused_full"),
        same=c.meets_disk("refused_full", by="another"),
    ),
    "disk_read_only": Example(
        action="disk_read_only",
        value="n2",
        show=c.meets_disk("refused_read_only"),
        same=c.meets_disk("refused_read_only", by="another"),
    ),
    "disk_error": Example(
        action="disk_error",
        value="n2",
        show=c.meets_disk("failed"),
        same=c.meets_disk("failed", by="another"),
    ),
    "disk_slow": Example(
        action="disk_slow",
        value={"node": "n2", "latency": "10ms"},
        show=c.meets_disk("delayed"),
        same=c.meets_disk("delayed", by="another"),
    ),
    "corrupt": Example(
        action="corrupt",
        value="*.pt",
        before=c.has_a_file,
        same=c.is_damaged_already,
        refuse=c.is_damaged_already,
        comes_first=True,
    ),
    "clock_skew": Example(
        action="clock_skew",
        value={"node": "n2", "by": "20s"},
        show=c.says("tell_time", detail="1020.0", phase="ended"),
        same=c.is_skewed_by_another,
    ),
}
