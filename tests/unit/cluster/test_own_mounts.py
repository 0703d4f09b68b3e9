"""Of all that is mounted on a machine, a leak check looks at what is ours."""

from __future__ import annotations

import os
import tempfile

from elastic_harness.cluster.limits.cgroups import session_tag
from elastic_harness.cluster.node.own_mounts import own_mounts

HOST = (
    "27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw",
    "22 27 0:21 / /proc rw,relatime shared:2 - proc proc rw",
    "25 27 0:23 / /dev/shm rw,relatime - tmpfs tmpfs rw",
)
# What comes and goes on a machine that does other work as well.
OTHERS = (
    "90 27 0:51 / /var/lib/docker/overlay2/6f/merged rw - overlay overlay rw,lowerdir=/var/l/A",
    "91 27 0:52 net:[4026532281] /run/docker/netns/default rw - nsfs nsfs rw",
    "92 27 0:53 / /run/user/1000 rw,nosuid shared:40 - tmpfs tmpfs rw,size=1631268k,mode=700",
    "93 27 0:54 / /run/credentials/systemd-tmpfiles.service ro - ramfs none rw,mode=700",
    "94 27 7:3 / /snap/core20/2318 ro - squashfs /dev/loop3 ro",
    r"95 27 8:17 / /media/a/my\040disk rw - vfat /dev/sdb1 rw",
    "96 27 0:55 / /tmp/.mount_editorX ro - fuse.editor editor ro",
    "97 92 0:56 / /run/user/1000/doc rw - fuse.portal portal rw",
    "98 27 0:57 / /mnt rw - tmpfs  rw",
)


def added(*lines: str) -> list[str]:
    """Return what is ours of some mounts beside those of the host."""
    return list(own_mounts("\n".join((*HOST, *OTHERS, *lines)) + "\n").values())


def test_what_other_software_mounts_is_not_ours() -> None:
    """Containers, sessions of users, removable disks: whatever comes while a test runs."""
    assert added() == []


def test_what_a_cluster_mounts_is_ours_by_its_source() -> None:
    """Wherever it stands: a mount that has got out of its namespace can be anywhere."""
    assert added("100 27 0:60 / /tmp rw,nosuid - tmpfs pytest-elastic rw,mode=1777") == [
        "tmpfs on /tmp"
    ]
    # A bind mount names the source of what it shows.
    assert added("100 27 0:61 /hosts /etc/hosts rw - tmpfs pytest-elastic rw") == [
        "tmpfs on /etc/hosts"
    ]


def test_what_stands_on_a_mount_of_ours_is_ours() -> None:
    """A folder of the host that a node is shown again, also if it is told of before its ground."""
    shown = "102 101 254:0 /home/a/project /tmp/project rw - ext4 /dev/vda rw"
    inner = "103 102 0:62 / /tmp/project/cache rw - tmpfs tmpfs rw"
    ground = "101 27 0:60 / /tmp rw - tmpfs pytest-elastic rw"
    assert added(inner, shown, ground) == [
        "tmpfs on /tmp/project/cache",
        "ext4 on /tmp/project",
        "tmpfs on /tmp",
    ]


def test_what_shows_a_folder_of_ours_or_stands_in_one_is_ours() -> None:
    """A session's folder, by its tag, and those that pytest gives to tests."""
    temporary = os.path.realpath(tempfile.gettempdir())
    folder = f"{temporary}/{session_tag(os.getpid())}"
    in_it = f"100 27 0:60 / {folder}/disks/n1 rw - tmpfs tmpfs rw"
    assert added(in_it) == [f"tmpfs on {folder}/disks/n1"]
    assert added(f"100 27 254:0 {folder}/names /mnt rw - ext4 /dev/vda rw") == ["ext4 on /mnt"]
    of_a_test = f"{temporary}/pytest-of-a/pytest-3/test_it0"
    assert added(f"100 27 0:60 / {of_a_test}/a\\040disk rw - tmpfs tmpfs rw") == [
        f"tmpfs on {of_a_test}/a disk"
    ]
