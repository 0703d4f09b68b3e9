"""What no fault can be: refused as it is read, in files and in Python alike, before any run.

How that is told is shown by `tests/unit/scenario/wrong_scenarios.txt`, which has more of it.
"""

from __future__ import annotations

from typing import Any

import pytest
from elastic_harness.faults.registry import built_in_faults
from pydantic import ValidationError

# For each action, and the parameter that is wrong (or what is said of several): values.
REFUSED: dict[tuple[str, str], list[Any]] = {
    # Less than a second is what machines differ by anyway.
    ("clock_skew", "by"): [{"node": "n1", "by": by} for by in ("20", 20, "500ms", "-0s", "soon")],
    ("corrupt", "file"): ["../*.pt", "/", "", "a/../../b"],
    ("cpu_limit", "share"): [{"node": "n1", "share": "0%"}],
    ("degrade", "needs one of"): [{"node": "n1"}],
    ("degrade", "`from` and `to` belong together"): [{"latency": "1s", "from": "n1"}],
    ("degrade", "`node`"): [{"latency": "1s", "node": "n1", "from": "n1", "to": "n2"}],
    ("degrade", "jitter"): [{"jitter": "10ms"}],
    ("degrade", "loss"): [{"loss": "-1%"}],
    ("degrade", "leave"): [{"burst_loss": {"enter": "1%"}}],
    ("degrade", "traffic"): [{"latency": "1s", "traffic": 0}],
    ("disk_error", "on"): [{"node": "n1", "on": on} for on in ("open", [], ["open"])],
    ("disk_full", "path"): [{"node": "n1", "path": "/"}],
    ("disk_slow", "needs `latency`"): ["n1"],
    ("disk_slow", "latency"): [{"node": "n1", "latency": "5m"}],
    ("disk_slow", "rate"): [{"node": "n1", "rate": "fast"}, {"node": "n1", "rate": "1bit"}],
    ("flap", "exactly one shape"): [{"down": "1s"}],
    ("foreign_bytes", "send"): [{"send": "gossip"}],
    ("foreign_bytes", "connections"): [{"connections": 0}, {"connections": 501}],
    ("foreign_bytes", "which"): [{"which": "agent"}],
    ("gpu_sleep", "lasts"): [{"worker": "rank 1", "lasts": it} for it in ("0s", "601s", "5")],
    ("hang", "how"): [{"worker": "rank 1", "how": "badly"}],
    ("memory_limit", "size"): ["n1", *({"node": "n1", "size": it} for it in (5, "5mb", "0B"))],
    ("names", "of"): [{"node": "n2", "missing": True}],
    ("partition", "exactly one shape"): [{}, {"isolate": "n1", "shape": "ring"}],
    ("partition", "`from` and `to` belong together"): [{"from": "n1"}],
    ("partition", "between"): [{"between": ["n1"]}],
    ("partition", "mode"): [{"isolate": "n1", "mode": "lose"}],
    ("partition", "pairs"): [{"pairs": [["n1"]]}],
    ("partition", "shape"): [{"shape": "star"}],
    ("process_limit", "free"): [{"node": "n1", "free": -1}],
    ("slow", "that is `hang`"): [{"worker": "rank 1", "share": "0%"}],
    ("toxic", "proxy"): [{"type": "latency", "latency": "1s"}],
    ("toxic", "type"): [{"proxy": "db", "type": "slow", "latency": "1s"}],
    ("toxic", "needs `latency`"): [{"proxy": "db", "type": "latency"}],
    ("toxic", "latency"): [{"proxy": "db", "type": "latency", "latency": 100}],
    ("toxic", "no attribute 'rate'"): [
        {"proxy": "db", "type": "latency", "latency": "1s", "rate": "1mbit"}
    ],
    ("toxic", "average_size"): [
        {"proxy": "db", "type": "slicer"},
        {"proxy": "db", "type": "slicer", "average_size": 0},
    ],
    ("toxic", "toxicity"): [
        {"proxy": "db", "type": "noop", "toxicity": share} for share in ("120%", "0%")
    ],
    ("toxic", "stream"): [{"proxy": "db", "type": "noop", "stream": "sideways"}],
}


@pytest.mark.parametrize(("action", "wrong"), REFUSED)
def test_what_no_fault_can_be_is_refused_where_it_is_wrong(action: str, wrong: str) -> None:
    """By one error, of the parameter or in words."""
    for value in REFUSED[action, wrong]:
        with pytest.raises(ValidationError) as caught:
            built_in_faults().parse(action, value)
        (error,) = caught.value.errors()
        assert wrong in error["loc"] or wrong in error["msg"], error
