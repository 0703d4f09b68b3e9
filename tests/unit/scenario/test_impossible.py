"""What reads well in a scenario file and can never be: each is shown where it stands."""

from __future__ import annotations

import pytest

from tests.unit.scenario.test_loader import GOOD, refuse

IMPOSSIBLE: dict[str, tuple[tuple[str, str], str]] = {
    "a key that a condition has not": (
        ("at: {step: 22, rank: 1}", "when: {log: ready, nod: n1}"),
        (
            "9:24: unknown key 'nod' (did you mean 'node'?)\n"
            "      - when: {log: ready, nod: n1}\n                           ^"
        ),
    ),
    "a number out of bounds": (
        ("nproc_per_node: 2", "nproc_per_node: 0"),
        ("6:19: at least 1 is expected, found 0\n      nproc_per_node: 0\n                      ^"),
    ),
    "a world that cannot be": (
        ("{round: 2,", "{world_size: 9,"),
        (
            "14:20: there is no world of 9: the largest has 4 ranks\n"
            "        - {world_size: 9, within: 10s, after: crash}\n                       ^"
        ),
    ),
    "a time after the end": (
        ("at: {step: 22, rank: 1}", "at: 70s"),
        "9:9: the run is over by then: `limit` is 60s\n      - at: 70s\n            ^",
    ),
    "a setting that the rendezvous has not": (
        ("nproc_per_node: 2", "rdzv: {conf: {lease: long}}"),
        (
            "6:24: `conf` lease=long: expected a number of seconds above 0\n"
            "      rdzv: {conf: {lease: long}}\n                           ^"
        ),
    ),
    "an endpoint nowhere": (
        ("nproc_per_node: 2", "rdzv: {endpoints: [n1, n8]}"),
        (
            "6:26: no node called 'n8' is there at the start (known: n1, n2)\n"
            "      rdzv: {endpoints: [n1, n8]}\n                             ^"
        ),
    ),
    "one endpoint as several": (
        ("nproc_per_node: 2", "rdzv: {endpoints: [n2]}"),
        (
            "6:21: one endpoint is `store_host: n2`; two or more are expected\n"
            "      rdzv: {endpoints: [n2]}\n                        ^"
        ),
    ),
    "two endpoints in one place": (
        ("nproc_per_node: 2", "rdzv: {endpoints: [n1, n2, n1]}"),
        (
            "6:21: n1 is named twice: each endpoint is on a node of its own\n"
            "      rdzv: {endpoints: [n1, n2, n1]}\n                        ^"
        ),
    ),
    "one endpoint and several": (
        ("nproc_per_node: 2", "rdzv: {endpoints: [n1, n2], store_host: n2}"),
        (
            "6:9: `store_host` is the node at the only endpoint, `endpoints` those at several: "
            "give one of the two\n"
            "      rdzv: {endpoints: [n1, n2], store_host: n2}\n            ^"
        ),
    ),
    "a clause about nobody": (
        ("- job: succeeded", "- exit_codes: {n1: 0, n3: 1}"),
        (
            "16:31: there is no node 'n3' (known: n1, n2)\n"
            "        - exit_codes: {n1: 0, n3: 1}\n                                  ^"
        ),
    ),
    "a step that no group shows": (
        ("nproc_per_node: 2", "observe: {step: step}"),
        (
            "6:19: 'step' has 0 groups: one is expected, around the number of steps, as in "
            "`step (\\d+) loss`\n      observe: {step: step}\n                      ^"
        ),
    ),
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_what_can_never_be_is_shown_where_it_stands(case: str) -> None:
    """file:line:column, the line, a caret, and what is possible."""
    (old, new), message = IMPOSSIBLE[case]
    assert old in GOOD
    assert str(refuse(GOOD.replace(old, new))) == f"some/file.elastic.yaml:{message}"
