"""A capability that is missing is told with what to do about it."""

from __future__ import annotations

import pytest
from elastic_harness.cluster.dry_run import restrictions
from elastic_harness.cluster.remedies import remedy


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        ("in a user namespace: cannot open /dev/net/tun: Permission denied", "chmod"),
        ("cannot open /dev/net/tun: No such file or directory", "--device=/dev/net/tun"),
        ("cannot open /dev/fuse: Permission denied", "chmod"),
        ("cannot open /dev/fuse: No such file or directory", "--device=/dev/fuse"),
        ("there is no control group for cpu: we may make none below /a (version 2)", "Delegate="),
        ("there is no control group for cpu: /a is mounted read-only", "--privileged"),
        ("there is no control group for cpu: /a has no controller 'cpu'", "unified_cgroup"),
        ("not permitted (kernel.unprivileged_userns_clone is 0)", "userns_clone=1"),
        (
            "not permitted (kernel.apparmor_restrict_unprivileged_userns is 1)",
            "apparmor_restrict_unprivileged_userns=0, or run as root",
        ),
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


def test_settings_that_keep_namespaces_for_root_are_named() -> None:
    """As a distribution's kernel shows them; one that is not there restricts nothing."""
    folder = "/proc/sys/kernel"
    texts = {
        f"{folder}/apparmor_restrict_unprivileged_userns": "1\n",
        f"{folder}/unprivileged_userns_clone": "1\n",
        "/proc/sys/user/max_user_namespaces": "15000\n",
    }
    known = restrictions(lambda path: texts.get(path, ""))
    assert known == "kernel.apparmor_restrict_unprivileged_userns is 1"
    texts["/proc/sys/user/max_user_namespaces"] = "0\n"
    assert (
        restrictions(lambda path: texts.get(path, "")) == f"{known}, user.max_user_namespaces is 0"
    )
    assert restrictions(lambda _: "") == ""
