from __future__ import annotations

import json

from elastic_harness.report.trace import trace_json

from tests.unit.history.story import Story


def test_a_trace_shown_whole() -> None:
    """One worker, one step, one fault: what Perfetto is given."""
    story = Story(nodes=1).round(1, ["n1"]).wait(0.5).steps(1, 1, 1)
    events = json.loads(trace_json(story.fault("crash", "kill", "rank 0").gone(1).history))
    lines = []
    for event in events["traceEvents"]:
        place = f"{event['pid']}.{event.get('tid', 0)}"
        match event["ph"]:
            case "M" if event["name"] != "process_sort_index":
                lines.append(f"{place} is {event['args']['name']}")
            case "X":
                lines.append(f"{place} {event['ts']}+{event['dur']} {event['cat']} {event['name']}")
            case "i":
                lines.append(f"{place} {event['ts']} {event['name']}")
            case _:
                pass
    assert lines == EXPECTED


EXPECTED = [
    "1.0 is run",
    "1.1 is rounds",
    "1.2 is faults",
    "1.3 is moments",
    "1.1 10000+550000 round round 1",
    "1.2 540000+1 fault crash",
    "2.2 10000+550000 worker rank 0",
    "2.2 530000+1 step step 1",
    "2.0 is n1",
    "2.1 is n1",
    "2.2 is local rank 0",
    "2.1 10000 round 1: rank 0",
    "2.1 530000 round 1: step 1 done by all",
    "1.3 540000 ! crash: kill rank 0",
    "2.1 560000 rank 0 gone after step 1",
]
