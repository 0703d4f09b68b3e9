"""What a person can do about a capability that this machine does not have, by why it has not.

The reasons are what the kernel said when it was tried; the advice is what made them go away.
"""

from __future__ import annotations

__all__ = ["remedy"]

# Where it is 1, AppArmor lets no ordinary user make user namespaces.
_APPARMOR = "kernel.apparmor_restrict_unprivileged_userns"
# A group with processes cannot enable controllers: pytest runs in one below that does.
_DELEGATED = (
    "systemd-run --user --scope --property=Delegate=yes sh -c 'cd /sys/fs/cgroup$(sed -n "
    "s/^0:://p /proc/self/cgroup) && mkdir runner && echo $$ > runner/cgroup.procs && "
    "echo +cpu +memory +pids > cgroup.subtree_control && cd - && exec pytest ...'"
)
# What is found in a reason, all of it, and what helps. The first that fits is given.
_REMEDIES: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("/dev/net/tun", "No such file"),
        "sudo modprobe tun; in a container, start it with --device=/dev/net/tun",
    ),
    (
        ("/dev/net/tun",),
        "sudo chmod 0666 /dev/net/tun (what most distributions have anyway), or run as root",
    ),
    (
        ("/dev/fuse", "No such file"),
        "sudo modprobe fuse; in a container, start it with --device=/dev/fuse",
    ),
    (("/dev/fuse",), "sudo chmod 0666 /dev/fuse (what most distributions have), or run as root"),
    (
        ("no control group", "mounted read-only"),
        "start the container with --privileged, which lets it write there",
    ),
    (
        ("no control group", "has no controller"),
        "boot with systemd.unified_cgroup_hierarchy=1 and without cgroup_disable=, or run as root",
    ),
    (
        ("no control group",),
        f"run as root, or delegate a control group (version 2): {_DELEGATED}",
    ),
    (
        ("unprivileged_userns_clone is 0",),
        "sudo sysctl kernel.unprivileged_userns_clone=1, or run as root",
    ),
    (
        (f"{_APPARMOR} is 1",),
        f"sudo sysctl {_APPARMOR}=0, or run as root",
    ),
    (
        ("not permitted",),
        f"run as root, or sudo sysctl {_APPARMOR}=0; a container is started with --privileged",
    ),
    (
        ("No space left",),
        "sudo sysctl user.max_user_namespaces=10000: this machine allows no more",
    ),
    (("plain processes",), "--elastic-cluster=namespace, or auto"),
)


def remedy(reason: str) -> str | None:
    """Return what to try about a reason, None where nothing is known."""
    for signs, advice in _REMEDIES:
        if all(sign in reason for sign in signs):
            return advice
    return None
