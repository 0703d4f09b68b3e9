"""Try on this machine what a cluster would do, in a throw-away process, and print what failed.

Run as a program by `choose`. It uses the very code that builds nodes, so what it says holds: no
setting of the kernel is read and believed. Prints one JSON object: a reason for each part that
failed, keyed "namespaces", "user_namespaces", "freeze", "cpu", "memory", "process" (absent: it
works).
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable

from elastic_harness.cluster.limits import cgroup_layout, cgroups
from elastic_harness.cluster.node import namespace as ns
from elastic_harness.cluster.node.world import NodePlan, build
from elastic_harness.cluster.server.scratch import Scratch

__all__ = ["main", "restrictions"]

# Settings that distributions have added, and the value that makes namespaces root's alone.
_RESTRICTIONS = (
    ("kernel.unprivileged_userns_clone", "0"),
    ("kernel.apparmor_restrict_unprivileged_userns", "1"),
    ("user.max_user_namespaces", "0"),
)


def main() -> None:
    """Try everything and print the failures."""
    reasons: dict[str, str] = {}
    if os.geteuid() == 0:
        _note(reasons, "namespaces", lambda: _in_child(_try_cluster))
    else:
        reasons["namespaces"] = "this is not root"
    if "namespaces" in reasons:
        _note(reasons, "user_namespaces", lambda: _in_child(_try_cluster_as_user))
        if "user_namespaces" in reasons and (known := restrictions(_read)):
            reasons["user_namespaces"] += f" ({known})"
    _note(reasons, "disk_faults", lambda: _in_child(_try_disk))
    _try_groups(reasons)
    sys.stdout.write(json.dumps(reasons))


def restrictions(read: Callable[[str], str]) -> str:
    """Say which settings of this machine keep ordinary users from namespaces, "" where none does.

    Only to explain what has failed. `read` returns "" for what is not there.
    """
    return ", ".join(
        f"{name} is {value}"
        for name, value in _RESTRICTIONS
        if read(f"/proc/sys/{name.replace('.', '/')}").strip() == value
    )


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


def _note(reasons: dict[str, str], name: str, attempt: Callable[[], None]) -> None:
    try:
        attempt()
    except OSError as error:
        reasons[name] = _sentence(error)


def _sentence(error: OSError) -> str:
    text = error.strerror or str(error)
    return text if error.filename is None else f"cannot open {error.filename}: {text}"


def _in_child(attempt: Callable[[], None]) -> None:
    """Run something in a child that cannot be undone; raises the OSError that it raised."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        try:
            attempt()
        except OSError as error:
            os.write(write, _sentence(error).encode())
        os._exit(0)
    os.close(write)
    with open(read) as pipe:
        reason = pipe.read()
    _, status = os.waitpid(pid, 0)
    if status and not reason:
        reason = f"the attempt ended with status {status}"
    if reason:
        raise OSError(0, reason)


def _try_cluster_as_user() -> None:
    ns.enter_user_namespace()
    _try_cluster()


def _try_cluster() -> None:
    ns.unshare(ns.CLONE_NEWPID)
    _in_child(_try_server)


def _try_server() -> None:
    ns.enter_server_namespaces()
    scratch = Scratch("dry-run", is_isolated=True)
    scratch.make_disk("n1", keep=False)
    plan = NodePlan(
        name="n1",
        index=1,
        address="10.77.0.1",
        is_isolated=True,
        hosts=scratch.hosts,
        names=scratch.names_folder("n1"),
        disk=scratch.disk("n1"),
    )

    def try_node() -> None:
        ns.unshare(ns.NODE_NAMESPACES)
        _in_child(lambda: os.close(build(plan).device))

    _in_child(try_node)


def _try_disk() -> None:
    """Mount a file system that a process serves, where no other process sees it."""
    if os.geteuid() != 0:
        ns.enter_user_namespace()
    ns.unshare(ns.CLONE_NEWNS)
    ns.mount("none", "/", "", ns.MS_REC | ns.MS_PRIVATE)
    for fd in ns.mount_served("/tmp"):  # noqa: S108 (any directory will do)
        os.close(fd)


def _try_groups(reasons: dict[str, str]) -> None:
    tag = cgroups.session_tag(os.getpid())
    group = cgroups.NodeGroup(tag, "dry-run", cgroups.find_hierarchies())
    pid = os.fork()
    if pid == 0:
        signal.pause()
        os._exit(0)
    try:
        _note(reasons, "freeze", lambda: group.freeze(frozen=True))
        _note(reasons, "cpu", lambda: group.limit("cpu", 0.5))
        _note(reasons, "memory", lambda: group.limit("memory", 1 << 30))
        _note(reasons, "process", lambda: group.limit("process", 1000))
        for feature in [each for each in cgroup_layout.FEATURES if each not in reasons]:
            _note(reasons, feature, lambda: group.move(pid))
    finally:
        os.kill(pid, signal.SIGKILL)
        if "freeze" not in reasons:
            group.freeze(frozen=False)
        os.waitpid(pid, 0)
        group.remove()
        cgroups.remove_session(tag)


if __name__ == "__main__":
    main()
