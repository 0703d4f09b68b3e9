"""A session's part in handing down, for `test_handing_down.py`: each line of input is one step.

    python handing_down_program.py

In a container's surroundings if it is told "container": a cgroup namespace whose root is the group
that this process was put into, and nothing else of the hierarchy to be seen.
"""

from __future__ import annotations

import ctypes
import os
import sys

from elastic_harness.cluster.limits import cgroups
from elastic_harness.cluster.limits.handing_down import hand_down
from elastic_harness.cluster.node import namespace as ns

_NEW_CGROUP = 0x02000000
_MNT_DETACH = 2


def main() -> None:
    """Do what each line says; tell what can be limited after it."""
    held = None
    for line in sys.stdin:
        match line.split():
            case ["join", folder]:
                cgroups.write(f"{folder}/cgroup.procs", str(os.getpid()))
            case ["container", top]:
                ns.unshare(_NEW_CGROUP | ns.CLONE_NEWNS)
                ns.mount("none", "/", "", ns.MS_REC | ns.MS_PRIVATE)
                ctypes.CDLL(None).umount2(top.encode(), _MNT_DETACH)
                ns.mount("cgroup2", top, "cgroup2", 0)
            case ["user", user]:
                os.setgroups([])
                os.setgid(int(user))
                os.setuid(int(user))
            case ["hold"]:
                held = hand_down()
            case ["release"]:
                assert held is not None, "it was held before"
                held.release()
        able = sorted(set(cgroups.find_hierarchies()) - {"freeze"})
        sys.stdout.write(f"{' '.join(('able:', *able))}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
