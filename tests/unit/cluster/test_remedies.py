"""A capability that is missing is told with what to do about it."""

from __future__ import annotations

import pytest
from elastic_harness.cluster.remedies import remedy


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        ("in a user namespace: cannot open /dev/net/tun: Permission denied", "chmod"),
        ("cannot open /dev/net/tun: No such file or directory", "--device=/dev/net/tun"),
        ("cannot open /dev/fuse: Permission denied", "chmod"),
        ("cannot open /dev/fuse: No such file or directory", "--device=/dev/fuse"),
        ("there is no control group for cpu below which we may make one", "Delegate=yes"),
        ("this is not root; in a user namespace: Operation not permitted", "userns"),
        ("No space left on device", "max_user_namespaces"),
    ],
)
def test_each_reason_that_was_met_has_a_remedy(reason: str, advice: str) -> None:
    """As the kernel words them, on machines and in containers that lack something."""
    assert advice in str(remedy(reason))


def test_of_what_nobody_has_met_nothing_is_said() -> None:
    """No advice is better than a guess."""
    assert remedy("the moon is full") is None
